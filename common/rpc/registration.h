#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "grpcpp/security/credentials.h"
#include "tandem/v1/registry.pb.h"

namespace tandem {

class Flags;

// With which routers a server registers, and as what.
struct RegistrationFlags {
  std::vector<std::string> routers;  // gRPC targets; empty: none.
  std::string advertise;             // "host:port" under which others reach it; empty: as it listens.
  std::string name;                  // Empty: the advertised address.

  bool any() const { return !routers.empty(); }
};

// Adds the flags. `options` outlives the parsing.
void DeclareRegistrationFlags(RegistrationFlags& options, Flags& flags);

// InvalidArgument, naming the flag, when it cannot be told under which address a server that listens on
// `listen` is reached, or what is given cannot be one.
absl::Status CheckRegistrationFlags(const RegistrationFlags& options, absl::string_view listen);

// Draws who this process is. `bound`: the address that the server listens on, with its port.
v1::ServerRegistration BeginRegistration(const RegistrationFlags& options, const std::string& bound);

class RouterRegistration;

// tandem_registered_routers: how many routers know the server, 0 of one that does not register. Of a server
// that registers as several (a verifier with several models), those that know it as each of them.
class RegistrationMetric {
 public:
  // `registry` is not scraped any more when this is destroyed.
  explicit RegistrationMetric(MetricsRegistry* registry);

 private:
  friend class RouterRegistration;
  void Show(const RouterRegistration* registration);
  void Hide(const RouterRegistration* registration);

  mutable absl::Mutex mutex_;
  std::set<const RouterRegistration*> registrations_ ABSL_GUARDED_BY(mutex_);
};

// Keeps a server registered with routers, from its construction on:
//
//   call --OK--> wait for what the router says, less some at random --> call ...
//     '--error--> wait 0.1 s, growing to 5 s, likewise --> call ...
//   Leave, destruction --> Deregister, once --> end
//
// Each router has a thread of its own, so that one that does not answer holds up no other. The server goes on
// serving whatever becomes of it: what goes wrong is a warning in the log, once until it changes, and
// missing from num_registered. Thread-safe.
class RouterRegistration {
 public:
  struct Options {
    std::vector<std::string> routers;
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // Null: without TLS.
    // What there is to say now; called before every call, from several threads.
    std::function<v1::ServerRegistration()> describe;
    RegistrationMetric* metric = nullptr;  // Outlives the registration.
    absl::Duration call_timeout = absl::Seconds(10);
    absl::Duration leave_timeout = absl::Seconds(2);
    absl::Duration longest_pause = absl::Seconds(5);
  };
  explicit RouterRegistration(Options options);
  // Waits until it has left everywhere, at most for the timeout.
  ~RouterRegistration();
  RouterRegistration(const RouterRegistration&) = delete;
  RouterRegistration& operator=(const RouterRegistration&) = delete;

  // Has every router told what there is to say now. Does not wait for it.
  void Renew();
  // Has every router told that the server is leaving. Does not wait for it.
  void Leave();
  // Routers that took the last call.
  size_t num_registered() const;

 private:
  class Link;
  const Options options_;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tandem

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

// The routers with which a server registers, and its name and address.
struct RegistrationFlags {
  std::vector<std::string> routers;  // gRPC targets; empty: none.
  std::string advertise;             // "host:port" under which others reach it; empty: as it listens.
  std::string name;                  // Empty: the advertised address.

  bool any() const { return !routers.empty(); }
};

// Adds the flags. `options` outlives the parsing.
void DeclareRegistrationFlags(RegistrationFlags& options, Flags& flags);

// InvalidArgument, naming the flag, if the address under which others reach a server that listens on `listen`
// is unknown, or the given one is invalid.
absl::Status CheckRegistrationFlags(const RegistrationFlags& options, absl::string_view listen);

// Creates this process's registration, with a random instance id. `bound`: the address on which the server
// listens, with its port.
v1::ServerRegistration BeginRegistration(const RegistrationFlags& options, const std::string& bound);

class RouterRegistration;

// tandem_registered_routers: how many routers know the server; 0 if it does not register. If a server
// registers several times (a verifier with several models), the routers that know all of its registrations.
class RegistrationMetric {
 public:
  // `registry` must not be scraped any more when this is destroyed.
  explicit RegistrationMetric(MetricsRegistry* registry);

 private:
  friend class RouterRegistration;
  void Show(const RouterRegistration* registration);
  void Hide(const RouterRegistration* registration);

  mutable absl::Mutex mutex_;
  std::set<const RouterRegistration*> registrations_ ABSL_GUARDED_BY(mutex_);
};

// Keeps a server registered at routers, from construction on:
//
//   call --OK--> wait for what the router says, less some at random --> call ...
//     '--error--> wait 0.1 s, growing to 5 s, likewise --> call ...
//   Leave, destruction --> Deregister, once --> end
//
// Each router has its own thread, so that one that does not answer does not delay the others. Failures do not
// stop the server: they are logged as a warning, once until they change, and num_registered does not count
// the router. Thread-safe.
class RouterRegistration {
 public:
  struct Options {
    std::vector<std::string> routers;
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // Null: without TLS.
    // Returns the current registration. Called before every call, from several threads.
    std::function<v1::ServerRegistration()> describe;
    RegistrationMetric* metric = nullptr;  // Outlives the registration.
    absl::Duration call_timeout = absl::Seconds(10);
    absl::Duration leave_timeout = absl::Seconds(2);
    absl::Duration longest_pause = absl::Seconds(5);
  };
  explicit RouterRegistration(Options options);
  // Waits until it has left all routers, at most for the timeout.
  ~RouterRegistration();
  RouterRegistration(const RouterRegistration&) = delete;
  RouterRegistration& operator=(const RouterRegistration&) = delete;

  // Sends the current registration to every router. Does not wait.
  void Renew();
  // Tells every router that the server leaves. Does not wait.
  void Leave();
  // Routers that accepted the last call.
  size_t num_registered() const;

 private:
  class Link;
  const Options options_;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tandem

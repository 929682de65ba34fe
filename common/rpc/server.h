#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/rpc/certificate_watch.h"
#include "common/rpc/channel.h"
#include "common/rpc/listener.h"
#include "common/rpc/peer_limits.h"
#include "common/rpc/pollers.h"
#include "common/rpc/tls_files.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/string_ref.h"
#include "tandem/v1/admin.pb.h"

namespace tandem {

// A call's metadata as the client sent it.
using CallMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// A gRPC service and the name its health is reported under, such as
// {tandem::v1::Drafter::service_full_name(), &service}. The service outlives the server.
struct ServedService {
  std::string name;
  grpc::Service* service = nullptr;
};

// The answers of the Admin service. Called on gRPC's threads, so they must be thread-safe.
struct AdminCallbacks {
  std::function<v1::ServerInfo()> server_info;
  // Called before every Admin method. Unset: everybody may call.
  std::function<absl::Status(const CallMetadata&)> authorize;
  // Replaces both if the answer depends on the caller.
  std::function<absl::StatusOr<v1::ServerInfo>(const CallMetadata&)> server_info_for;
};

struct ServerOptions {
  // "host:port"; port 0 takes a free one. "unix:/path" works too (common/rpc/unix_socket.h).
  std::string listen_address;
  // Path of a socket that serves the same, with the same credentials; empty: none.
  std::string local_socket;
  // "host:port" of /metrics; empty: none.
  std::string metrics_address;
  // The registry that /metrics shows. Required with metrics_address; outlives the server.
  MetricsRegistry* metrics = nullptr;
  // Server reflection, for grpcurl.
  bool reflection = false;
  // Unset: no TLS.
  std::shared_ptr<grpc::ServerCredentials> credentials;
  // Certificate files whose expiry `metrics` reports; empty: none.
  TlsFiles tls;
  // Listen without TLS even where other machines can connect (common/rpc/security.h).
  bool insecure = false;
  // "host:port" of a second server without TLS that has grpc.health.v1 and nothing else; empty: none.
  std::string health_address;
  // How long the server's main work has been stuck; zero while it makes progress or is idle. Called about
  // once a second, on a separate thread. Unset: the server is alive as long as it accepts connections.
  std::function<absl::Duration()> stalled;
  // After being stuck for this long, kLivenessService is NOT_SERVING; zero: never.
  absl::Duration liveness_timeout = absl::Seconds(60);
  // Health names that are NOT_SERVING from Start until SetServing: of services, or the empty name for the
  // server as a whole.
  std::vector<std::string> not_serving_yet;
  // Of both servers.
  PeerLimits limits;
};

// The health name for liveness: whether the process should keep running. It is SERVING while models load and
// during a drain. All other names say whether to send requests.
inline constexpr char kLivenessService[] = "liveness";

// How a server shuts down: for `delay`, its health already says NOT_SERVING but it still accepts new calls;
// after that, running calls have `grace` to end.
struct DrainTimes {
  absl::Duration delay;
  absl::Duration grace;
};

// Lets a thread wait for SIGTERM and SIGINT. The handlers only write to a pipe. One instance per process;
// create it early in main, because before that a signal kills the process. A second signal of the same kind
// kills the process at once, so that a hanging drain can be ended.
class ShutdownSignals {
 public:
  ShutdownSignals();
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  // Blocks until a signal arrives, and returns its number; returns at once if one has arrived already.
  int Wait();
  // Whether a signal has arrived that Wait has not returned yet.
  bool Arrived() const;
};

// A running gRPC server with what every Tandem server has: size limits, keepalive, grpc.health.v1 (overall,
// per service, and of kLivenessService), the Admin service, reflection and metrics by option.
//
//   ShutdownSignals signals;
//   TANDEM_ASSIGN_OR_RETURN(
//       auto server, ServerRunner::Start(options, {{name, &service}}, {.server_info = ...}));
//   LogInfo("listening", {{"address", server->address()}});
//   signals.Wait();
//   server->Drain({.grace = grace}, [&](absl::Time deadline) { core.Drain(deadline); });
//
//   SERVING --SetServing(false)/(true)--> ... --Drain--> NOT_SERVING, until `drain` refuses new calls
//     --> at the deadline, running calls are cancelled --> stopped
//
// Call Start, Drain and the destructor on one thread. All other methods are thread-safe.
class ServerRunner {
 public:
  // Unavailable, naming the address, if it cannot be bound; InvalidArgument if it is malformed, or if it
  // needs TLS.
  static absl::StatusOr<std::unique_ptr<ServerRunner>> Start(const ServerOptions& options,
                                                             const std::vector<ServedService>& services,
                                                             AdminCallbacks admin);
  // Stops at once and cancels running calls, unless Drain has stopped the server.
  ~ServerRunner();

  // The bound port; 0 for a unix socket.
  int port() const { return port_.number(); }
  // "host:port" as bound.
  const std::string& address() const { return address_; }
  // The bound metrics port; 0 without metrics.
  int metrics_port() const;
  // The bound port of health_address; 0 without.
  int health_port() const { return health_port_.number(); }

  // Sets the health of the server and all services, or of one name; the empty name is the server as a whole.
  // After Start, everything serves except the names in the options. Ignored after Drain. The second function
  // may introduce a name that is no service's; the first function does not change such names.
  void SetServing(bool serving);
  void SetServing(const std::string& service, bool serving);

  // Reports NOT_SERVING, waits for the delay, calls `drain` with the deadline now + grace, and then stops the
  // server, with a second for remaining calls to end. `drain` should refuse new work, and return when running
  // work has finished, or at the deadline. Calls that still run then, or at the deadline, are cancelled.
  // Without `drain`, calls get the whole grace period. Only the first call counts.
  void Drain(const DrainTimes& times, const std::function<void(absl::Time)>& drain);

  // A channel inside the process, for tests.
  std::shared_ptr<grpc::Channel> InProcessChannel();

 private:
  class AdminService;
  struct Port {
    std::unique_ptr<Listener> listener;  // Null for an abstract socket, which gRPC listens at itself.
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;

    int number() const { return listener == nullptr ? 0 : listener->port(); }
  };

  ServerRunner();
  // Opens a listening address.
  static absl::Status AddPort(const std::string& address,
                              const std::shared_ptr<grpc::ServerCredentials>& credentials,
                              grpc::ServerBuilder* builder, Port* port);
  absl::Status StartHealthServer(const ServerOptions& options, const grpc::ResourceQuota& quota);
  void StartListeners(const ServerOptions& options);
  // Of both servers.
  void SetHealth(const std::string& name, bool serving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetServingAtFirst(const std::vector<std::string>& not_yet);
  void WatchLiveness(const std::function<absl::Duration()>& stalled, absl::Duration timeout);
  void Stop(absl::Time deadline);

  std::unique_ptr<AdminService> admin_;
  std::vector<std::string> service_names_;
  std::unique_ptr<CertificateWatch> certificate_watch_;
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::CallbackGenericService> nothing_else_;  // What health_server_ serves besides.
  std::unique_ptr<grpc::Server> health_server_;
  std::unique_ptr<Pollers> pollers_;
  Port port_;
  Port local_port_;
  Port health_port_;
  std::string address_;
  absl::Mutex mutex_;
  std::set<std::string> other_names_ ABSL_GUARDED_BY(mutex_);  // Introduced by SetServing.
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread liveness_;
};

}  // namespace tandem

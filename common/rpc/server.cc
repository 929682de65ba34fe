#include "common/rpc/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/log_queue.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem {
namespace {

// For last messages to leave once the service has nothing left to do. Watchers of the health service, which
// never end by themselves, would otherwise make every drain take its whole grace period.
constexpr absl::Duration kFlushTime = absl::Seconds(1);
constexpr absl::Duration kLivenessPeriod = absl::Seconds(1);

// What holds for all servers of the process.
void PrepareProcess() {
  QueueLogLines();
  TakeGrpcLog();
  grpc::EnableDefaultHealthCheckService(true);
#ifdef NDEBUG
  // Debian's Abseil looks for deadlocks, for which every lock of every thread, those inside gRPC included,
  // takes one that all of them share. Builds with assertions keep that.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

// Decides about reflection for one server. Linking gRPC's reflection library puts its plugin into every
// server, so it has to be taken out where it is not wanted.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(bool wanted) : wanted_(wanted) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    using Plugin = grpc::reflection::ProtoServerReflectionPlugin;
    std::erase_if(*plugins,
                  [](const auto& plugin) { return dynamic_cast<Plugin*>(plugin.get()) != nullptr; });
    if (!wanted_) return;
    // Reflection describes what is linked, which the description of gRPC's own health service is only if
    // somebody names it.
    grpc::health::v1::HealthCheckRequest::descriptor();
    plugins->push_back(std::make_unique<Plugin>());
  }

 private:
  const bool wanted_;
};

// Where strangers can connect, the operator has to know what gRPC itself lets them do. Newer versions keep
// the connection of a header that does not end, too, but skip its bytes, which costs next to nothing.
void WarnOfGrpc(const ServerOptions& options) {
  if (IsLoopback(options.listen_address) || BoundsHeaderLists(grpc::Version())) return;
  LogWarning(
      "with this version of gRPC, anyone who can connect can keep a core busy with one endless header "
      "(docs/operate/security.md); put a proxy in front, or build with 1.56.2 or later",
      {{"grpc", grpc::Version()}, {"address", options.listen_address}});
}

std::string BoundAddress(const std::string& listen_address, int port) {
  const size_t colon = listen_address.rfind(':');
  if (absl::StartsWith(listen_address, "unix") || colon == std::string::npos) return listen_address;
  return absl::StrCat(listen_address.substr(0, colon), ":", port);
}

}  // namespace

class ServerRunner::AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(AdminCallbacks callbacks) : callbacks_(std::move(callbacks)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*, v1::ServerInfo* info) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::Status status;
    if (callbacks_.authorize) status = callbacks_.authorize(context->client_metadata());
    if (callbacks_.server_info_for) {
      absl::StatusOr<v1::ServerInfo> answer = callbacks_.server_info_for(context->client_metadata());
      status = answer.status();
      if (answer.ok()) *info = *std::move(answer);
    } else if (status.ok() && callbacks_.server_info) {
      *info = callbacks_.server_info();
    }
    if (status.ok()) info->set_serving(serving_.load(std::memory_order_relaxed));
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  void SetServing(bool serving) { serving_.store(serving, std::memory_order_relaxed); }

 private:
  const AdminCallbacks callbacks_;
  std::atomic<bool> serving_{false};
};

ServerRunner::ServerRunner() = default;

absl::StatusOr<std::unique_ptr<ServerRunner>> ServerRunner::Start(const ServerOptions& options,
                                                                  const std::vector<ServedService>& services,
                                                                  AdminCallbacks admin) {
  static std::once_flag prepared;
  std::call_once(prepared, PrepareProcess);
  if (options.listen_address.empty()) {
    return absl::InvalidArgumentError("listen address: empty, expected host:port");
  }
  if (!options.metrics_address.empty() && options.metrics == nullptr) {
    return absl::InvalidArgumentError("metrics address given without a metrics registry");
  }
  TANDEM_RETURN_IF_ERROR(
      CheckListenAddress(options.listen_address, options.credentials != nullptr, options.insecure));
  std::unique_ptr<ServerRunner> runner(new ServerRunner());
  runner->admin_ = std::make_unique<AdminService>(std::move(admin));

  WarnOfGrpc(options);
  grpc::ResourceQuota quota("connections");
  quota.Resize(size_t{options.limits.memory_mib} << 20);
  grpc::ServerBuilder builder;
  ApplyLimits(options.limits, quota, &builder);
  const std::shared_ptr<grpc::ServerCredentials> credentials =
      options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials();
  if (const absl::Status status = AddPort(options.listen_address, credentials, &builder, &runner->port_);
      !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("listen address ", status.message()));
  }
  if (!options.local_socket.empty()) {
    TANDEM_RETURN_IF_ERROR(
        AddPort(absl::StrCat("unix:", options.local_socket), credentials, &builder, &runner->local_port_));
  }
  for (const ServedService& service : services) {
    builder.RegisterService(service.service);
    runner->service_names_.push_back(service.name);
  }
  builder.RegisterService(runner->admin_.get());
  runner->service_names_.push_back(v1::Admin::service_full_name());
  builder.SetOption(std::make_unique<ReflectionOption>(options.reflection));

  if (options.metrics != nullptr && options.tls.any()) {
    runner->certificate_watch_ = std::make_unique<CertificateWatch>(options.tls, options.metrics);
  }
  if (!options.metrics_address.empty()) {
    TANDEM_ASSIGN_OR_RETURN(runner->metrics_server_,
                            MetricsServer::Start(options.metrics_address, options.metrics));
  }
  runner->server_ = builder.BuildAndStart();
  if (runner->server_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("listen address \"", options.listen_address, "\" cannot be served: gRPC did not start"));
  }
  runner->address_ = BoundAddress(options.listen_address, runner->port());
  if (!options.health_address.empty()) {
    TANDEM_RETURN_IF_ERROR(runner->StartHealthServer(options, quota));
  }
  runner->SetServingAtFirst(options.not_serving_yet);
  runner->pollers_ = std::make_unique<Pollers>(static_cast<int>(options.limits.pollers));
  runner->StartListeners(options);
  if (options.liveness_timeout > absl::ZeroDuration()) {
    const auto stalled = [at = runner.get(), work = options.stalled] {
      // A server that cannot be reached is useless, whatever its other ports report.
      absl::Duration still = work ? work() : absl::ZeroDuration();
      for (const Port* port : {&at->port_, &at->local_port_}) {
        if (port->listener != nullptr) still = std::max(still, port->listener->deaf());
      }
      return still;
    };
    runner->liveness_ = std::thread([at = runner.get(), stalled, timeout = options.liveness_timeout] {
      at->WatchLiveness(stalled, timeout);
    });
  }
  return runner;
}

absl::Status ServerRunner::AddPort(const std::string& address,
                                   const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                   grpc::ServerBuilder* builder, Port* port) {
  if (absl::StartsWith(address, "unix-abstract:")) {
    builder->AddListeningPort(address, credentials);
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(port->listener, Listener::Bind(address));
  port->acceptor = builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  return absl::OkStatus();
}

void ServerRunner::StartListeners(const ServerOptions& options) {
  Listener::Options accept = {.max_connections = static_cast<int>(options.limits.max_connections)};
  if (options.metrics != nullptr) {
    accept.refused = options.metrics
                         ->AddCounter({.name = "tandem_server_refused_connections_total",
                                       .help = "Connections closed at once because too many were open."})
                         .With({});
  }
  for (Port* port : {&port_, &local_port_, &health_port_}) {
    if (port->listener == nullptr) continue;
    port->listener->Start(accept, [acceptor = port->acceptor.get()](int connection) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.fd = connection;
      // Newer listeners of gRPC refuse a connection without a listening socket, and only pass it on.
      parameters.listener_fd = connection;
      acceptor->HandleNewConnection(&parameters);
    });
  }
}

absl::Status ServerRunner::StartHealthServer(const ServerOptions& options, const grpc::ResourceQuota& quota) {
  grpc::ServerBuilder builder;
  ApplyLimits(options.limits, quota, &builder);
  if (const absl::Status status =
          AddPort(options.health_address, grpc::InsecureServerCredentials(), &builder, &health_port_);
      !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("health address ", status.message()));
  }
  nothing_else_ = std::make_unique<grpc::CallbackGenericService>();
  builder.RegisterCallbackGenericService(nothing_else_.get());
  builder.SetOption(std::make_unique<ReflectionOption>(false));
  health_server_ = builder.BuildAndStart();
  if (health_server_ != nullptr) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("health address \"", options.health_address, "\" cannot be served: gRPC did not start"));
}

ServerRunner::~ServerRunner() {
  if (server_ != nullptr) Stop(absl::Now());
}

int ServerRunner::metrics_port() const {
  return metrics_server_ == nullptr ? 0 : metrics_server_->port();
}

void ServerRunner::SetHealth(const std::string& name, bool serving) {
  if (name.empty()) admin_->SetServing(serving);
  server_->GetHealthCheckService()->SetServingStatus(name, serving);
  if (health_server_ != nullptr) health_server_->GetHealthCheckService()->SetServingStatus(name, serving);
}

void ServerRunner::SetServingAtFirst(const std::vector<std::string>& not_yet) {
  std::vector<std::string> names = service_names_;
  names.insert(names.end(), {"", kLivenessService});
  absl::MutexLock lock(&mutex_);
  for (const std::string& name : names) {
    SetHealth(name, std::find(not_yet.begin(), not_yet.end(), name) == not_yet.end());
  }
}

void ServerRunner::SetServing(bool serving) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return;
  SetHealth("", serving);
  for (const std::string& name : service_names_) SetHealth(name, serving);
}

void ServerRunner::SetServing(const std::string& service, bool serving) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return;
  other_names_.insert(service);
  SetHealth(service, serving);
}

void ServerRunner::WatchLiveness(const std::function<absl::Duration()>& stalled, absl::Duration timeout) {
  const auto stopping = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_; };
  bool lives = true;
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping), std::min(kLivenessPeriod, timeout / 4))) {
    mutex_.Unlock();
    const absl::Duration still = stalled();
    if (lives != (still < timeout)) {
      lives = !lives;
      if (lives) {
        LogInfo("work has resumed");
      } else {
        LogError("work has stalled", {{"for", absl::FormatDuration(still)}});
      }
    }
    mutex_.Lock();
    // During a drain as well: one that hangs may be ended.
    if (!stopping_) SetHealth(kLivenessService, lives);
  }
}

void ServerRunner::Drain(const DrainTimes& times, const std::function<void(absl::Time)>& drain) {
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return;
    SetHealth("", false);
    for (const std::string& name : service_names_) SetHealth(name, false);
    for (const std::string& name : other_names_) SetHealth(name, false);
    // From here on SetServing is ignored.
    draining_ = true;
  }
  absl::SleepFor(times.delay);
  const absl::Time deadline = absl::Now() + times.grace;
  if (!drain) return Stop(deadline);
  drain(deadline);
  Stop(std::min(deadline, absl::Now() + kFlushTime));
}

void ServerRunner::Stop(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (liveness_.joinable()) liveness_.join();
  for (Port* port : {&port_, &local_port_}) {
    if (port->listener != nullptr) port->listener->Stop();
  }
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
  if (health_server_ == nullptr) return;
  // To the last: its probes decide whether the process is let finish.
  if (health_port_.listener != nullptr) health_port_.listener->Stop();
  health_server_->Shutdown(absl::ToChronoTime(absl::Now()));
  health_server_->Wait();
}

std::shared_ptr<grpc::Channel> ServerRunner::InProcessChannel() {
  return server_->InProcessChannel(grpc::ChannelArguments());
}

}  // namespace tandem

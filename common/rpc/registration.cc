#include "common/rpc/registration.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/config/flags.h"
#include "common/config/version.h"
#include "common/rpc/channel.h"
#include "common/rpc/reconnect_backoff.h"
#include "common/rpc/status.h"
#include "grpcpp/client_context.h"
#include "tandem/v1/registry.grpc.pb.h"

namespace tandem {
namespace {

constexpr size_t kMostRouters = 64;
constexpr size_t kInstanceBytes = 16;
// Of the pause that a router asks for: whoever registered together need not come together ever after.
constexpr double kJitter = 0.2;
// Whatever a router says.
constexpr absl::Duration kShortestPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Hours(1);

struct HostPort {
  absl::string_view host;
  uint32_t port = 0;
};

// Nothing for what is not "host:port".
absl::StatusOr<HostPort> Split(absl::string_view address) {
  const size_t colon = address.rfind(':');
  HostPort parts;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &parts.port) || parts.port > 65535) {
    return absl::InvalidArgumentError("expected host:port");
  }
  parts.host = address.substr(0, colon);
  return parts;
}

bool IsWildcard(absl::string_view host) {
  return host == "0.0.0.0" || host == "[::]" || host == "::" || host == "*" || host == "[::0]";
}

}  // namespace

void DeclareRegistrationFlags(RegistrationFlags& options, Flags& flags) {
  flags.Group("Registration")
      .Add("register", &options.routers,
           "Routers to register with, as gRPC targets such as router:7001; their configuration need not list "
           "this server. Of routers that share an etcd, one is enough; with several, registration goes on "
           "when one of them is lost. Repeat for several. Empty: do not register.")
      .Add("advertise", &options.advertise,
           "host:port at which others reach this server, if it differs from --listen.")
      .Add("register-name", &options.name, "Name to register under; default: the advertised address.");
}

absl::Status CheckRegistrationFlags(const RegistrationFlags& options, absl::string_view listen) {
  if (!options.any()) {
    if (options.advertise.empty() && options.name.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--advertise, --register-name: expected --register as well");
  }
  if (options.routers.size() > kMostRouters) {
    return absl::InvalidArgumentError(
        absl::StrCat("--register: ", options.routers.size(), " routers, expected at most ", kMostRouters));
  }
  for (const std::string& router : options.routers) {
    if (router.empty()) return absl::InvalidArgumentError("--register: an empty address, expected host:port");
  }
  if (!options.advertise.empty()) {
    const absl::StatusOr<HostPort> parts = Split(options.advertise);
    if (parts.ok() && parts->port > 0 && !IsWildcard(parts->host)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--advertise: \"", options.advertise, "\", expected host:port at which others reach this server"));
  }
  const absl::StatusOr<HostPort> parts = Split(listen);
  if (parts.ok() && !IsWildcard(parts->host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--advertise: missing, and --listen=", listen,
                   " is not an address at which others reach this server; expected host:port"));
}

v1::ServerRegistration BeginRegistration(const RegistrationFlags& options, const std::string& bound) {
  v1::ServerRegistration server;
  server.set_address(options.advertise.empty() ? bound : options.advertise);
  server.set_version(std::string(Version()));
  v1::ServerInstance& instance = *server.mutable_instance();
  instance.set_name(options.name.empty() ? server.address() : options.name);
  std::random_device entropy;
  std::string bytes;
  while (bytes.size() < kInstanceBytes) bytes.push_back(static_cast<char>(entropy() & 0xff));
  instance.set_instance(bytes);
  instance.set_started_unix_ms(static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixMillis(absl::Now()), 0)));
  return server;
}

// One router.
class RouterRegistration::Link {
 public:
  Link(std::string router, const Options& options)
      : router_(std::move(router)),
        options_(options),
        stub_(v1::Registry::NewStub(tandem::CreateChannel(router_, options.credentials))),
        thread_([this] { Run(); }) {}

  ~Link() {
    Leave();
    thread_.join();
  }

  void Leave() {
    absl::MutexLock lock(&mutex_);
    leaving_ = true;
    // A call that is under way must not come after what is said next.
    if (context_ != nullptr) context_->TryCancel();
  }

  void Renew() {
    absl::MutexLock lock(&mutex_);
    renew_ = true;
  }

  bool registered() const {
    absl::MutexLock lock(&mutex_);
    return registered_;
  }

 private:
  void Run() {
    const SystemClock clock;
    std::mt19937_64 generator(std::random_device{}());
    const auto uniform = [&generator] { return std::uniform_real_distribution<double>(0.0, 1.0)(generator); };
    ReconnectBackoff backoff(&clock, uniform, {.maximum = options_.longest_pause});
    v1::ServerRegistration server;
    do {
      {
        // What changes from now on is told by the next call.
        absl::MutexLock lock(&mutex_);
        renew_ = false;
      }
      server = options_.describe();
      v1::RegisterResponse response;
      const absl::Status status = Register(server, &response);
      if (status.ok()) {
        backoff.Succeeded();
        const absl::Duration pause =
            std::clamp(absl::Seconds(response.renew_after_seconds()), kShortestPause, kLongestPause);
        next_ = clock.Now() + pause * (1.0 - kJitter * uniform());
      } else {
        next_ = backoff.Failed();
      }
    } while (!AwaitNext());
    Deregister(server);
  }

  // Whether it is time to leave.
  bool AwaitNext() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &Link::HasNews), next_);
    return leaving_;
  }

  bool HasNews() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return leaving_ || renew_; }

  absl::Status Register(const v1::ServerRegistration& server, v1::RegisterResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call_timeout));
    {
      absl::MutexLock lock(&mutex_);
      if (leaving_) return absl::CancelledError("leaving");
      context_ = &context;
    }
    v1::RegisterRequest request;
    *request.mutable_server() = server;
    const absl::Status status = FromGrpcStatus(stub_->Register(&context, request, response));
    bool is_new = false;
    {
      absl::MutexLock lock(&mutex_);
      context_ = nullptr;
      is_new = std::exchange(registered_, status.ok()) != status.ok();
      // What came of a call without an answer is not known, and what is registered stays so when a later call
      // is refused.
      perhaps_known_ =
          perhaps_known_ || status.ok() || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
      if (leaving_) return status;
    }
    const std::string error(status.message());
    if (status.ok() && is_new) {
      LogInfo("registered", {{"router", router_},
                             {"name", server.instance().name()},
                             {"address", server.address()},
                             {"ttl", absl::FormatDuration(absl::Seconds(response->ttl_seconds()))}});
    } else if (!status.ok() && error != error_) {
      LogWarning("registration failed; serving goes on, and the server retries",
                 {{"router", router_}, {"code", absl::StatusCodeToString(status.code())}, {"error", error}});
    }
    error_ = error;
    return status;
  }

  void Deregister(const v1::ServerRegistration& server) {
    if (!perhaps_known_) return;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + options_.leave_timeout));
    v1::DeregisterRequest request;
    *request.mutable_server() = server;
    v1::DeregisterResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Deregister(&context, request, &response));
    absl::MutexLock lock(&mutex_);
    registered_ = false;
    if (status.ok()) return;
    LogWarning("the router could not be told that this server is leaving",
               {{"router", router_}, {"error", std::string(status.message())}});
  }

  const std::string router_;
  const Options& options_;
  const std::unique_ptr<v1::Registry::Stub> stub_;
  // The thread's.
  absl::Time next_;
  std::string error_;           // Of the last call.
  bool perhaps_known_ = false;  // The router may have the registration.
  mutable absl::Mutex mutex_;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool renew_ ABSL_GUARDED_BY(mutex_) = false;
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

RouterRegistration::RouterRegistration(Options options) : options_(std::move(options)) {
  for (const std::string& router : options_.routers)
    links_.push_back(std::make_unique<Link>(router, options_));
  if (options_.metric != nullptr) options_.metric->Show(this);
}

RouterRegistration::~RouterRegistration() {
  if (options_.metric != nullptr) options_.metric->Hide(this);
  Leave();
  links_.clear();
}

void RouterRegistration::Renew() {
  for (const auto& link : links_) link->Renew();
}

void RouterRegistration::Leave() {
  for (const auto& link : links_) link->Leave();
}

size_t RouterRegistration::num_registered() const {
  return static_cast<size_t>(
      std::count_if(links_.begin(), links_.end(), [](const auto& link) { return link->registered(); }));
}

RegistrationMetric::RegistrationMetric(MetricsRegistry* registry) {
  registry->AddGaugeCallback(
      {"tandem_registered_routers", "Routers with which this server is registered (--register).", {}},
      [this] {
        absl::MutexLock lock(&mutex_);
        if (registrations_.empty()) return 0.0;
        size_t fewest = std::numeric_limits<size_t>::max();
        for (const RouterRegistration* registration : registrations_) {
          fewest = std::min(fewest, registration->num_registered());
        }
        return static_cast<double>(fewest);
      });
}

void RegistrationMetric::Show(const RouterRegistration* registration) {
  absl::MutexLock lock(&mutex_);
  registrations_.insert(registration);
}

void RegistrationMetric::Hide(const RouterRegistration* registration) {
  absl::MutexLock lock(&mutex_);
  registrations_.erase(registration);
}

}  // namespace tandem

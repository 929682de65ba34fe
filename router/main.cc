// `tandem-router`: what clients call.
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/random_bits.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "common/config/secret.h"
#include "common/config/version.h"
#include "common/config/yaml_proto.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "common/rpc/server_flags.h"
#include "common/rpc/tracing.h"
#include "common/tokenizer/template_trials.h"
#include "router/admin/admin_service.h"
#include "router/admin/registry_service.h"
#include "router/admin/routing_service.h"
#include "router/admission/admission.h"
#include "router/admission/shared_quotas.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/choice_feedback.h"
#include "router/drafters/drafter_speed_client.h"
#include "router/drafters/feedback/feedback.h"
#include "router/drafters/feedback/score_client.h"
#include "router/drafters/learned_state.h"
#include "router/drafters/policy_memory.h"
#include "router/http/openai_api.h"
#include "router/http/server/http_server.h"
#include "router/live/live_call.h"
#include "router/live/live_server.h"
#include "router/models/served_model.h"
#include "router/serving/readiness.h"
#include "router/serving/readiness_watch.h"
#include "router/serving/router.h"
#include "router/serving/service.h"
#include "router/spool/spool_flags.h"
#include "router/state/applied_config.h"
#include "router/state/etcd/etcd_address.h"
#include "router/state/etcd/etcd_store.h"
#include "router/state/open_store.h"
#include "router/state/routing_state.h"
#include "router/state/tenants_file.h"
#include "router/vllm/vllm_service.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {
namespace {

// Less than a busy machine may take to answer.
constexpr absl::Duration kShortestStallTimeout = absl::Milliseconds(100);

// A --state that does not outlive the process.
constexpr char kMemoryState[] = "memory:";

struct RouterFlags {
  std::string config;
  std::string tenants;
  std::string state = kMemoryState;
  EtcdAccess etcd;
  ServerFlags server{.listen = "127.0.0.1:7001",
                     .metrics_listen = "127.0.0.1:9101",
                     // Callers are strangers, and each has a connection of its own.
                     .limits = {.pollers = 16, .max_idle = absl::Minutes(10), .max_age = absl::Hours(1)},
                     .drain_grace = absl::Seconds(30)};
  int32_t tokenizer_threads = 2;
  uint32_t spare_places = Admission::kDefaultSparePercent;
  std::string calibration;
  double feedback_share = 0.05;
  absl::Duration verifier_stall_timeout = absl::Seconds(2);
  absl::Duration wait_for_verifier = absl::Seconds(10);
  bool strict_readiness = true;
  uint32_t verifier_max_requests = 1024;
  absl::Duration write_stall_timeout = absl::Seconds(30);
  std::string live_listen;
  bool live_all = false;
  bool live_prompts = false;
  std::string http_listen;
  int32_t http_threads = 2;
  uint32_t http_tenant_connections = 1024;
  std::vector<std::string> http_origins;
  bool http_metrics = false;
  bool http_refuse_left_out = false;
  SpoolFlags spool;
};

// Everything that the configuration file names, loaded.
struct LoadedConfig {
  v1::RouterConfig file;  // Without the tenants file.
  Secret tenants_file;    // Its content.
  std::unique_ptr<RoutingState> routing;
  std::vector<ServedModel> models;
  std::string plain_tokens;  // Names of the tenants whose tokens are not hashed.
};

absl::StatusOr<std::unique_ptr<RoutingStore>> OpenState(const RouterFlags& flags) {
  if (absl::StartsWith(flags.state, kEtcdScheme)) return OpenEtcdStore(flags.state, flags.etcd);
  return OpenStore(flags.state);
}

// The store without its content, for --check-config.
absl::StatusOr<std::unique_ptr<RoutingStore>> CheckState(const RouterFlags& flags) {
  if (absl::StartsWith(flags.state, kEtcdScheme)) {
    TANDEM_RETURN_IF_ERROR(CheckEtcdStore(flags.state, flags.etcd));
  }
  return OpenStore(kMemoryState);
}

// Reads and checks the configuration and the tokenizers of its models. The error lists every problem, one a
// line.
absl::StatusOr<LoadedConfig> LoadConfig(const RouterFlags& flags, bool check_only) {
  LoadedConfig loaded;
  TANDEM_RETURN_IF_ERROR(ReadYamlFile(flags.config, &loaded.file));
  v1::RouterConfig config = loaded.file;
  std::vector<std::string> errors;
  if (flags.tenants.empty()) {
    if (const absl::Status status = ResolveConfig(config).status(); !status.ok()) {
      errors.push_back(std::string(status.message()));
    }
  } else {
    TANDEM_ASSIGN_OR_RETURN(loaded.tenants_file, ReadTenantsFile(flags.tenants));
    absl::StatusOr<v1::RouterConfig> both =
        AddTenants(loaded.file, loaded.tenants_file.Reveal(), flags.tenants);
    if (!both.ok()) errors.push_back(std::string(both.status().message()));
    if (both.ok()) config = *std::move(both);
  }
  for (int i = 0; i < config.models_size(); ++i) {
    // ResolveConfig has reported a folder that is missing.
    if (config.models(i).folder().empty()) continue;
    absl::StatusOr<ServedModel> model =
        LoadServedModel(config.models(i).name(), config.models(i).folder(), config.models(i).output_format());
    if (model.ok()) {
      loaded.models.push_back(*std::move(model));
    } else {
      const bool format = absl::StartsWith(model.status().message(), "output_format: ");
      errors.push_back(absl::StrCat("models[", i, format ? "]." : "].folder: ", model.status().message()));
    }
  }
  if (!errors.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  std::vector<std::string> plain;
  for (const v1::TenantConfig& tenant : config.tenants()) {
    if (!tenant.token().empty()) plain.push_back(tenant.name());
  }
  loaded.plain_tokens = absl::StrJoin(plain, ", ");
  HashTokens(config);
  HashTokens(loaded.file);
  // Last, because it may write to the state.
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<RoutingStore> store,
                          check_only ? CheckState(flags) : OpenState(flags));
  TANDEM_ASSIGN_OR_RETURN(loaded.routing, RoutingState::Open(config, std::move(store)));
  return loaded;
}

// `state` outlives the registry's last scrape.
void AddStateMetrics(RoutingState* state, MetricsRegistry* registry) {
  registry->AddGaugeCallback(
      {"tandem_router_state_connected", "1 while the store of tenants and drafters answers.", {}},
      [state] { return state->store().health().ok() ? 1.0 : 0.0; });
  registry->AddGaugeCallback({"tandem_router_state_stale",
                              "1 while the configuration in force differs from the store's, because the "
                              "store's is invalid or cannot be read.",
                              {}},
                             [state] { return state->condition().stale ? 1.0 : 0.0; });
  registry->AddGaugeCallback(
      {"tandem_router_state_damaged_records", "Tenants and drafters in the store that cannot be read.", {}},
      [state] { return static_cast<double>(state->condition().damaged_records); });
}

// The HTTP API and the server that it is called by.
struct HttpFront {
  std::unique_ptr<OpenAiApi> api;
  std::unique_ptr<HttpServer> server;  // Before the API ends.
};

// None where no address is given.
absl::StatusOr<HttpFront> StartHttp(const RouterFlags& flags, Router* router, MetricsRegistry* registry) {
  HttpFront front;
  if (flags.http_listen.empty()) return front;
  const ServerFlags& shared = flags.server;
  TANDEM_RETURN_IF_ERROR(CheckListenAddress(flags.http_listen, shared.tls.any(), shared.insecure));
  OpenAiApi::Options options;
  options.connections_per_tenant = flags.http_tenant_connections;
  options.allowed_origins = flags.http_origins;
  options.refuse_left_out = flags.http_refuse_left_out;
  if (flags.http_metrics) options.metrics = [registry] { return registry->Expose(); };
  options.ready = [router] {
    for (const Readiness::Model& model : ModelsOf(*router)) {
      if (model.wanted && !model.served) return false;
    }
    return true;
  };
  front.api = std::make_unique<OpenAiApi>(std::move(options), router, registry);
  TANDEM_ASSIGN_OR_RETURN(front.server, HttpServer::Start({.address = flags.http_listen,
                                                           .tls = shared.tls,
                                                           .threads = flags.http_threads,
                                                           .max_connections = shared.limits.max_connections,
                                                           .answer_timeout = flags.write_stall_timeout,
                                                           .idle_timeout = shared.limits.max_idle},
                                                          front.api.get()));
  const HttpServer* const server = front.server.get();
  registry->AddGaugeCallback({"tandem_router_http_connections", "Open connections of the HTTP API.", {}},
                             [server] { return static_cast<double>(server->num_connections()); });
  return front;
}

// Larger than any that is written.
constexpr size_t kMaxCalibrationBytes = size_t{256} << 20;

// Learning that a killed router loses, at most.
constexpr absl::Duration kSaveInterval = absl::Seconds(30);

// What each model's chat template was found to do. A template that cannot be used refuses chats only.
void LogTemplates(const std::vector<ServedModel>& models) {
  for (const ServedModel& model : models) {
    const absl::Status& problem = model.chat_traits.problem;
    const LogLevel level = problem.ok() || absl::IsNotFound(problem) ? LogLevel::kInfo : LogLevel::kWarning;
    Log(level, "chat template", {{"model", model.name}, {"found", DescribeTraits(model.chat_traits)}});
  }
}

absl::Status Serve(const RouterFlags& flags, LoadedConfig config, const Security& security,
                   ShutdownSignals& signals) {
  if (!config.plain_tokens.empty()) {
    LogWarning("the configuration has tokens in the clear; `tandem hash-token` hashes them",
               {{"tenants", config.plain_tokens}});
  }
  LogTemplates(config.models);
  const SystemClock clock;
  // For seeds and request ids.
  const std::function<uint64_t()> draw = SystemRandomBits();
  MetricsRegistry registry;
  registry.AddProcessMetrics(Version());
  RouterMetrics metrics(&registry);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Tracing> tracing,
                          Tracing::Start(flags.server.tracing, "tandem-router", Version(), &registry));
  DrafterChooser chooser({.dimension = FeatureModel::kDefaultDimension}, ChooserModels(config.models));
  std::optional<CalibrationFile> calibration;
  if (!flags.calibration.empty()) {
    TANDEM_ASSIGN_OR_RETURN(std::string bytes, ReadFile(flags.calibration, kMaxCalibrationBytes));
    calibration = {.path = flags.calibration, .bytes = std::move(bytes)};
  }
  TANDEM_RETURN_IF_ERROR(ReadLearned(calibration, config.routing->store(), chooser));
  PolicyMemory policies;
  TANDEM_RETURN_IF_ERROR(ReadPolicies(config.routing->store(), policies));
  ChoiceFeedback sink(&chooser);
  Feedback feedback({.share = flags.feedback_share, .draw = draw},
                    std::make_unique<ScoreClient>(security.channel), &sink, &clock, &registry);
  Router::Options options;
  options.routing = std::move(config.routing);
  options.models = std::move(config.models);
  options.tokenizer_threads = flags.tokenizer_threads;
  options.spare_percent = flags.spare_places;
  options.chooser = &chooser;
  options.policies = &policies;
  options.verifiers.stall_timeout = flags.verifier_stall_timeout;
  options.verifiers.longest_wait = flags.wait_for_verifier;
  options.write_stall_timeout = flags.write_stall_timeout;
  options.verifiers.choice.max_in_flight = flags.verifier_max_requests;
  options.verifiers.credentials = security.channel;
  options.clock = &clock;
  options.metrics = &metrics;
  if (flags.feedback_share > 0.0) options.feedback = &feedback;
  options.draw = draw;
  options.tracer = &tracing->tracer();
  std::optional<LiveView> live;
  if (!flags.live_listen.empty()) {
    live.emplace(LiveFeed::Options{.all_requests = flags.live_all, .prompts = flags.live_prompts},
                 absl::StrCat(absl::Hex(draw(), absl::kZeroPad16)));
    options.live = &*live;
  }
  std::unique_ptr<Spool> spool;
  if (flags.spool.any()) {
    TANDEM_ASSIGN_OR_RETURN(spool, Spool::Open(flags.spool.options(), &clock, &registry));
    options.spool = spool.get();
  }
  ServerOptions server_options = MakeServerOptions(flags.server, security, &registry);
  Router router(std::move(options));
  GenerationService service(router);
  VllmService vllm_service(router, clock.Now());
  RoutingService routing_service(router);
  RegistryService registry_service(router);
  RouterAdminService admin(router, [&registry_service] { return registry_service.Servers(); });
  AddStateMetrics(&router.routing(), &registry);
  std::optional<TenantsFileFollower> tenants_file;
  if (!flags.tenants.empty()) {
    tenants_file.emplace(
        TenantsFileFollower::Options{.path = flags.tenants, .config = std::move(config.file)},
        std::move(config.tenants_file), &router.routing(), &registry);
  }
  // Until the last request is over.
  std::optional<LearnedStateSaver> saver;
  if (flags.state != kMemoryState)
    saver.emplace(&chooser, &policies, &router.routing().store(), kSaveInterval);

  std::optional<SharedQuotas> quotas;
  if (LeaseStore* const leases = router.routing().store().leases(); leases != nullptr) {
    quotas.emplace(
        SharedQuotas::Options{.router = absl::StrCat(absl::Hex(SystemRandomBits()(), absl::kZeroPad16)),
                              .table =
                                  [&router] {
                                    const std::shared_ptr<const RoutingSnapshot> snapshot = router.snapshot();
                                    return std::shared_ptr<const RoutingTable>(snapshot, &snapshot->table());
                                  },
                              .clock = &clock},
        &router.admission(), leases);
  }

  server_options.not_serving_yet = NamesOfReadiness();
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ServerRunner> server,
                          ServerRunner::Start(server_options,
                                              {{v1::Generation::service_full_name(), &service},
                                               {engine::VllmEngine::service_full_name(), &vllm_service},
                                               {v1::RouterAdmin::service_full_name(), &admin},
                                               {v1::Routing::service_full_name(), &routing_service},
                                               {v1::Registry::service_full_name(), &registry_service}},
                                              MakeAdminCallbacks(router, clock.Now())));
  std::unique_ptr<LiveServer> live_server;
  if (live.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(live_server,
                            LiveServer::Start({.address = flags.live_listen,
                                               .insecure = flags.server.insecure,
                                               .max_connections = flags.server.limits.max_connections,
                                               .routing = [&router] { return router.snapshot(); }},
                                              &*live));
  }
  TANDEM_ASSIGN_OR_RETURN(const HttpFront http, StartHttp(flags, &router, &registry));
  const std::shared_ptr<const RoutingSnapshot> routing = router.snapshot();
  LogInfo("listening", {{"address", server->address()},
                        {"metrics_port", absl::StrCat(server->metrics_port())},
                        {"health_port", absl::StrCat(server->health_port())},
                        {"http_port", absl::StrCat(http.server == nullptr ? 0 : http.server->port())},
                        {"live_port", absl::StrCat(live_server == nullptr ? 0 : live_server->port())},
                        {"models", absl::StrCat(routing->table().models.size())},
                        {"drafters", absl::StrCat(routing->table().drafters.size())},
                        {"tenants", absl::StrCat(routing->table().tenants.size())}});
  const DrafterSpeedClient drafter_speed_client(
      {.credentials = security.channel}, [&router] { return router.snapshot(); }, &chooser);
  const ReadinessWatch readiness({.every_model = flags.strict_readiness}, &router, server.get(), &registry);
  const int signal = signals.Wait();
  LogInfo("draining",
          {{"signal", absl::StrCat(signal)}, {"in_flight", absl::StrCat(router.admission().in_flight())}});
  server->Drain(flags.server.drain_times(), [&router, &http](absl::Time deadline) {
    if (http.server != nullptr) http.server->Drain();
    router.Drain(deadline);
  });
  LogInfo("stopped");
  return absl::OkStatus();
}

void DeclareLivePageFlags(RouterFlags& options, Flags& flags) {
  flags.Group("Live page (docs/operate/live.md)")
      .Add("live-listen", &options.live_listen,
           "Address to serve the live page on, which shows generations as they happen, over plain HTTP. "
           "Empty: none. If other machines can connect, it needs --insecure and asks for an admin's token.")
      .Add("live-all", &options.live_all,
           "Show the requests of all tenants, including their text, not only requests that ask for it.")
      .Add("live-prompts", &options.live_prompts, "Also show the prompts of those requests.");
}

void DeclareHttpFlags(RouterFlags& options, Flags& flags) {
  flags.Group("HTTP API (docs/reference/http.md)")
      .Add("http-listen", &options.http_listen,
           "Address to serve the OpenAI API on, over HTTP; with TLS if there is a certificate. Empty: none.")
      .Add("http-origins", &options.http_origins,
           "Origins whose pages may call the API from a browser, such as https://chat.example; *: all.")
      .Add("http-metrics", &options.http_metrics,
           "Serve the router's metrics as /metrics of the HTTP API as well, to everybody who can reach it.");
}

void DeclareSettings(RouterFlags& options, Flags& flags) {
  flags.Settings("Configuration")
      .Add("state-insecure", &options.etcd.insecure_password,
           "Allow an etcd on another machine without TLS, although the user's password is then sent in the "
           "clear. Without a user, --insecure is enough.");
  flags.Settings("Failures")
      .Add("verifier-stall-timeout", &options.verifier_stall_timeout,
           "When a verifier with running requests sends nothing and does not answer its health service for "
           "this long, the router moves the requests to another verifier.")
      .Add("strict-readiness", &options.strict_readiness,
           "Report health SERVING only while every model that a tenant may use has a verifier that serves; "
           "when false, one such model is enough.")
      .Add("verifier-max-requests", &options.verifier_max_requests,
           "Most requests in flight at one verifier.")
      .InRange(1, 1e6)
      .Add("write-stall-timeout", &options.write_stall_timeout,
           "End a call when its client has read nothing for this long, although there is something to read.");
  flags.Settings("Resources")
      .Add("spare-places", &options.spare_places,
           "Per cent of a model's places to keep for tenants with few requests, if there are several "
           "tenants; 0: none.")
      .InRange(0, 50);
  flags.Settings("HTTP API (docs/reference/http.md)")
      .Add("http-threads", &options.http_threads, "Threads for all HTTP connections.")
      .InRange(1, 64)
      .Add("http-tenant-connections", &options.http_tenant_connections,
           "Most HTTP connections of one tenant.")
      .InRange(1, 1 << 20)
      .Add("http-refuse-left-out", &options.http_refuse_left_out,
           "Refuse requests with tools or items that nobody here can run or read, such as web_search. "
           "Default: "
           "leave them out and name them in x-tandem-ignored.");
}

int Main(int argc, char** argv) {
  ShutdownSignals signals;
  RouterFlags options;
  Flags flags(
      "tandem-router", "router",
      "Accepts generation requests, chooses a verifier and a drafter for each, and streams tokens back.");
  flags.Group("Configuration")
      .Add("config", &options.config, "YAML file with models, drafters and tenants (tandem.v1.RouterConfig).")
      .Required()
      .Add("tenants", &options.tenants,
           "YAML file with more drafters and tenants; reloaded whenever it changes. Empty: none.")
      .Add("state", &options.state,
           "Store of tenants, drafters and what the router has learned about them: memory:, "
           "sqlite:///path/of/file, or etcd://host:port[,host:port]/prefix, which several routers can share. "
           "The configuration file fills it at the first start.")
      .Add("state-tls-ca", &options.etcd.tls.ca,
           "PEM file of etcd's certificate authorities; if given, connections to etcd use TLS.")
      .Add("state-tls-certificate", &options.etcd.tls.certificate,
           "PEM file of the client certificate for etcd.")
      .Add("state-tls-key", &options.etcd.tls.key, "PEM file of that certificate's private key.")
      .Add("state-username", &options.etcd.username, "User name at etcd; empty: none.")
      .Add("state-password-file", &options.etcd.password_file, "File with that user's password.");
  flags.Group("Choice of drafters (tenants with drafter_policy: auto)")
      .Add("calibration", &options.calibration,
           "File that `tandem calibrate` wrote; empty: start by exploring.");
  DeclareServerFlags(options.server, flags);
  flags.Group("Failures")
      .Add("wait-for-verifier", &options.wait_for_verifier,
           "Longest time that a request waits while no verifier of its model serves, within its deadline; "
           "then it ends with UNAVAILABLE. 0s: do not wait.");
  flags.Group("Resources")
      .Add("tokenizer-threads", &options.tokenizer_threads, "Threads that tokenize prompts.")
      .InRange(1, 256);
  flags.Group("Feedback")
      .Add("feedback-share", &options.feedback_share,
           "Share of finished requests whose output is scored, at low priority, by every drafter that their "
           "tenant may use. All are scored while little is known about one of these drafters. 0: none.")
      .InRange(0, 1);
  DeclareHttpFlags(options, flags);
  DeclareLivePageFlags(options, flags);
  DeclareSpoolFlags(options.spool, flags);
  DeclareSettings(options, flags);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;

  if (options.verifier_stall_timeout < kShortestStallTimeout) {
    std::cerr << "tandem-router: verifier-stall-timeout: expected at least "
              << absl::FormatDuration(kShortestStallTimeout) << "\n";
    return kExitUsage;
  }
  if (options.wait_for_verifier < absl::ZeroDuration()) {
    std::cerr << "tandem-router: --wait-for-verifier: expected 0s or more\n";
    return kExitUsage;
  }
  if (options.write_stall_timeout < kShortestStallTimeout) {
    std::cerr << "tandem-router: write-stall-timeout: expected at least "
              << absl::FormatDuration(kShortestStallTimeout) << "\n";
    return kExitUsage;
  }
  if (options.live_listen.empty() && (options.live_all || options.live_prompts)) {
    std::cerr << "tandem-router: --live-all and --live-prompts: expected --live-listen as well\n";
    return kExitUsage;
  }
  if (const absl::Status spool = CheckSpoolFlags(options.spool); !spool.ok()) {
    std::cerr << "tandem-router: " << spool.message() << "\n";
    return kExitUsage;
  }
  const absl::StatusOr<Security> security = OpenServerSecurity(options.server, v1::SERVER_ROLE_ROUTER);
  if (!security.ok()) {
    std::cerr << "tandem-router: " << security.status().message() << "\n";
    return kExitFailure;
  }
  options.etcd.insecure = options.server.insecure;
  absl::StatusOr<LoadedConfig> config = LoadConfig(options, flags.check_config());
  if (!config.ok()) {
    const bool with_state = options.state != kMemoryState;
    std::cerr << "tandem-router: " << options.config << (with_state ? " with " + options.state : "")
              << " cannot be used:\n"
              << config.status().message() << "\n";
    return kExitFailure;
  }
  if (flags.check_config()) {
    const std::shared_ptr<const RoutingSnapshot> routing = config->routing->snapshot();
    for (const ServedModel& model : config->models)
      std::cout << "model " << model.name << ": " << DescribeTraits(model.chat_traits) << "\n";
    std::cout << options.config << " is good: " << routing->table().models.size() << " models, "
              << routing->table().drafters.size() << " drafters, " << routing->table().tenants.size()
              << " tenants\n";
    return kExitOk;
  }
  if (const absl::Status status = Serve(options, *std::move(config), *security, signals); !status.ok()) {
    LogError("cannot serve", {{"error", std::string(status.message())}});
    return kExitFailure;
  }
  return kExitOk;
}

}  // namespace
}  // namespace tandem::router

int main(int argc, char** argv) {
  return tandem::router::Main(argc, argv);
}

// `tandem-router`: what clients call.
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "common/config/version.h"
#include "common/config/yaml_proto.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "router/config.h"
#include "router/router.h"
#include "router/served_model.h"
#include "router/service.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {
namespace {

struct RouterFlags {
  std::string config;
  std::string listen = "127.0.0.1:7001";
  std::string metrics_listen = "127.0.0.1:9101";
  int32_t tokenizer_threads = 2;
  bool reflection = false;
  absl::Duration drain_grace = absl::Seconds(30);
};

// Random bits for seeds and request ids, from the system's entropy. Thread-safe.
class RandomBits {
 public:
  uint64_t Draw() {
    absl::MutexLock lock(&mutex_);
    return generator_();
  }

 private:
  static std::mt19937_64 Seeded() {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }

  absl::Mutex mutex_;
  std::mt19937_64 generator_ ABSL_GUARDED_BY(mutex_) = Seeded();
};

// Everything that the configuration file names, loaded.
struct LoadedConfig {
  RoutingTable table;
  std::vector<ServedModel> models;
};

// Reads and checks the configuration and the tokenizers of its models. The error lists every problem, one a
// line.
absl::StatusOr<LoadedConfig> LoadConfig(const std::string& path) {
  v1::RouterConfig config;
  TANDEM_RETURN_IF_ERROR(ReadYamlFile(path, &config));
  std::vector<std::string> errors;
  absl::StatusOr<RoutingTable> table = ResolveConfig(config);
  if (!table.ok()) errors.push_back(std::string(table.status().message()));
  std::vector<ServedModel> models;
  for (int i = 0; i < config.models_size(); ++i) {
    // ResolveConfig has reported a folder that is missing.
    if (config.models(i).folder().empty()) continue;
    absl::StatusOr<ServedModel> model = LoadServedModel(config.models(i).name(), config.models(i).folder());
    if (model.ok()) {
      models.push_back(*std::move(model));
    } else {
      errors.push_back(absl::StrCat("models[", i, "].folder: ", model.status().message()));
    }
  }
  if (!errors.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  return LoadedConfig{.table = *std::move(table), .models = std::move(models)};
}

absl::Status Serve(const RouterFlags& flags, LoadedConfig config, ShutdownSignals& signals) {
  const SystemClock clock;
  RandomBits random;
  MetricsRegistry registry;
  registry.AddProcessMetrics(Version());
  RouterMetrics metrics(&registry);
  Router::Options options;
  options.table = std::move(config.table);
  options.models = std::move(config.models);
  options.tokenizer_threads = flags.tokenizer_threads;
  options.clock = &clock;
  options.metrics = &metrics;
  options.draw = [&random] { return random.Draw(); };
  Router router(std::move(options));
  GenerationService service(router);

  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ServerRunner> server,
                          ServerRunner::Start({.listen_address = flags.listen,
                                               .metrics_address = flags.metrics_listen,
                                               .metrics = &registry,
                                               .reflection = flags.reflection},
                                              {{v1::Generation::service_full_name(), &service}},
                                              MakeAdminCallbacks(router, clock.Now())));
  LogInfo("listening", {{"address", server->address()},
                        {"metrics_port", absl::StrCat(server->metrics_port())},
                        {"models", absl::StrCat(router.table().models.size())},
                        {"drafters", absl::StrCat(router.table().drafters.size())},
                        {"tenants", absl::StrCat(router.table().tenants.size())}});
  const int signal = signals.Wait();
  LogInfo("draining",
          {{"signal", absl::StrCat(signal)}, {"in_flight", absl::StrCat(router.admission().in_flight())}});
  server->Drain(flags.drain_grace, [&router](absl::Time deadline) { router.admission().Drain(deadline); });
  LogInfo("stopped");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  ShutdownSignals signals;
  RouterFlags options;
  Flags flags("tandem-router", "router",
              "Takes generation requests, picks a verifier and a drafter for each, and carries tokens back.");
  flags.Group("Configuration")
      .Add("config", &options.config, "YAML file with models, drafters and tenants (tandem.v1.RouterConfig).")
      .Required();
  flags.Group("Network")
      .Add("listen", &options.listen, "Address to listen on.")
      .Add("metrics-listen", &options.metrics_listen, "Address of /metrics; empty: none.")
      .Add("reflection", &options.reflection, "Serve gRPC reflection, for grpcurl.")
      .Add("drain-grace", &options.drain_grace, "How long requests may go on after SIGTERM.");
  flags.Group("Resources")
      .Add("tokenizer-threads", &options.tokenizer_threads, "Threads that tokenize prompts.")
      .InRange(1, 256);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;

  absl::StatusOr<LoadedConfig> config = LoadConfig(options.config);
  if (!config.ok()) {
    std::cerr << "tandem-router: " << options.config << " cannot be used:\n"
              << config.status().message() << "\n";
    return kExitFailure;
  }
  if (flags.check_config()) {
    std::cout << options.config << " is good: " << config->table.models.size() << " models, "
              << config->table.drafters.size() << " drafters, " << config->table.tenants.size()
              << " tenants\n";
    return kExitOk;
  }
  if (const absl::Status status = Serve(options, *std::move(config), signals); !status.ok()) {
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

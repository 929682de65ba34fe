// tandem-bench: measurements of Tandem's parts. All but `serve` build without gRPC, with
// -DTANDEM_SERVICES=OFF.

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "bench/engine_bench.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#ifdef TANDEM_BENCH_SERVE
#include "bench/serve/serve_bench.h"
#endif

namespace tandem {
namespace {

void PrintTable(const EngineBenchOptions& options, const EngineBenchResult& result) {
  std::printf("%s, %s kernels, %d thread%s, context %u\n", options.folder.c_str(), result.kernels.c_str(),
              options.threads, options.threads == 1 ? "" : "s", options.context);
  std::printf("weights %.1f MB, read bandwidth %.1f GB/s, floor of a step %.3f ms\n",
              1e-6 * static_cast<double>(result.weight_bytes), 1e-9 * result.read_bytes_per_second,
              1e3 * result.floor_seconds);
  std::printf("%6s %12s %12s %10s %10s\n", "rows", "median ms", "fastest ms", "to 1 row", "of floor");
  for (const StepTime& step : result.steps) {
    std::printf("%6u %12.3f %12.3f %9.2fx %9.0f%%\n", step.rows, 1e3 * step.median_seconds,
                1e3 * step.fastest_seconds, step.median_seconds / result.steps.front().median_seconds,
                100.0 * result.floor_seconds / step.median_seconds);
  }
}

void PrintJson(const EngineBenchOptions& options, const EngineBenchResult& result) {
  nlohmann::json json = {{"folder", options.folder},
                         {"kernels", result.kernels},
                         {"threads", options.threads},
                         {"context", options.context},
                         {"weight_bytes", result.weight_bytes},
                         {"read_bytes_per_second", result.read_bytes_per_second},
                         {"floor_seconds", result.floor_seconds}};
  for (const StepTime& step : result.steps) {
    json["steps"].push_back({{"rows", step.rows},
                             {"median_seconds", step.median_seconds},
                             {"fastest_seconds", step.fastest_seconds}});
  }
  std::printf("%s\n", json.dump(2).c_str());
}

int Main(int argc, char** argv) {
  CLI::App app("Measures Tandem's parts. Times depend on the machine: compare within one run.",
               "tandem-bench");
  app.require_subcommand(1);
  EngineBenchOptions options;
  std::string instruction_set = "auto";
  bool json = false;
  CLI::App* engine = app.add_subcommand("engine", "Time of one forward pass, by number of rows.");
  engine->add_option("folder", options.folder, "Model folder.")->required();
  engine->add_option("--rows", options.rows, "Rows of a step.")->delimiter(',')->check(CLI::Range(1, 4096));
  engine->add_option("--context", options.context, "Tokens before the rows.")->capture_default_str();
  engine->add_option("--threads", options.threads, "Threads.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  engine->add_option("--instruction-set", instruction_set, "auto, amx, avx512, avx2 or portable.")
      ->capture_default_str();
  engine->add_option("--repetitions", options.repetitions, "Steps of each size.")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  engine->add_flag("--json", json, "Print JSON.");
#ifdef TANDEM_BENCH_SERVE
  bench::ServeOptions serve_options;
  CLI::App* serve = app.add_subcommand("serve", "Load on a router: configurations against one another.");
  bench::AddServeOptions(serve, &serve_options);
#endif
  CLI11_PARSE(app, argc, argv);

#ifdef TANDEM_BENCH_SERVE
  if (serve->parsed()) return bench::RunServe(serve_options);
#endif
  const absl::StatusOr<EngineBenchResult> result = [&]() -> absl::StatusOr<EngineBenchResult> {
    TANDEM_ASSIGN_OR_RETURN(options.instruction_set, ParseInstructionSet(instruction_set));
    return RunEngineBench(options);
  }();
  if (!result.ok()) {
    std::fprintf(stderr, "tandem-bench: %s\n", result.status().ToString().c_str());
    return 1;
  }
  json ? PrintJson(options, *result) : PrintTable(options, *result);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}

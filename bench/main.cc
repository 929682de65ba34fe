// tandem-bench: measurements of Tandem's parts. All but `acceptance`, `guesses`, `paced`, `rounds` and
// `serve` build without gRPC, with -DTANDEM_SERVICES=OFF.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/engine_bench.h"
#include "bench/engine_report.h"
#include "bench/engine_turns.h"
#include "bench/load_bench.h"
#include "bench/model_shapes.h"
#include "bench/quality_report.h"
#include "common/base/status_macros.h"
#include "common/engine/kv_type.h"
#ifdef TANDEM_BENCH_SERVE
#include "bench/acceptance/acceptance_bench.h"
#include "bench/rounds/guesses_bench.h"
#include "bench/rounds/paced_bench.h"
#include "bench/rounds/rounds_bench.h"
#include "bench/serve/serve_bench.h"
#endif

namespace tandem {
namespace {

// What the command line holds as text until it is parsed.
struct EngineFlags {
  EngineBenchOptions options;
  std::string instruction_set = "auto";
  std::string weight_dtype = "bf16";
  std::string kv_type = "auto";
  std::string tree = "binary";
  std::string device = "cpu";
  std::string json_path;
  bool turns = false;
};

void AddEngineFlags(CLI::App* app, EngineFlags* flags) {
  EngineBenchOptions& options = flags->options;
  app->add_option("folder", options.model.folder, "Model folder; or use --shape.");
  app->add_option(
      "--shape", options.model.shape,
      "Random weights with the dimensions of a published model; `tandem-bench shapes` lists them.");
  app->add_option("--head-target", options.model.head_target,
                  "If the folder holds a draft head: folder of its target.");
  app->add_option("--rows", options.rows, "Rows per step, as a tree below one context.")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--tree", flags->tree, "Shape of that tree: binary, chain or siblings.")
      ->capture_default_str();
  app->add_option("--context", options.contexts, "Tokens of context before the rows.")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--prefill", options.prefill,
                  "Also measure the prefill of a prompt of this many tokens; 0: do not.")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--threads", options.threads, "Numbers of threads to measure with.")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--instruction-set", flags->instruction_set,
                  absl::StrJoin(InstructionSetNames(), ", ") + ".")
      ->capture_default_str();
  app->add_option("--weight-dtype", flags->weight_dtype,
                  "bf16, int8, int4, w8a8, w4a8, on a GPU also fp8. For quantised files auto, their own "
                  "codes with inputs "
                  "of 8 bits, or exact, the numbers that these stand for.")
      ->capture_default_str();
  app->add_option("--kv-type", flags->kv_type,
                  "Number format of keys and values: " + absl::StrJoin(KvTypeNames(), ", ") + ".")
      ->capture_default_str();
  app->add_option("--adapter", options.adapter,
                  "Folder of a LoRA adapter to compute all rows with; the floor does not count it.");
  app->add_option("--device", flags->device, "cpu, or a GPU as cuda or cuda:N.")->capture_default_str();
  app->add_option("--repetitions", options.repetitions, "Forward passes of each size.")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--most-seconds", options.most_seconds,
                  "Most seconds for one context; three repetitions are made in any case.")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--json", flags->json_path, "File to write the results to; -: standard output.");
  app->add_flag("--turns", flags->turns,
                "Measure on demand, one JSON line per pass; see bench/peers/README.md.");
}

struct QualityFlags {
  QualityOptions options;
  std::string instruction_set = "auto";
  std::vector<std::string> weight_dtypes = {"int8", "int4", "w8a8", "w4a8"};
  std::vector<std::string> kv_types = {"bf16", "int8"};
  bool json = false;
};

void AddQualityFlags(CLI::App* app, QualityFlags* flags) {
  QualityOptions& options = flags->options;
  app->add_option("folder", options.folder, "Model folder.")->required();
  app->add_option("--text", options.text_file, "File of UTF-8 text that the model was not trained on.")
      ->required();
  app->add_option("--window", options.window, "Tokens per context.")->capture_default_str();
  app->add_option(
         "--weight-dtype", flags->weight_dtypes,
         "Weight types to compare with the model as its files hold it: bf16, int8, int4, w8a8, w4a8.")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--kv-type", flags->kv_types, "Types of keys and values to compare: f32, bf16, int8.")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--threads", options.threads, "Threads to compute with.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--instruction-set", flags->instruction_set,
                  absl::StrJoin(InstructionSetNames(), ", ") + ".")
      ->capture_default_str();
  app->add_flag("--json", flags->json, "Print JSON.");
}

struct LoadFlags {
  LoadBenchOptions options;
  std::string instruction_set = "auto";
  std::string weight_dtype = "auto";
};

void AddLoadFlags(CLI::App* app, LoadFlags* flags) {
  LoadBenchOptions& options = flags->options;
  app->add_option("model", options.path, "Model folder or GGUF file.")->required();
  app->add_option("--threads", options.threads, "Threads to compute with.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--instruction-set", flags->instruction_set,
                  absl::StrJoin(InstructionSetNames(), ", ") + ".")
      ->capture_default_str();
  app->add_option("--weight-dtype", flags->weight_dtype, "auto, exact, bf16, int8, int4, w8a8 or w4a8.")
      ->capture_default_str();
  app->add_option("--repetitions", options.repetitions, "Number of reads and loads; they take turns.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_flag("--cold", options.cold, "Drop the files from the page cache before each.");
}

absl::Status RunLoad(LoadFlags flags) {
  LoadBenchOptions& options = flags.options;
  TANDEM_ASSIGN_OR_RETURN(options.instruction_set, ParseInstructionSet(flags.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(options.weight_type, ParseWeightType(flags.weight_dtype));
  TANDEM_ASSIGN_OR_RETURN(const LoadBenchResult result, RunLoadBench(options));
  std::cout << LoadBenchTable(options, result) << std::flush;
  return absl::OkStatus();
}

absl::Status RunQuality(QualityFlags flags) {
  QualityOptions& options = flags.options;
  TANDEM_ASSIGN_OR_RETURN(options.instruction_set, ParseInstructionSet(flags.instruction_set));
  options.weight_types.clear();
  for (const std::string& name : flags.weight_dtypes) {
    TANDEM_ASSIGN_OR_RETURN(options.weight_types.emplace_back(), ParseWeightType(name));
  }
  options.kv_types.clear();
  for (const std::string& name : flags.kv_types) {
    TANDEM_ASSIGN_OR_RETURN(options.kv_types.emplace_back(), ParseKvType(name));
  }
  TANDEM_ASSIGN_OR_RETURN(const QualityReport report, ReportQuality(options));
  std::cout << (flags.json ? QualityJson(options, report) + "\n" : QualityTable(options, report))
            << std::flush;
  return absl::OkStatus();
}

absl::Status RunEngine(EngineFlags flags) {
  EngineBenchOptions& options = flags.options;
  TANDEM_ASSIGN_OR_RETURN(options.instruction_set, ParseInstructionSet(flags.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(options.weight_dtype, ParseWeightDtype(flags.weight_dtype));
  TANDEM_ASSIGN_OR_RETURN(options.kv_type, ParseKvType(flags.kv_type));
  TANDEM_ASSIGN_OR_RETURN(options.tree, ParseRowTree(flags.tree));
  TANDEM_ASSIGN_OR_RETURN(options.device, ParseDeviceSpec(flags.device));
  if (options.device.is_cuda) TANDEM_RETURN_IF_ERROR(ValidateGpuKvType(options.kv_type));
  TANDEM_RETURN_IF_ERROR(PrepareDevice(options.device));
  if (options.device.is_cuda && flags.turns) {
    return absl::InvalidArgumentError("--turns: expected --device cpu");
  }
  if (flags.turns) return RunEngineTurns(options, std::cin, std::cout);
  // Opened first: a wrong path should not cost minutes.
  std::ofstream file;
  if (!flags.json_path.empty() && flags.json_path != "-") {
    file.open(flags.json_path);
    if (!file) return absl::InvalidArgumentError(absl::StrCat("--json: cannot write ", flags.json_path));
  }
  TANDEM_ASSIGN_OR_RETURN(const EngineBenchResult result, RunEngineBench(options));
  if (flags.json_path == "-") {
    std::cout << EngineBenchJson(options, result) << std::endl;
    return absl::OkStatus();
  }
  std::cout << EngineBenchTable(options, result) << std::flush;
  if (file.is_open()) {
    file << EngineBenchJson(options, result) << std::endl;
    if (!file) return absl::UnavailableError(absl::StrCat("--json: cannot write ", flags.json_path));
  }
  return absl::OkStatus();
}

absl::Status PrintShapes(const std::string& name) {
  if (name.empty()) {
    for (const std::string& known : ModelShapeNames()) std::cout << known << "\n";
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string json, ModelShapeJson(name));
  std::cout << json << std::endl;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Measures Tandem's parts. Times depend on the machine: compare within one run.",
               "tandem-bench");
  app.require_subcommand(1);
  EngineFlags flags;
  CLI::App* engine = app.add_subcommand(
      "engine", "Measure a forward pass against the shortest time that this machine could take.");
  AddEngineFlags(engine, &flags);
  QualityFlags quality_flags;
  CLI::App* quality = app.add_subcommand(
      "quality", "Measure how well a model predicts a text, by type of weights and of keys and values.");
  AddQualityFlags(quality, &quality_flags);
  LoadFlags load_flags;
  CLI::App* load =
      app.add_subcommand("load", "Compare the time to load a model with the time to read its files.");
  AddLoadFlags(load, &load_flags);
  std::string shape;
  CLI::App* shapes = app.add_subcommand("shapes", "List the names that --shape accepts.");
  shapes->add_option("name", shape, "Print the config.json of this shape instead.");
#ifdef TANDEM_BENCH_SERVE
  bench::ServeOptions serve_options;
  CLI::App* serve = app.add_subcommand("serve", "Load a router and compare configurations.");
  bench::AddServeOptions(serve, &serve_options);
  bench::RoundsOptions rounds_options;
  CLI::App* rounds = app.add_subcommand(
      "rounds",
      "Count the tokens per round of the textbook loop, by tree size, with and without seeded drafts.");
  bench::AddRoundsOptions(rounds, &rounds_options);
  bench::PacedOptions paced_options;
  CLI::App* paced = app.add_subcommand(
      "paced", "Run a drafter and a verifier in simulated time; count tokens per second, hits and waits.");
  bench::AddPacedOptions(paced, &paced_options);
  bench::GuessesOptions guesses_options;
  CLI::App* guesses = app.add_subcommand(
      "guesses", "Record what drafters guess at each position of the target's outputs, for tandem-plan.");
  bench::AddGuessesOptions(guesses, &guesses_options);
  bench::AcceptanceOptions acceptance_options;
  CLI::App* acceptance =
      app.add_subcommand("acceptance", "Measure how well drafters' acceptance is predicted from prompts.");
  bench::AddAcceptanceOptions(acceptance, &acceptance_options);
#endif
  CLI11_PARSE(app, argc, argv);

#ifdef TANDEM_BENCH_SERVE
  if (serve->parsed()) return bench::RunServe(serve_options);
  if (rounds->parsed()) return bench::RunRounds(rounds_options);
  if (paced->parsed()) return bench::RunPaced(paced_options);
  if (guesses->parsed()) return bench::RunGuesses(guesses_options);
  if (acceptance->parsed()) return bench::RunAcceptance(acceptance_options);
#endif

  const absl::Status status = shapes->parsed()    ? PrintShapes(shape)
                              : quality->parsed() ? RunQuality(quality_flags)
                              : load->parsed()    ? RunLoad(load_flags)
                                                  : RunEngine(flags);
  if (!status.ok()) {
    std::fprintf(stderr, "tandem-bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}

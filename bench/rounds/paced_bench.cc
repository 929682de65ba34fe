#include "bench/rounds/paced_bench.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "bench/rounds/loaded_model.h"
#include "bench/serve/prompts.h"
#include "common/base/status_macros.h"
#include "common/drafting/source_host.h"
#include "common/engine/paced_engine.h"

namespace tandem::bench {
namespace {

struct PromptSet {
  std::string name;
  std::vector<TokenIds> prompts;  // Those of the warm-up first.
};

absl::StatusOr<PromptSet> LoadPromptSet(const PacedOptions& options, const std::string& name_and_file,
                                        const Tokenizer& tokenizer) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, LoadPrompts(name_and_file));
  PromptSet set{.name = prompts.front().dataset, .prompts = {}};
  for (size_t i = 0; i < options.warm_up + options.num_prompts; ++i) {
    TANDEM_ASSIGN_OR_RETURN(TokenIds tokens, tokenizer.Encode(prompts[i % prompts.size()].text, {}));
    if (tokens.size() > options.max_prompt_tokens) tokens.resize(options.max_prompt_tokens);
    set.prompts.push_back(std::move(tokens));
  }
  return set;
}

std::vector<PacedLoop::Request> RequestsOf(const PacedOptions& options, const PromptSet& set,
                                           float temperature, bool drafted) {
  std::vector<PacedLoop::Request> requests;
  for (size_t i = 0; i < set.prompts.size(); ++i) {
    requests.push_back({.prompt = set.prompts[i],
                        .sampling = {.temperature = temperature, .seed = options.seed + i},
                        .max_tokens = options.max_tokens,
                        .drafted = drafted});
  }
  return requests;
}

// Runs the warm-up, then what counts.
absl::StatusOr<PacedLoop::Report> RunSet(const PacedOptions& options, const PacedLoop::Options& loop_options,
                                         const std::vector<PacedLoop::Request>& requests,
                                         const LoadedModel& target, const LoadedModel& drafter) {
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<PacedLoop> loop,
      PacedLoop::Make(loop_options, target.engine.get(), drafter.engine.get(), target.tokenizer));
  const auto begin = requests.begin() + static_cast<ptrdiff_t>(options.warm_up);
  if (options.warm_up > 0) {
    TANDEM_RETURN_IF_ERROR(loop->Run(std::vector<PacedLoop::Request>(requests.begin(), begin)).status());
  }
  return loop->Run(std::vector<PacedLoop::Request>(begin, requests.end()));
}

absl::StatusOr<PacedLoop::Options> LoopOptionsOf(const PacedOptions& options) {
  PacedLoop::Options loop{.limits = options.limits,
                          .expand_width = options.expand_width,
                          .link = absl::Milliseconds(options.link_ms),
                          .shared = options.shared};
  TANDEM_ASSIGN_OR_RETURN(loop.target_pace, ParsePace(options.target_pace));
  TANDEM_ASSIGN_OR_RETURN(loop.draft_pace, ParsePace(options.draft_pace));
  if (options.local_drafter != "none") {
    TANDEM_ASSIGN_OR_RETURN(loop.local_drafter, ParseSourceSpec(options.local_drafter));
  }
  return loop;
}

// NAME or NAME:DEPTH.
absl::Status SetPolicy(const std::string& policy, PacedLoop::Options* loop) {
  const std::vector<std::string> parts = absl::StrSplit(policy, absl::MaxSplits(':', 1));
  loop->window_policy = parts[0];
  TANDEM_RETURN_IF_ERROR(MakeWindowPolicy(parts[0]).status());
  if (parts.size() == 1) return absl::OkStatus();
  if (absl::SimpleAtoi(parts[1], &loop->limits.max_depth) && loop->limits.max_depth > 0 &&
      loop->limits.max_depth <= kMaxTreeDepth / 2) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--policy ", policy, ": expected a window of 1 to ",
                                                 kMaxTreeDepth / 2, " after the colon"));
}

// What all configurations of a cell have in common.
struct PacedCell {
  const LoadedModel* target = nullptr;
  const LoadedModel* drafter = nullptr;
  const PromptSet* prompts = nullptr;
  float temperature = 0.0f;
  uint32_t concurrency = 1;
};

// Plain decoding, and every shape and policy against it.
absl::Status MeasureCell(const PacedOptions& options, const PacedCell& cell, PacedLoop::Options loop,
                         std::vector<PacedRow>* rows) {
  loop.concurrency = cell.concurrency;
  PacedLoop::Options plain_loop = loop;
  plain_loop.local_drafter.reset();
  const auto requests = [&](bool drafted) {
    return RequestsOf(options, *cell.prompts, cell.temperature, drafted);
  };
  TANDEM_ASSIGN_OR_RETURN(const PacedLoop::Report plain,
                          RunSet(options, plain_loop, requests(false), *cell.target, *cell.drafter));
  for (const std::string& shape : options.shapes) {
    TANDEM_ASSIGN_OR_RETURN(loop.limits.shape, ParseTreeShape(shape));
    for (const std::string& policy : options.policies) {
      loop.limits.max_depth = options.limits.max_depth;
      TANDEM_RETURN_IF_ERROR(SetPolicy(policy, &loop));
      PacedRow row{.drafter = cell.drafter->name,
                   .dataset = cell.prompts->name,
                   .shape = shape,
                   .policy = policy,
                   .temperature = cell.temperature,
                   .concurrency = cell.concurrency,
                   .report = {}};
      TANDEM_ASSIGN_OR_RETURN(row.report, RunSet(options, loop, requests(true), *cell.target, *cell.drafter));
      if (row.report.outputs != plain.outputs) {
        return absl::InternalError(absl::StrCat(row.dataset, ", ", shape, ", ", policy,
                                                ": an output depends on how it was drafted"));
      }
      row.speedup = row.report.TokensPerSecond() / plain.TokensPerSecond();
      rows->push_back(std::move(row));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<PacedRow>> MeasurePaced(const PacedOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const LoadedModel target, LoadModel(options.target, options.threads));
  std::vector<PromptSet> sets;
  for (const std::string& prompts : options.prompts) {
    TANDEM_ASSIGN_OR_RETURN(sets.emplace_back(), LoadPromptSet(options, prompts, *target.tokenizer));
  }
  TANDEM_ASSIGN_OR_RETURN(const PacedLoop::Options loop, LoopOptionsOf(options));
  std::vector<PacedRow> rows;
  for (const std::string& folder : options.drafters) {
    TANDEM_ASSIGN_OR_RETURN(const LoadedModel drafter, LoadModel(folder, options.threads, options.target));
    if (drafter.VocabularyFingerprint() != target.VocabularyFingerprint()) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder, ": its vocabulary differs from that of ", options.target));
    }
    PacedCell cell{.target = &target, .drafter = &drafter};
    for (const PromptSet& set : sets) {
      cell.prompts = &set;
      for (const float temperature : options.temperatures) {
        cell.temperature = temperature;
        for (const uint32_t concurrency : options.concurrency) {
          cell.concurrency = concurrency;
          TANDEM_RETURN_IF_ERROR(MeasureCell(options, cell, loop, &rows));
        }
      }
    }
  }
  return rows;
}

std::string PacedTable(const std::vector<PacedRow>& rows) {
  std::string table =
      "| drafter | prompts | temperature | at a time | shape | policy | tokens/s | over plain | tokens/round "
      "| "
      "nodes/round | drafted | hits | roots missed | waited ms/round | verifier | drafter | draft rows/round "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- "
      "|\n";
  for (const PacedRow& row : rows) {
    const PacedLoop::Report& report = row.report;
    const double rounds = static_cast<double>(std::max<uint64_t>(report.rounds, 1));
    const auto share = [](double part, double whole) { return whole > 0.0 ? 100.0 * part / whole : 0.0; };
    const double seconds = absl::ToDoubleSeconds(report.time);
    absl::StrAppendFormat(
        &table,
        "| %s | %s | %g | %d | %s | %s | %.1f | %.3f | %.2f | %.2f | %.0f %% | %.0f %% | %.0f %% | %.2f | "
        "%.0f %% | %.0f %% | %.1f |\n",
        row.drafter, row.dataset, row.temperature, row.concurrency, row.shape, row.policy,
        report.TokensPerSecond(), row.speedup, 1.0 + static_cast<double>(report.accepted) / rounds,
        static_cast<double>(report.nodes) / rounds, share(static_cast<double>(report.drafted), rounds),
        share(static_cast<double>(report.hits), static_cast<double>(report.drafted)),
        share(static_cast<double>(report.after_misses), rounds),
        absl::ToDoubleMilliseconds(report.waited) / rounds,
        share(absl::ToDoubleSeconds(report.verifier_busy), seconds),
        share(absl::ToDoubleSeconds(report.drafter_busy), seconds),
        static_cast<double>(report.draft_rows) / rounds);
  }
  return table;
}

namespace {

void AddWorkOptions(CLI::App* app, PacedOptions* options) {
  app->add_option("--target", options->target, "Folder of the target model.")->required();
  app->add_option("--drafter", options->drafters, "Folders of draft models.")->delimiter(',')->required();
  app->add_option("--prompts", options->prompts, "NAME=FILE, as in `tandem-bench serve` (repeatable).")
      ->required();
  app->add_option("--num-prompts", options->num_prompts,
                  "Prompts to run for each file; shorter files repeat.")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--warm-up", options->warm_up, "Warm-up prompts, which do not count.")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app->add_option("--max-prompt-tokens", options->max_prompt_tokens,
                  "Cut longer prompts to this many tokens.")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--max-tokens", options->max_tokens, "Tokens per output.")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--temperature", options->temperatures, "Temperatures.")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--seed", options->seed, "Seed of the first request; each further request adds 1.")
      ->capture_default_str();
  app->add_option("--concurrency", options->concurrency, "Requests at a time.")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

void AddTreeOptions(CLI::App* app, PacedOptions* options) {
  app->add_option("--shape", options->shapes, "Tree shapes.")->delimiter(',')->capture_default_str();
  app->add_option("--policy", options->policies,
                  "Window policies: NAME, or NAME:DEPTH to set the longest window.")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--max-window", options->limits.max_depth, "Longest window.")
      ->check(CLI::Range(1u, kMaxTreeDepth / 2))
      ->capture_default_str();
  app->add_option("--nodes-per-level", options->limits.nodes_per_level, "Nodes to verify for each level.")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--max-nodes", options->limits.max_nodes, "Most nodes to verify in one round.")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--branching", options->limits.branching, "Most children of a tree node.")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--lookahead", options->limits.lookahead, "Levels to draft ahead.")
      ->check(CLI::Range(0u, kMaxTreeDepth / 2))
      ->capture_default_str();
  app->add_option("--ahead-nodes", options->limits.ahead_nodes,
                  "Most nodes to draft ahead, below the tokens that a round may end with; 0: as many as "
                  "--lookahead has levels for.")
      ->check(CLI::Range(0u, kMaxTreeNodes))
      ->capture_default_str();
  app->add_option("--ahead-branching", options->limits.ahead_branching,
                  "Most children of a node that is drafted ahead.")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app->add_option("--expand-width", options->expand_width, "Nodes that the drafter computes per step.")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--local-drafter", options->local_drafter, "Source that drafts inside the verifier.")
      ->capture_default_str();
}

void AddPaceOptions(CLI::App* app, PacedOptions* options) {
  app->add_option("--target-ms", options->target_pace,
                  "Milliseconds of a target step, as FIRST+FURTHER for the first row and each further row.")
      ->capture_default_str();
  app->add_option("--draft-ms", options->draft_pace, "The same for a step of the drafter.")
      ->capture_default_str();
  app->add_option("--link-ms", options->link_ms, "Milliseconds that a message takes.")
      ->check(CLI::Range(0.0, 60000.0))
      ->capture_default_str();
  app->add_option("--shared", options->shared,
                  "Share of a drafter step's time by which it delays a step of the target.")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--threads", options->threads, "Threads of each engine.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

}  // namespace

void AddPacedOptions(CLI::App* app, PacedOptions* options) {
  AddWorkOptions(app, options);
  AddTreeOptions(app, options);
  AddPaceOptions(app, options);
}

int RunPaced(const PacedOptions& options) {
  const absl::StatusOr<std::vector<PacedRow>> rows = MeasurePaced(options);
  if (!rows.ok()) {
    std::fprintf(stderr, "tandem-bench: %s\n", rows.status().ToString().c_str());
    return 1;
  }
  std::cout << "Simulated time.\n\n" << PacedTable(*rows) << std::flush;
  return 0;
}

}  // namespace tandem::bench

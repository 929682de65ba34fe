#include "bench/rounds/rounds_bench.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/rounds/draft_loop.h"
#include "bench/rounds/loaded_model.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

using OutputKey = std::tuple<float, uint64_t, size_t>;  // Temperature, seed, prompt.

// What a drafter of another vocabulary needs to draft for the target.
absl::Status BridgeTo(const LoadedModel& target, const LoadedModel& drafter, bool text_drafting,
                      DraftLoop::Options* options) {
  if (drafter.VocabularyFingerprint() == target.VocabularyFingerprint()) return absl::OkStatus();
  absl::StatusOr<VocabularyBridge> bridge =
      VocabularyBridge::Between({*drafter.tokenizer, drafter.engine->config().vocab_size},
                                {*target.tokenizer, target.engine->config().vocab_size});
  if (bridge.ok()) {
    options->bridge = std::make_shared<const VocabularyBridge>(*std::move(bridge));
  } else if (text_drafting) {
    options->text = std::make_shared<const TextBridge>(drafter.tokenizer, target.tokenizer,
                                                       target.engine->config().vocab_size);
  } else {
    return absl::FailedPreconditionError(absl::StrCat(drafter.name, ": ", bridge.status().message()));
  }
  return absl::OkStatus();
}

DraftLoop::Options LoopOptions(const RoundsOptions& options, uint32_t nodes, RoundsVariant variant) {
  WindowLimits limits{.max_depth = std::min(nodes, kMaxTreeDepth / 2),
                      .nodes_per_level = nodes,
                      .max_nodes = nodes,
                      .branching = options.branching,
                      .lookahead = 0,
                      .ahead_nodes = 0,
                      .shape = TreeShape::kBestFirst};
  if (variant == RoundsVariant::kCalibrated) limits.lookahead = limits.max_depth;
  return {.limits = limits,
          .expand_width = options.expand_width,
          .seeded = variant != RoundsVariant::kUnseeded,
          .feature_type = options.feature_dtype == "int8" ? FeatureType::kInt8 : FeatureType::kBf16};
}

absl::StatusOr<double> TokensPerRound(const RoundsOptions& options, const std::vector<TokenIds>& prompts,
                                      float temperature, DraftLoop& loop,
                                      std::map<OutputKey, TokenIds>* outputs) {
  uint64_t tokens = 0;
  uint64_t rounds = 0;
  const uint64_t seeds = temperature > 0.0f ? options.num_seeds : 1;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const SamplingParameters sampling{.temperature = temperature, .seed = seed};
      TANDEM_ASSIGN_OR_RETURN(DraftLoop::Output output,
                              loop.Generate(prompts[i], sampling, options.max_tokens));
      // A request's first round shares its pass with the end of the prompt, before anything can be drafted.
      tokens += output.tokens.size() - (output.rounds - output.drafted_rounds);
      rounds += output.drafted_rounds;
      const auto [known, is_new] = outputs->try_emplace(OutputKey(temperature, seed, i), output.tokens);
      if (!is_new && known->second != output.tokens) {
        return absl::InternalError(absl::StrCat("prompt ", i, ", temperature ", temperature, ", seed ", seed,
                                                ": the output depends on how it was drafted"));
      }
    }
  }
  return static_cast<double>(tokens) / static_cast<double>(rounds);
}

absl::string_view NameOf(RoundsVariant variant) {
  switch (variant) {
    case RoundsVariant::kUnseeded:
      return "unseeded";
    case RoundsVariant::kSeeded:
      return "seeded";
    case RoundsVariant::kCalibrated:
      break;
  }
  return "seeded, calibrated";
}

}  // namespace

absl::StatusOr<std::vector<TokenIds>> LoadPromptIds(const std::string& file) {
  std::ifstream in(file);
  if (!in) return absl::InvalidArgumentError(absl::StrCat("--prompts: cannot read ", file));
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("cases") || !json["cases"].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": expected JSON with a list \"cases\""));
  }
  std::vector<TokenIds> prompts;
  for (const nlohmann::json& one : json["cases"]) {
    const std::string where = absl::StrCat(file, ": cases[", prompts.size(), "].prompt_ids");
    if (!one.is_object() || !one.contains("prompt_ids") || !one["prompt_ids"].is_array() ||
        one["prompt_ids"].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": expected a list of token ids"));
    }
    TokenIds& prompt = prompts.emplace_back();
    for (const nlohmann::json& id : one["prompt_ids"]) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": expected token ids in [0, 2^31)"));
      }
      prompt.push_back(static_cast<TokenId>(id.get<uint64_t>()));
    }
  }
  if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat(file, ": no cases"));
  return prompts;
}

absl::StatusOr<std::vector<RoundsRow>> MeasureRounds(const RoundsOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<TokenIds> prompts, LoadPromptIds(options.prompts));
  TANDEM_ASSIGN_OR_RETURN(const WeightType weight_type, ParseWeightType(options.weight_dtype));
  TANDEM_ASSIGN_OR_RETURN(const LoadedModel target, LoadModel(options.target, options.threads));
  for (const TokenIds& prompt : prompts) {
    for (TokenId token : prompt) {
      if (token >= target.engine->config().vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat(options.prompts, ": token ", token, ", expected [0, ",
                                                       target.engine->config().vocab_size, ")"));
      }
    }
  }
  std::map<OutputKey, TokenIds> outputs;
  std::vector<RoundsRow> rows;
  for (const std::string& folder : options.drafters) {
    TANDEM_ASSIGN_OR_RETURN(const LoadedModel drafter,
                            LoadModel(folder, options.threads, options.target, weight_type));
    DraftLoop::Options vocabularies;
    TANDEM_RETURN_IF_ERROR(BridgeTo(target, drafter, options.text_drafting, &vocabularies));
    for (const float temperature : options.temperatures) {
      for (const RoundsVariant variant :
           {RoundsVariant::kUnseeded, RoundsVariant::kSeeded, RoundsVariant::kCalibrated}) {
        if (variant == RoundsVariant::kUnseeded && temperature == 0.0f) continue;
        RoundsRow row{.drafter = drafter.name, .temperature = temperature, .variant = variant};
        for (const uint32_t nodes : options.nodes) {
          DraftLoop::Options loop_options = LoopOptions(options, nodes, variant);
          loop_options.bridge = vocabularies.bridge;
          loop_options.text = vocabularies.text;
          TANDEM_ASSIGN_OR_RETURN(
              const std::unique_ptr<DraftLoop> loop,
              DraftLoop::Make(loop_options, target.engine.get(), drafter.engine.get(), target.tokenizer));
          TANDEM_ASSIGN_OR_RETURN(row.tokens_per_round.emplace_back(),
                                  TokensPerRound(options, prompts, temperature, *loop, &outputs));
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

std::string RoundsTable(const RoundsOptions& options, const std::vector<RoundsRow>& rows) {
  std::string table = "| drafter | temperature | drafts |";
  for (const uint32_t nodes : options.nodes) absl::StrAppend(&table, " ", nodes, " nodes |");
  absl::StrAppend(&table, "\n| --- | --- | --- |");
  for (size_t i = 0; i < options.nodes.size(); ++i) absl::StrAppend(&table, " --- |");
  absl::StrAppend(&table, "\n");
  for (const RoundsRow& row : rows) {
    absl::StrAppend(&table, "| ", row.drafter, " | ", row.temperature, " | ", NameOf(row.variant), " |");
    for (const double value : row.tokens_per_round) absl::StrAppendFormat(&table, " %.2f |", value);
    absl::StrAppend(&table, "\n");
  }
  return table;
}

void AddRoundsOptions(CLI::App* app, RoundsOptions* options) {
  app->add_option("--target", options->target, "Folder of the target model.")->required();
  app->add_option("--drafter", options->drafters, "Folders of draft models and of the target's draft heads.")
      ->delimiter(',')
      ->required();
  app->add_option("--prompts", options->prompts, "JSON with cases[].prompt_ids, as in tests/golden.")
      ->required();
  app->add_option("--nodes", options->nodes, "Nodes per tree.")
      ->delimiter(',')
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app->add_option("--temperature", options->temperatures, "Temperatures.")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--seeds", options->num_seeds, "Outputs per prompt above temperature 0.")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app->add_option("--max-tokens", options->max_tokens, "Tokens per output.")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--branching", options->branching, "Most children of a tree node.")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app->add_option("--expand-width", options->expand_width,
                  "Most tree nodes that the drafter expands per step, as in tandem-drafter.")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--feature-dtype", options->feature_dtype,
                  "Number format of the hidden states that draft heads read.")
      ->check(CLI::IsMember({"bfloat16", "int8"}))
      ->capture_default_str();
  app->add_option(
         "--weight-dtype", options->weight_dtype,
         "Number format of the drafters' matrices; on a CPU, tandem-drafter keeps 16-bit matrices as int8.")
      ->check(CLI::IsMember({"auto", "bf16", "int8", "int4", "w8a8", "w4a8"}))
      ->capture_default_str();
  app->add_flag("--text-drafting", options->text_drafting,
                "Let drafters with an entirely different vocabulary draft by text.");
  app->add_option("--threads", options->threads, "Threads of each engine.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

int RunRounds(const RoundsOptions& options) {
  const absl::StatusOr<std::vector<RoundsRow>> rows = MeasureRounds(options);
  if (!rows.ok()) {
    std::fprintf(stderr, "tandem-bench: %s\n", rows.status().ToString().c_str());
    return 1;
  }
  std::cout << RoundsTable(options, *rows) << std::flush;
  return 0;
}

}  // namespace tandem::bench

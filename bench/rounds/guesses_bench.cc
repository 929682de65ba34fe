#include "bench/rounds/guesses_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "bench/rounds/loaded_model.h"
#include "bench/serve/prompts.h"
#include "common/base/status_macros.h"
#include "common/engine/block_pool.h"
#include "common/engine/sequence_kv.h"
#include "common/engine/weight_type.h"
#include "common/speculation/target_sampler.h"

namespace tandem::bench {
namespace {

constexpr uint32_t kRowsAtATime = 64;

// One sequence on an engine of its own.
class Reader {
 public:
  explicit Reader(Engine* engine)
      : engine_(engine), pool_({.num_blocks = engine->num_blocks()}), kv_(&pool_, /*salt=*/0) {}

  absl::Status Start(const TokenIds& tokens) {
    kv_.Start(tokens);
    return kv_.Reserve(static_cast<uint32_t>(tokens.size()));
  }
  absl::Status Append(TokenId token) {
    kv_.Append({&token, 1});
    return kv_.Reserve(static_cast<uint32_t>(kv_.tokens().size()));
  }
  // Computes the tokens up to `end`. The logits after each of those from `first_logits` on are then at
  // LogitsAfter, until the next call.
  absl::Status Read(uint32_t end, uint32_t first_logits) {
    const size_t width = engine_->config().logits_size();
    first_logits_ = std::max(first_logits, read_);
    logits_.resize((end - first_logits_) * width);
    while (read_ < end) {
      std::vector<StepRow> rows;
      const uint32_t most = std::min({kRowsAtATime, engine_->max_rows(), end - read_});
      for (uint32_t i = 0; i < most; ++i, ++read_) {
        rows.push_back({.token = kv_.tokens()[read_], .context = kv_.CommittedRow(read_)});
        if (read_ >= first_logits_) rows.back().logits = &logits_[(read_ - first_logits_) * width];
      }
      TANDEM_RETURN_IF_ERROR(engine_->Step(rows));
    }
    return absl::OkStatus();
  }
  absl::Span<float> LogitsAfter(uint32_t position) {
    const size_t width = engine_->config().logits_size();
    return absl::MakeSpan(logits_).subspan((position - first_logits_) * width, width);
  }

 private:
  Engine* const engine_;
  BlockPool pool_;
  SequenceKv kv_;
  uint32_t read_ = 0;  // Tokens that are computed.
  uint32_t first_logits_ = 0;
  std::vector<float> logits_;
};

// Of a NAME=VALUE.
absl::StatusOr<std::pair<std::string, std::string>> Named(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--drafter ", text, ": expected NAME=FOLDER"));
  }
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

nlohmann::json PositionsJson(const std::vector<GuessedPosition>& positions) {
  nlohmann::json list = nlohmann::json::array();
  for (const GuessedPosition& position : positions) {
    nlohmann::json entry = {position.right};
    // Four digits say enough, and files stay small. What rounds to nothing is left out with all after it.
    for (const float probability : position.probabilities) {
      const double rounded = std::floor(static_cast<double>(probability) * 1e4) / 1e4;
      if (rounded <= 0.0) break;
      entry.push_back(rounded);
    }
    if (entry.size() == 1) entry.push_back(1e-4);
    if (position.right >= entry.size()) entry[0] = 0;
    list.push_back(std::move(entry));
  }
  return list;
}

// An output of the target, and what it was asked for.
struct KnownOutput {
  std::string kind;
  SamplingParameters sampling;
  TokenIds prompt;
  TokenIds output;
};

absl::StatusOr<std::vector<KnownOutput>> Outputs(const GuessesOptions& options, const LoadedModel& target) {
  std::vector<KnownOutput> outputs;
  for (const std::string& file : options.prompts) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, LoadPrompts(file));
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (options.num_prompts > 0 && i >= options.num_prompts) break;
      TANDEM_ASSIGN_OR_RETURN(TokenIds tokens, target.tokenizer->Encode(prompts[i].text, {}));
      if (tokens.size() > options.max_prompt_tokens) tokens.resize(options.max_prompt_tokens);
      for (const float temperature : options.temperatures) {
        KnownOutput known{.kind = prompts[i].dataset,
                          .sampling = {.temperature = temperature, .seed = options.seed},
                          .prompt = tokens,
                          .output = {}};
        TANDEM_ASSIGN_OR_RETURN(known.output, GenerateAlone(target.engine.get(), known.prompt, known.sampling,
                                                            options.max_tokens));
        outputs.push_back(std::move(known));
      }
    }
  }
  return outputs;
}

}  // namespace

absl::StatusOr<TokenIds> GenerateAlone(Engine* engine, const TokenIds& prompt,
                                       const SamplingParameters& sampling, uint32_t max_tokens) {
  if (prompt.empty()) return absl::InvalidArgumentError("an empty prompt, expected at least one token");
  Reader reader(engine);
  TANDEM_RETURN_IF_ERROR(reader.Start(prompt));
  TargetSampler sampler(sampling, engine->config().vocab_size, prompt);
  TokenIds output;
  auto length = static_cast<uint32_t>(prompt.size());
  while (output.size() < max_tokens) {
    TANDEM_RETURN_IF_ERROR(reader.Read(length, length - 1));
    const TokenId token = sampler.Choose(reader.LogitsAfter(length - 1), length).token;
    sampler.Append(token);
    output.push_back(token);
    TANDEM_RETURN_IF_ERROR(reader.Append(token));
    ++length;
  }
  return output;
}

absl::StatusOr<std::vector<GuessedPosition>> GuessAlong(Engine* drafter, const TokenIds& prompt,
                                                        const TokenIds& output,
                                                        const SamplingParameters& sampling) {
  if (drafter->config().head.has_value()) {
    return absl::InvalidArgumentError("a draft head reads its target's states, expected a draft model");
  }
  Reader reader(drafter);
  TokenIds all = prompt;
  all.insert(all.end(), output.begin(), output.end());
  TANDEM_RETURN_IF_ERROR(reader.Start(all));
  const auto first = static_cast<uint32_t>(prompt.size());
  TANDEM_RETURN_IF_ERROR(reader.Read(static_cast<uint32_t>(all.size()), first - 1));
  TargetSampler sampler(sampling, drafter->config().vocab_size, prompt);
  std::vector<GuessedPosition> positions;
  for (uint32_t i = 0; i < output.size(); ++i) {
    GuessedPosition position;
    for (const TokenProbability& guess :
         sampler.Guess(reader.LogitsAfter(first + i - 1), first + i, kMostGuessed)) {
      position.probabilities.push_back(guess.probability);
      if (guess.token == output[i]) position.right = static_cast<uint32_t>(position.probabilities.size());
    }
    sampler.Append(output[i]);
    positions.push_back(std::move(position));
  }
  return positions;
}

absl::StatusOr<nlohmann::json> RecordGuesses(const GuessesOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const LoadedModel target, LoadModel(options.target, options.threads));
  TANDEM_ASSIGN_OR_RETURN(const WeightType weight_type, ParseWeightType(options.weight_dtype));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<KnownOutput> outputs, Outputs(options, target));
  nlohmann::json report = {{"format", 1},
                           {"tool", "tandem-bench guesses"},
                           {"target", target.name},
                           {"guesses", nlohmann::json::array()}};
  for (const std::string& drafter : options.drafters) {
    TANDEM_ASSIGN_OR_RETURN(const auto named, Named(drafter));
    TANDEM_ASSIGN_OR_RETURN(const LoadedModel model,
                            LoadModel(named.second, options.threads, options.target, weight_type));
    if (model.VocabularyFingerprint() != target.VocabularyFingerprint()) {
      return absl::FailedPreconditionError(
          absl::StrCat(named.second, ": its vocabulary differs from that of ", options.target));
    }
    for (const KnownOutput& known : outputs) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<GuessedPosition> positions,
                              GuessAlong(model.engine.get(), known.prompt, known.output, known.sampling));
      nlohmann::json& list = report["guesses"];
      const auto same = std::find_if(list.begin(), list.end(), [&](const nlohmann::json& entry) {
        return entry["kind"] == known.kind && entry["drafter"] == named.first &&
               entry["temperature"] == known.sampling.temperature;
      });
      if (same != list.end()) {
        (*same)["outputs"].push_back(PositionsJson(positions));
        (*same)["prompt_tokens"].push_back(known.prompt.size());
        continue;
      }
      list.push_back({{"kind", known.kind},
                      {"drafter", named.first},
                      {"temperature", known.sampling.temperature},
                      {"prompt_tokens", {known.prompt.size()}},
                      {"outputs", {PositionsJson(positions)}}});
    }
  }
  return report;
}

void AddGuessesOptions(CLI::App* app, GuessesOptions* options) {
  app->add_option("--target", options->target, "Folder of the target model.")->required();
  app->add_option("--drafter", options->drafters, "NAME=FOLDER of a draft model (repeatable).")->required();
  app->add_option("--prompts", options->prompts, "NAME=FILE, as in `tandem-bench serve` (repeatable).")
      ->required();
  app->add_option("--num-prompts", options->num_prompts, "Prompts of each file; 0: all.")
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
  app->add_option("--seed", options->seed, "Seed of every request.")->capture_default_str();
  app->add_option(
         "--weight-dtype", options->weight_dtype,
         "Number format of the drafters' matrices; on a CPU, tandem-drafter keeps 16-bit matrices as int8.")
      ->check(CLI::IsMember({"auto", "bf16", "int8", "int4", "w8a8", "w4a8"}))
      ->capture_default_str();
  app->add_option("--threads", options->threads, "Threads of each engine.")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--json", options->json, "JSON file to write.")->required();
}

int RunGuesses(const GuessesOptions& options) {
  const absl::StatusOr<nlohmann::json> report = RecordGuesses(options);
  if (!report.ok()) {
    std::fprintf(stderr, "tandem-bench: %s\n", report.status().ToString().c_str());
    return 1;
  }
  std::ofstream out(options.json);
  out << report->dump() << "\n";
  out.flush();
  if (!out) {
    std::fprintf(stderr, "tandem-bench: cannot write %s\n", options.json.c_str());
    return 1;
  }
  std::printf("| kind | drafter | temperature | positions | 1st guess right | one of %zu |\n", kMostGuessed);
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  for (const nlohmann::json& entry : (*report)["guesses"]) {
    size_t positions = 0;
    size_t first = 0;
    size_t any = 0;
    for (const nlohmann::json& output : entry["outputs"]) {
      for (const nlohmann::json& position : output) {
        ++positions;
        first += position[0] == 1 ? 1 : 0;
        any += position[0] != 0 ? 1 : 0;
      }
    }
    const auto share = [&](size_t part) {
      return 100.0 * static_cast<double>(part) / static_cast<double>(positions);
    };
    std::printf("| %s | %s | %g | %zu | %.1f %% | %.1f %% |\n", entry["kind"].get<std::string>().c_str(),
                entry["drafter"].get<std::string>().c_str(), entry["temperature"].get<double>(), positions,
                share(first), share(any));
  }
  return 0;
}

}  // namespace tandem::bench

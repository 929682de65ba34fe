#include "bench/acceptance/acceptance_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "bench/rounds/draft_loop.h"
#include "bench/rounds/loaded_model.h"
#include "bench/serve/prompts.h"
#include "common/base/status_macros.h"
#include "common/engine/block_pool.h"
#include "common/engine/sequence_kv.h"
#include "router/models/served_model.h"

namespace tandem::bench {
namespace {

constexpr uint32_t kRowsOfStep = 64;
// Prompts are cut, not refused.
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

absl::StatusOr<TokenIds> Encode(const router::PromptEncoder& encoder, const Prompt& prompt, bool chat) {
  if (!chat && !prompt.chat) return encoder.EncodeText(prompt.text, kNoLimit, /*plain=*/false);
  v1::ChatPrompt messages;
  v1::ChatMessage& message = *messages.add_messages();
  message.set_role("user");
  message.set_content(prompt.text);
  return encoder.EncodeChat(messages, kNoLimit);
}

absl::StatusOr<std::vector<ScoredPrompt>> ReadPrompts(const AcceptanceDataOptions& options,
                                                      const router::PromptEncoder& encoder) {
  std::vector<ScoredPrompt> prompts;
  for (const std::string& file : options.prompts) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<Prompt> read, LoadPrompts(file));
    const bool chat = std::count(options.chat.begin(), options.chat.end(), read.front().dataset) > 0;
    const size_t count =
        options.num_prompts == 0 ? read.size() : std::min<size_t>(options.num_prompts, read.size());
    for (size_t i = 0; i < count; ++i) {
      const Prompt& prompt = read[i * read.size() / count];
      TANDEM_ASSIGN_OR_RETURN(TokenIds tokens, Encode(encoder, prompt, chat));
      if (tokens.size() > options.max_prompt_tokens) tokens.resize(options.max_prompt_tokens);
      prompts.push_back({.dataset = prompt.dataset, .tokens = std::move(tokens), .scores = {}});
    }
  }
  return prompts;
}

// -ln softmax(logits)[token].
float Nats(absl::Span<const float> logits, TokenId token) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const float logit : logits) total += std::exp(logit - peak);
  return static_cast<float>(std::log(total) + peak - logits[static_cast<size_t>(token)]);
}

// One pass over prompt and output: every row's logits against the token that follows.
absl::StatusOr<ScoredPrompt::Score> Score(Engine& engine, const TokenIds& prompt, const TokenIds& output) {
  TokenIds tokens = prompt;
  tokens.insert(tokens.end(), output.begin(), output.end());
  const auto length = static_cast<uint32_t>(tokens.size());
  if (length > static_cast<uint32_t>(engine.config().max_context)) {
    return absl::InvalidArgumentError(absl::StrCat("--max-prompt-tokens and --max-tokens: ", length,
                                                   " tokens, and a drafter has a context of ",
                                                   engine.config().max_context));
  }
  BlockPool pool({.num_blocks = engine.num_blocks()});
  SequenceKv kv(&pool, /*salt=*/0);
  kv.Append(tokens);
  TANDEM_RETURN_IF_ERROR(kv.Reserve(length));
  const auto vocab_size = static_cast<size_t>(engine.config().vocab_size);
  const uint32_t step = std::min(kRowsOfStep, engine.max_rows());
  std::vector<float> logits(step * vocab_size);
  ScoredPrompt::Score score{.output_tokens = static_cast<uint32_t>(output.size())};
  uint32_t right = 0;
  for (uint32_t first = 0; first + 1 < length; first += step) {
    std::vector<StepRow> rows;
    for (uint32_t at = first; at < std::min(first + step, length - 1); ++at) {
      rows.push_back({.token = tokens[at],
                      .context = kv.CommittedRow(at),
                      .logits = &logits[(at - first) * vocab_size]});
    }
    TANDEM_RETURN_IF_ERROR(engine.Step(rows));
    for (size_t i = 0; i < rows.size(); ++i) {
      const absl::Span<const float> row(&logits[i * vocab_size], vocab_size);
      const TokenId next = tokens[first + i + 1];
      if (first + i + 1 < prompt.size()) {
        score.prompt_nats.push_back(Nats(row, next));
      } else {
        right += std::max_element(row.begin(), row.end()) - row.begin() == next ? 1 : 0;
      }
    }
  }
  score.acceptance = output.empty() ? 0.0 : static_cast<double>(right) / static_cast<double>(output.size());
  return score;
}

// At temperature 0. What the target says does not depend on who drafts for it.
absl::StatusOr<std::vector<TokenIds>> Generate(const LoadedModel& target, const LoadedModel& drafter,
                                               const std::vector<ScoredPrompt>& prompts,
                                               uint32_t max_tokens) {
  const DraftLoop::Options options{
      .limits = {.max_depth = 4, .nodes_per_level = 2, .max_nodes = 8, .lookahead = 0}};
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<DraftLoop> loop,
      DraftLoop::Make(options, target.engine.get(), drafter.engine.get(), target.tokenizer));
  std::vector<TokenIds> outputs;
  for (const ScoredPrompt& prompt : prompts) {
    TANDEM_ASSIGN_OR_RETURN(DraftLoop::Output output,
                            loop->Generate(prompt.tokens, {.temperature = 0.0F}, max_tokens));
    outputs.push_back(std::move(output.tokens));
  }
  return outputs;
}

}  // namespace

double ScoredPrompt::Score::NatsPerToken() const {
  if (prompt_nats.empty()) return 0.0;
  return std::accumulate(prompt_nats.begin(), prompt_nats.end(), 0.0) /
         static_cast<double>(prompt_nats.size());
}

absl::StatusOr<AcceptanceData> MeasureAcceptance(const AcceptanceDataOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const LoadedModel target, LoadModel(options.target, options.threads));
  TANDEM_ASSIGN_OR_RETURN(const router::ServedModel served,
                          router::LoadServedModel("target", options.target));
  AcceptanceData data{.vocab_size = static_cast<uint32_t>(target.engine->config().vocab_size)};
  TANDEM_ASSIGN_OR_RETURN(data.prompts, ReadPrompts(options, *served.encoder));
  std::vector<TokenIds> outputs;
  for (const std::string& folder : options.drafters) {
    TANDEM_ASSIGN_OR_RETURN(const LoadedModel drafter, LoadModel(folder, options.threads));
    if (drafter.VocabularyFingerprint() != target.VocabularyFingerprint()) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder, ": its vocabulary differs from that of ", options.target));
    }
    data.drafters.push_back(drafter.name);
    if (outputs.empty()) {
      TANDEM_ASSIGN_OR_RETURN(outputs, Generate(target, drafter, data.prompts, options.max_tokens));
    }
    for (size_t i = 0; i < data.prompts.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(ScoredPrompt::Score score,
                              Score(*drafter.engine, data.prompts[i].tokens, outputs[i]));
      data.prompts[i].scores.push_back(std::move(score));
    }
  }
  return data;
}

}  // namespace tandem::bench

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"
#include "common/engine/sequence_kv.h"
#include "common/speculation/sampling_parameters.h"
#include "common/speculation/target_sampler.h"
#include "drafter/drafting/draft_session.h"

namespace tandem {

// A score ranks a token among this many guesses.
inline constexpr size_t kScoredGuesses = 8;

// The fields are documented in proto/tandem/v1/drafter.proto.
struct ScoreRequest {
  std::string draft_model;
  uint64_t vocabulary_fingerprint = 0;
  TokenIds tokens;
  uint32_t prompt_length = 0;
  SamplingParameters sampling;
  uint64_t cache_salt = 0;
};

struct ScoreResult {
  std::vector<uint8_t> ranks;  // Of each output token; 1: the first guess; 0: not among the first.
  uint32_t accepted_tokens = 0;
  double prompt_negative_log_likelihood = 0.0;
  uint32_t prompt_tokens = 0;
  bool remembers_outputs = false;
};

// The errors of Drafter.Score for requests that cannot be computed, except NOT_FOUND.
absl::Status CheckScoreRequest(const ScoreRequest& request, const DraftModel& model, uint32_t max_tokens);

// Computes one score: which tokens of an output would have been accepted from a drafter with chains of one
// token, and how well its model predicts the prompt (DESIGN section 5).
//
// A model makes one pass over the tokens, in chunks, and compares each row's logits to the next token. At a
// temperature above 0 the guesses carry the target's noise (law 2), as in drafting. Tokens beyond the model's
// context are scored in windows that move like a DraftSession's. Sources replay the output token by token,
// without learning from it. With both, guesses are merged, and the best by merged score is the first guess.
//
// The job uses its own keys and values. It does not take them from the prefix cache, because it needs every
// row's logits, and does not add them to it.
//
//   [ Reserve -> AddRows -> the engine's pass -> OnStep ]* -> done     with an engine
//   [ Replay ]* -> done                                               without
//
// Logic without I/O. Used only by the thread that owns the engine.
class ScoreJob {
 public:
  // The request must be checked. `model` outlives the job.
  ScoreJob(const DraftModel* model, ScoreRequest request);

  const DraftModel& model() const { return *model_; }
  bool done() const { return next_target_ >= request_.tokens.size(); }
  // Only when done.
  ScoreResult TakeResult() { return std::move(result_); }

  // CanReserve: whether Reserve, which takes the memory, would succeed. The pool keeps spare blocks for
  // drafting.
  bool CanReserve() const;
  bool Reserve();
  // Frees the memory; results so far stay.
  void Suspend();
  void ListBlocks(std::vector<BlockId>* held) const { kv_.ListBlocks(held); }

  // Adds up to `max_rows` (> 0) rows, fewer if their logits would need too much memory.
  void AddRows(uint32_t max_rows, StepBatch* batch);
  // Internal if logits are not finite.
  absl::Status OnStep();
  // Replays up to `max_tokens` output tokens.
  void Replay(uint32_t max_tokens);

 private:
  struct Row {
    uint32_t target = 0;  // Index of the token that follows.
    float* logits = nullptr;
  };

  bool has_engine() const { return model_->engine != nullptr; }
  uint32_t NumBlocksMissing() const;
  uint32_t NumBlocksToSpare() const;
  void MoveWindow(uint32_t target);
  absl::Status ScorePrompt(const Row& row);
  absl::Status ScoreOutput(const Row& row);
  void Rank(absl::Span<const TokenProbability> guesses, TokenId token);
  TokenProbabilities MergeWithSources(TokenProbabilities guesses) const;
  void Observe(TokenId token);

  const DraftModel* model_;
  const ScoreRequest request_;
  const VocabularyBridge* const bridge_;  // Null: the ids are the draft model's.
  ScoreResult result_;
  std::optional<TargetSampler> sampler_;  // With an engine.
  std::vector<std::unique_ptr<DraftSource>> sources_;

  // With an engine: tokens [window_start_, window_end_) are forwarded, of which those before next_row_ are.
  SequenceKv kv_;
  uint32_t window_start_ = 0;
  uint32_t window_end_ = 0;
  uint32_t next_row_ = 0;
  uint32_t next_target_ = 0;  // The first token that is not scored.
  std::vector<Row> rows_;     // Of the step under way whose logits are wanted.
  uint32_t row_after_step_ = 0;
};

}  // namespace tandem

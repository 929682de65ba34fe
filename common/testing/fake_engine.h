#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"
#include "common/model/config/model_config.h"

namespace tandem {

// An engine without a model, for tests and simulations of code that uses an engine.
//
// A slot holds 64 bits in place of keys and values: a hash of the row's token and of the values in all slots
// before it in the row's context. The row's logits are a hash of that. So, as with a real model, they depend
// only on the tokens of the context as long as every slot holds what its reader expects, and any mistake with
// slots, blocks, positions or copies changes them.
//
// Two engines with the same options compute the same. One can be made to agree with another, as a drafter
// agrees with its target: see Options::agreement.
//
// Thread rule: that of Engine.
class FakeEngine final : public Engine {
 public:
  struct Options {
    int32_t vocab_size = 64;
    int32_t max_context = 4096;
    uint32_t num_blocks = 256;
    uint32_t max_rows = 512;
    uint64_t seed = 1;
    // Logits are this times independent standard exponential variates: the gap between the best and the
    // second-best token averages `sharpness`. Never changes the order of tokens.
    float sharpness = 3.0f;
    // With this probability, decided by a hash of the context, the best token is that of an engine with seed
    // `agree_with_seed`, the same vocabulary and no agreement of its own; otherwise it is another one.
    // Negative: left to chance. Needs a vocabulary of at least two tokens.
    double agreement = -1.0;
    uint64_t agree_with_seed = 0;
    // Whether it makes seeded choices (reference_choice.h).
    bool chooses = false;
    bool has_features = true;
    // It holds adapters 1 to this from the start; each computes what no other does.
    AdapterId num_adapters = 0;
  };
  explicit FakeEngine(const Options& options);

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return options_.num_blocks; }
  uint32_t max_rows() const override { return options_.max_rows; }
  bool chooses() const override { return options_.chooses; }
  bool has_features() const override { return options_.has_features; }

  // Besides what Engine says, InvalidArgument when a context names a slot that was never written, when two
  // rows write the same slot, or when a choice's counts name a token twice.
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override;

  // Of every state: a hash of the row's and of which state it is, as numbers in [-1, 1).
  static constexpr int32_t kHiddenSize = 4;
  static constexpr int32_t kNumLayers = 6;

  // What Step would give for the last of `tokens` if all of them were computed with the adapter; at least one
  // token. [vocab_size]
  std::vector<float> ReferenceLogits(absl::Span<const TokenId> tokens, AdapterId adapter = kNoAdapter) const;
  // The first of the most likely ones after `tokens`.
  TokenId ReferenceChoice(absl::Span<const TokenId> tokens, AdapterId adapter = kNoAdapter) const;
  // States likewise. [layers and the final norm's, kHiddenSize]
  std::vector<float> ReferenceFeatures(absl::Span<const TokenId> tokens, absl::Span<const uint32_t> layers,
                                       bool final_norm) const;
  // The state after the final norm. [kHiddenSize]
  std::vector<float> ReferenceState(absl::Span<const TokenId> tokens) const;

  // The next Step returns `status` and writes nothing.
  void FailNextStep(absl::Status status) { next_failure_ = std::move(status); }

  uint64_t num_steps() const { return num_steps_; }
  uint64_t num_rows() const { return num_rows_; }
  // Rows that asked for logits, and for a choice.
  uint64_t num_logits() const { return num_logits_; }
  uint64_t num_choices() const { return num_choices_; }
  // Rows that asked for features.
  uint64_t num_feature_rows() const { return num_feature_rows_; }

 private:
  absl::Status CheckRow(const StepRow& row) const;
  absl::Status CheckChoice(const StepRow& row) const;
  absl::Status CheckFeatures(const FeatureRequest& request) const;
  SlotId Slot(const RowContext& context, uint32_t position) const;
  static uint64_t StateAfter(absl::Span<const TokenId> tokens, AdapterId adapter = kNoAdapter);
  static void WriteFeatures(uint64_t state, const FeatureRequest& request);
  void WriteLogits(uint64_t state, absl::Span<float> logits) const;

  const Options options_;
  ModelConfig config_;
  std::vector<std::optional<uint64_t>> slots_;
  absl::Status next_failure_;
  uint64_t num_steps_ = 0;
  uint64_t num_rows_ = 0;
  uint64_t num_logits_ = 0;
  uint64_t num_choices_ = 0;
  uint64_t num_feature_rows_ = 0;
};

}  // namespace tandem

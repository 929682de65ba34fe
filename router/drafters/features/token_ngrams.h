#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "router/drafters/features/prompt_perplexity.h"
#include "tandem/v1/routing.pb.h"

namespace tandem::router {

// A trigram model over tokens with interpolated Kneser-Ney smoothing (Chen and Goodman, "An Empirical Study
// of Smoothing Techniques for Language Modeling", 1998, section 3), stored in backoff form: one lookup for a
// trigram that occurred in training, at most five for one that did not. Immutable, so thread-safe.
class TokenNgrams final : public PromptPerplexity {
 public:
  // Training reads this many tokens at most, and a state file may not hold more n-grams.
  static constexpr size_t kMaxTrainingTokens = size_t{1} << 20;

  // An untrained model: all `vocab_size` tokens (at least 1) are equally likely.
  explicit TokenNgrams(uint32_t vocab_size);
  // Trained on `texts`, each on its own.
  static TokenNgrams Train(absl::Span<const absl::Span<const TokenId>> texts, uint32_t vocab_size);

  double NatsPerToken(absl::Span<const TokenId> tokens) const override;
  // Natural logarithm of p(token | the two before it). Before a text's first token stands kStart, twice.
  float LogProbability(TokenId before_last, TokenId last, TokenId token) const;
  static constexpr TokenId kStart = -1;

  void Save(v1::TokenNgramsState* state) const;
  // InvalidArgument names the field of a state that Save cannot have written.
  static absl::StatusOr<TokenNgrams> Load(const v1::TokenNgramsState& state);

 private:
  struct Entry {
    float log_probability = 0.0f;
    float backoff = 0.0f;  // Logarithm of the weight of shorter contexts after this one.
  };
  TokenNgrams() = default;

  float unknown_ = 0.0f;  // Log probability of a token that never occurred.
  absl::flat_hash_map<uint64_t, Entry> unigrams_;
  absl::flat_hash_map<uint64_t, Entry> bigrams_;
  absl::flat_hash_map<uint64_t, float> trigrams_;
};

}  // namespace tandem::router

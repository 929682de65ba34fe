#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/gumbel.h"

namespace tandem {

// What choosing does with every logit of a vocabulary, kTokenBlock tokens at a time; by AVX-512 where the
// machine has it, with the same results.

// The smallest gap at which a token weighs nothing (TokenWeight), or a little above it.
inline constexpr float kWeightlessGap = 28.5f;

// The greatest logit of each block, [(size + 63) / 64]. NaN never counts, and +infinity is the largest finite
// number; -infinity where a block has nothing else.
void FindBlockPeaks(absl::Span<const float> logits, absl::Span<float> peaks);

// The place in block `index` of its first logit that is `peak`, which is the block's peak, above -infinity.
size_t FindInBlock(absl::Span<const float> logits, size_t index, float peak);

// How far a logit is below the best one, after temperature: (best - logit) / temperature, where NaN and
// -infinity give infinity, and +infinity counts as the largest finite number.
struct GapScale {
  float best = 0.0f;
  float temperature = 1.0f;
};
float GapOf(const GapScale& scale, float logit);

// Gaps of a block; infinity for those beyond the cut, which keeps smaller gaps than `cut_gap`, and equal ones
// up to the token in place `last` of the block.
void LoadGaps(const GapScale& scale, float cut_gap, int32_t last, const float (&logits)[kTokenBlock],
              float (&gaps)[kTokenBlock]);

// Which of a block's gaps are at most `bound`: bit i for gaps[i].
uint64_t FindUpTo(float bound, const float (&gaps)[kTokenBlock]);

// Tokens whose gaps are small, in the order of their ids, and what all others weigh together.
struct NearTokens {
  explicit NearTokens(size_t vocab_size);

  size_t count = 0;
  // [count], with room for every token and a block more.
  std::unique_ptr<float[]> gaps;
  std::unique_ptr<TokenId[]> tokens;
  // The weight of all others, at least and at most.
  uint64_t least_rest = 0;
  uint64_t most_rest = 0;
};

// Relative error of the bound below, and of the weight of the rest. The latter may besides be off by one unit
// for each token.
inline constexpr double kBoundError = 1e-6;
inline constexpr double kRestError = 8e-6;

// Adds tokens with gaps up to `bound` to `near`, which is empty; tokens whose gaps are about that are near or
// not.
void CollectNearTokens(const GapScale& scale, absl::Span<const float> logits, float bound, NearTokens& near);

}  // namespace tandem

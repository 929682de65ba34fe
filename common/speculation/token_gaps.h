#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/gumbel.h"
#include "common/speculation/token_blocks.h"

namespace tandem {

// The most likely token; of equal ones the one with the lowest id.
struct PeakLogit {
  float logit = 0.0f;  // -infinity when no token has a chance.
  TokenId token = 0;
  absl::InlinedVector<float, 4> of_blocks;  // The greatest logit of each kTokenBlock tokens.
};

// NaN counts as -infinity, and +infinity as the largest finite number.
PeakLogit FindPeak(absl::Span<const float> logits);

// Orders tokens by how far their scaled logits are below the best one: gap = (best - logit) / temperature.
// The most likely token has gap 0, exp(-gap) is the probability relative to it, and an infinite gap means
// probability 0. Every cut (top-k, top-p, min-p) keeps a prefix of the order (gap, token id), and at least
// the first token.
//
// No pass sorts the vocabulary. Blocks of tokens whose smallest gap rules them out are skipped, gaps are
// computed where they are needed, and a cut is a limit that is checked then. Noise costs one hash for
// every token that could win with it; logarithms are computed only for the few that come near.
class TokenGaps {
 public:
  // `logits` must stay as they are while this is used. `peak` is FindPeak(logits), with a finite logit;
  // `temperature` > 0.
  TokenGaps(absl::Span<const float> logits, const PeakLogit& peak, float temperature);

  float gap(TokenId token) const;
  // The sum of TokenWeight over all tokens: at least 2^40, what the best one weighs.
  uint64_t TotalWeight() const;
  // TokenWeight of every token. [vocab_size]
  std::vector<double> Weights() const;
  struct LikelyToken {
    TokenId token = 0;
    float gap = 0.0f;
  };
  using LikelyTokens = absl::InlinedVector<LikelyToken, 8>;
  // At most `count` tokens with finite gaps, most likely first.
  LikelyTokens MostLikely(size_t count) const;

  // Keep the `count` most likely tokens, `count` > 0.
  void KeepTopK(uint32_t count);
  // Keep the smallest number of most likely tokens whose share of the weight left reaches `top_p`, in (0, 1].
  void KeepTopP(float top_p);
  // Keep tokens at least `min_p` times as likely as the best one; `min_p` in (0, 1].
  void KeepMinP(float min_p);

  // argmax of G(seed, position, token) - gap over the tokens left, the lower id first.
  TokenId DrawWithNoise(uint64_t seed, uint32_t position) const;

  struct NoisyToken {
    TokenId token = 0;
    double score = 0.0;  // G(seed, position, token) - gap.
  };
  // The `count` (> 0) tokens with the highest scores, best first; DrawWithNoise gives the first of them.
  // Those that trail by so much that they do not matter may be missing.
  std::vector<NoisyToken> BestWithNoise(uint64_t seed, uint32_t position, size_t count) const;

 private:
  // Tokens up to this place in the order (gap, id) are kept.
  struct Cut {
    float gap;
    TokenId last_token;
  };

  static Cut CutAt(uint64_t key) {
    return {std::bit_cast<float>(static_cast<uint32_t>(key >> 32)), static_cast<TokenId>(key & 0xffffffff)};
  }
  size_t num_blocks() const { return minima_.size(); }
  // The smallest gap of a block, or a smaller one where tokens were cut off; infinity without any.
  float MinimumOf(size_t index) const { return minima_[index] <= cut_.gap ? minima_[index] : kNone; }
  // Gaps of the tokens left, infinity for others and beyond the last token.
  void LoadBlock(size_t index, float (&block)[64]) const;
  // A gap that at least `count` tokens do not exceed, or the largest finite number.
  float BoundOfCount(uint64_t count) const;
  Cut FindCutOfCount(uint64_t count) const;
  // About how great the gaps of the most likely tokens with a share `top_p` of the weight are, or a little
  // more.
  float EstimateBoundOfShare(float top_p) const;
  // The remaining tokens with gaps up to `bound`, exactly; and the weight of the others if requested,
  // otherwise 0.
  NearTokens FindNear(float bound, bool weigh_rest) const;
  // Calls `contender` with the score of each token of a block that may reach `score`, which may rise
  // meanwhile, and of some that do not.
  template <typename F>
  void ForContenders(const NoiseKey& key, size_t index, const double& score, F contender) const;
  // Keeps what both this and earlier cuts keep.
  void Apply(const Cut& cut);

  static constexpr float kNone = std::numeric_limits<float>::infinity();
  static constexpr Cut kEverything = {std::numeric_limits<float>::max(), std::numeric_limits<TokenId>::max()};

  absl::Span<const float> logits_;
  GapScale scale_;
  TokenId peak_token_;
  Cut cut_ = kEverything;
  absl::InlinedVector<float, kTokenBlock> minima_;  // The smallest gap of each block, before any cut.
};

}  // namespace tandem

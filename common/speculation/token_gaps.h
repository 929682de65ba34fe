#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

// The most likely token; of equal ones the one with the lowest id.
struct PeakLogit {
  float logit = 0.0f;  // -infinity when no token has a chance.
  TokenId token = 0;
};

// NaN counts as -infinity, and +infinity as the largest finite number.
PeakLogit FindPeak(absl::Span<const float> logits);

// Tokens by how far their scaled logits are below the best one's: gap = (best - logit) / temperature, so that
// 0 is the most likely, exp(-gap) the probability relative to it, and infinity no chance. Every cut keeps a
// beginning of the order (gap, token id), and always the first token.
//
// No pass sorts the vocabulary: a histogram finds where a cut falls, and blocks of tokens whose smallest gap
// rules them out are skipped.
class TokenGaps {
 public:
  // `logits` is overwritten with the gaps and must outlive this. `peak` is FindPeak(logits), with a finite
  // logit; `temperature` > 0.
  TokenGaps(absl::Span<float> logits, const PeakLogit& peak, float temperature);

  float gap(TokenId token) const { return gaps_[token]; }
  // The sum of TokenWeight over all tokens: at least 2^40, what the best one weighs.
  uint64_t TotalWeight() const;
  // TokenWeight of every token. [vocab_size]
  std::vector<double> Weights() const;
  // At most `count` tokens with finite gaps, most likely first.
  std::vector<TokenId> MostLikely(size_t count) const;

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

  static constexpr int kNumBuckets = 1024;
  // By bucket of gaps 1/32 wide, the last one open.
  using Histogram = std::array<uint64_t, kNumBuckets>;

  static uint64_t Key(float gap, TokenId token);
  size_t num_blocks() const { return minima_.size(); }
  void LoadBlock(size_t index, float (&block)[64]) const;
  // A gap that at least `count` tokens do not exceed, or the largest finite number.
  float BoundOfCount(uint64_t count) const;
  // Sums of what tokens with gaps <= `bound` measure, each its weight or 1.
  Histogram Measure(float bound, bool weighted) const;
  // The shortest beginning of the order that measures `target`; with less in all, everything finite.
  Cut FindCut(const Histogram& histogram, uint64_t target, float bound, bool weighted) const;
  Cut FindCutOfCount(uint64_t count) const;
  void Apply(const Cut& cut);

  absl::Span<float> gaps_;
  TokenId peak_token_;
  std::vector<float> minima_;  // The smallest gap of each block.
};

}  // namespace tandem

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/token.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// How far the sum of a draft distribution's probabilities may be from 1.
inline constexpr double kDraftSumTolerance = 1e-3;

// Why `distribution` is none over tokens below `vocab_size`: wrong sizes, tokens that repeat or do not exist,
// probabilities that are not finite and positive, or a sum that is not 1. Empty if it is one.
std::string FindViolation(const DraftDistribution& distribution, int32_t vocab_size);

// A draft distribution q from which tokens are drawn without replacement: the remaining probabilities,
// relative to their sum. The drafter draws with this class and the verifier replays the draws with it, so
// both compute the same numbers.
class RemainingDraft {
 public:
  // `distribution` has no violation, and outlives this.
  explicit RemainingDraft(const DraftDistribution* distribution);

  size_t size() const { return distribution_->tokens.size(); }
  TokenId token(size_t index) const { return distribution_->tokens[index]; }
  // Of the token at `index`; 0 once it has been removed.
  double probability(size_t index) const { return weights_[index] / total_; }
  // 0 for tokens that q does not have, or that have been removed.
  double Probability(TokenId token) const;
  double LargestProbability() const;
  bool empty() const { return total_ <= 0.0; }

  void Remove(TokenId token);
  // The token that `uniform`, in [0, 1), draws. Not when empty.
  TokenId Draw(double uniform) const;

 private:
  const DraftDistribution* distribution_;
  std::vector<double> weights_;
  double total_ = 0.0;
};

}  // namespace tandem

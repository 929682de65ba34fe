#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/rules/draft_distribution.h"
#include "common/speculation/rules/verification_rule.h"

namespace tandem {

// The target's distribution p at one position, and what remains of it after rejected drafts: the residual.
class Residual {
 public:
  // `weights` [vocab_size]: relative probabilities, finite, not negative, with a positive sum.
  explicit Residual(std::vector<double> weights);

  double Probability(TokenId token) const { return weights_[static_cast<size_t>(token)] / total_; }
  // Becomes norm(max(0, scale * p - q)), `scale` in (0, 1]. Where nothing is left, which only rounding can
  // bring about, it stays as it is.
  void Subtract(const RemainingDraft& draft, double scale = 1.0);
  // The token that `uniform`, in [0, 1), draws.
  TokenId Draw(double uniform) const;

 private:
  std::vector<double> weights_;
  double total_;
};

// Accept or resample, over several children of one node (Leviathan et al., "Fast inference from transformers
// via speculative decoding", 2023, for one child; Miao et al., SpecInfer, 2024, and Chen et al., Sequoia,
// 2024, for several, here without replacement). In the order in which they were drawn, a child x is accepted
// with probability min(1, p(x) / q(x)); if it is not, p becomes norm(max(0, p - q)) and q loses x.
//
// Returns the index of the accepted child. With none, the token is drawn from what is left of `target`.
// Either way its distribution is p, if the children were drawn from q, and if whether one is verified was
// settled without regard to which token it is. `uniform(i)`: for child i, in [0, 1), independent of all else.
std::optional<size_t> TestChildren(absl::Span<const DrawnChild> children, RemainingDraft draft,
                                   absl::FunctionRef<double(size_t)> uniform, Residual& target);

// Applies TestChildren at each node of the walk. If a node has no drawn children, the target's seeded
// choice decides, which also has the distribution p.
class RejectionRule final : public VerificationRule {
 public:
  std::vector<VerifiedToken> Verify(const VerifiedRound& round, TargetSampler& sampler) const override;
};

}  // namespace tandem

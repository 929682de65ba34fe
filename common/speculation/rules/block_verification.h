#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/rules/draft_distribution.h"
#include "common/speculation/rules/rejection_rule.h"
#include "common/speculation/rules/verification_rule.h"

namespace tandem {

// One draft of a chain.
struct ChainedDraft {
  TokenId token = 0;
  const DraftDistribution* distribution = nullptr;  // That it was drawn from.
};

struct BlockVerdict {
  size_t num_accepted = 0;
  // What the token after the accepted ones is drawn from. Nothing when all are accepted: then it is the
  // target's own distribution there.
  std::optional<Residual> residual;
};

// Block verification of a chain X_1 .. X_n (Sun et al., "Block verification accelerates speculative
// decoding", 2024, algorithm 2). With w_0 = 1 and w_i = min(1, w_(i-1) p(X_i) / q(X_i)), the first i drafts
// are accepted with probability
//
//   h_i = s / (s + 1 - w_i),  s = sum over x of max(0, w_i p(x) - q(x)),     h_n = w_n,
//
// p and q being those after i drafts; the longest accepted beginning counts, and the token after it is drawn
// from norm(max(0, w_i p - q)). Its output has the target's distribution, and no rule that verifies a chain
// accepts more drafts on average; it accepts at least as many as token by token.
//
// `target(i)`: the weights of p after i drafts (see Residual), asked for once each and in order, i < n.
// `uniform(i)`, 1 <= i <= n: in [0, 1), independent of all else.
BlockVerdict VerifyBlock(absl::Span<const ChainedDraft> chain,
                         absl::FunctionRef<std::vector<double>(size_t)> target,
                         absl::FunctionRef<double(size_t)> uniform);

// Verifies the chain of first draws in the tree, as far as its nodes are verified. Without drawn children,
// the target's seeded choice decides.
class BlockRule final : public VerificationRule {
 public:
  std::vector<VerifiedToken> Verify(const VerifiedRound& round, TargetSampler& sampler) const override;
};

}  // namespace tandem

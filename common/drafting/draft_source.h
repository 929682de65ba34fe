#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/node_index.h"
#include "common/base/token.h"

namespace tandem {

// A node of a proposal: a candidate below another one, or below the last committed token.
struct ProposedNode {
  uint32_t parent = kRootNode;  // Index of an earlier node of the proposal.
  TokenId token = 0;
  float score = 0.0f;  // Estimated probability that it is right, given that its parent is: in (0, 1].

  friend bool operator==(const ProposedNode&, const ProposedNode&) = default;
};

struct ProposalLimits {
  uint32_t depth = 0;
  uint32_t nodes = 0;
  uint32_t branching = 1;
};

// Drafts for one session without a model, from tokens of this session or of earlier ones. Works with any
// vocabulary; token ids only have to be at least 0.
//
//   Start ---> Propose, Observe, Propose, ... ---> Start (a resync)
//   Read, Read, ... ---> Propose, Observe, Propose, ...
//
// Memory is bounded. The work of a call is bounded by a constant per observed token (amortised) and per
// proposed node. No I/O. A source and everything that it shares with other sessions belong to one thread.
class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // All committed tokens, of which `prompt_length` are prompt. A second Start with more tokens after the same
  // ones counts as Observe of the new ones.
  virtual void Start(absl::Span<const TokenId> tokens, uint32_t prompt_length) = 0;
  // Instead of Start: the prompt in parts, before anything is observed.
  virtual void Read(absl::Span<const TokenId> prompt) = 0;
  // Tokens that a round has committed.
  virtual void Observe(absl::Span<const TokenId> committed) = 0;
  // Candidates below the last committed token, by path score, best first. Parents come before children;
  // siblings have distinct tokens, and their scores add up to at most 1. Empty if nothing is known.
  virtual std::vector<ProposedNode> Propose(const ProposalLimits& limits) const = 0;
};

// Two guesses of the same token below the same parent are one. The sources are taken to be right
// independently, so that agreement counts for more than either: 1 - (1 - a)(1 - b).
inline float CombineScores(float a, float b) {
  return std::min(1.0f, a + (1.0f - a) * b);
}

// Folds trees below the same root into one. Scores of duplicates are combined. At most `limits.nodes`, best
// first by path score, no deeper and no wider than the limits.
std::vector<ProposedNode> MergeProposals(absl::Span<const std::vector<ProposedNode>> proposals,
                                         const ProposalLimits& limits);

}  // namespace tandem

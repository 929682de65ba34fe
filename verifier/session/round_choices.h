#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"
#include "common/speculation/candidate_tree.h"
#include "common/speculation/sampling_parameters.h"
#include "common/speculation/target_sampler.h"

namespace tandem {

// The seeded choices that a round asks of an engine that chooses: one after the root and one after every node
// of its tree, whose penalties count the path to the node as well. The walk needs only those on its way;
// which they are is known when they have been made.
class RoundChoices {
 public:
  struct Round {
    const SamplingParameters* sampling = nullptr;
    const TargetSampler* sampler = nullptr;  // Of the tokens up to the root.
    uint32_t position = 0;                   // Of the token after the root.
    absl::Span<const TreeNode> nodes;        // By id, parents before children.
    // What may be chosen after the root and after every node (SeededChoice::allowed); none: anything that the
    // sampler allows.
    absl::Span<const std::vector<uint32_t>> allowed = {};
  };

  // Lets `rows`, those of the root and of the nodes, ask for their choices. They point into this, into
  // `round.sampling` and into `round.allowed`, until the next call.
  void Plan(const Round& round, absl::Span<StepRow> rows);
  // After the step: the choices in the order of the rows. None before the first Plan.
  absl::Span<const TokenId> tokens() const { return tokens_; }

 private:
  void PlanOwnCounts(const Round& round);
  // What may be chosen after row `row`, by the sampler and by the round.
  absl::Span<const uint32_t> AllowedAfter(const Round& round, size_t row);

  std::vector<TokenCount> counts_;
  std::vector<TokenCount> own_counts_;  // Of each node, one after the other.
  std::vector<size_t> own_ends_;
  TokenIds path_;                            // Of PlanOwnCounts, which every round calls.
  std::vector<std::vector<uint32_t>> both_;  // What sampler and round both allow, by row.
  std::vector<SeededChoice> choices_;
  std::vector<TokenId> tokens_;
};

}  // namespace tandem

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"
#include "common/speculation/round_tree.h"
#include "common/speculation/sampling_parameters.h"
#include "common/speculation/target_sampler.h"

namespace tandem {

// The seeded choices that a round requests from an engine that chooses: one after the root and one after
// every node of its tree. Penalties count the path to the node as well. The walk uses only the choices on its
// path, but the path is known only after the choices are made.
class RoundChoices {
 public:
  struct Round {
    const SamplingParameters* sampling = nullptr;
    const TargetSampler* sampler = nullptr;  // Of the tokens up to the root.
    uint32_t position = 0;                   // Of the token after the root.
    absl::Span<const RoundNode> nodes;       // Of a RoundTree.
    // The tokens that may be chosen after the root and after every node (SeededChoice::allowed). Empty: all
    // that the sampler allows.
    absl::Span<const std::vector<uint32_t>> allowed = {};
  };

  // Makes `rows`, those of the root and of the nodes, request their choices. Until the next call, they point
  // into this object, `round.sampling` and `round.allowed`.
  void Plan(const Round& round, absl::Span<StepRow> rows);
  // After the step: the choices, in the order of the rows. Empty before the first Plan.
  absl::Span<const TokenId> tokens() const { return tokens_; }

 private:
  void PlanOwnCounts(const Round& round);
  // The tokens that would complete a banned sequence after `row`.
  TokenIds CompletingAfter(const Round& round, size_t row);
  // The tokens that may be chosen after `row`, by the sampler and by the round.
  absl::Span<const uint32_t> AllowedAfter(const Round& round, size_t row);

  std::vector<TokenCount> counts_;
  std::vector<TokenCount> own_counts_;  // Of each node, one after the other.
  std::vector<size_t> own_ends_;
  TokenIds path_;                           // Kept to reuse its memory.
  std::vector<std::vector<uint32_t>> all_;  // What sampler, sequences and round all allow, by row.
  std::vector<SeededChoice> choices_;
  std::vector<TokenId> tokens_;
};

}  // namespace tandem

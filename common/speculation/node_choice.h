#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/speculation/round_time_model.h"
#include "common/speculation/round_tree.h"

namespace tandem {

// The candidates of one session.
struct ChoiceSession {
  absl::Span<const RoundNode> nodes;  // Of a RoundTree; only parents and path scores count.
  // A candidate, a child of the root, that is verified in order to learn, even if it is not worth its row.
  std::optional<uint32_t> probe;
};

// Costs and yields of the step without the chosen nodes.
struct ChoiceCosts {
  const RoundTimeModel* round_time = nullptr;
  uint32_t context = 0;
  uint32_t fixed_rows = 0;    // Roots, nodes of other policies' sessions.
  uint32_t prompt_rows = 0;   // Of prompts, which have to be computed once, now or later.
  double fixed_tokens = 0.0;  // Those that come without any node: one per session with a round.
  uint32_t most_nodes = UINT32_MAX;
  // Drafting during the step that the next step needs. The step costs the larger of the two times, so rows
  // are free until verification takes longer.
  double hidden_draft_seconds = 0.0;
  // The cost of every round in addition to the step: waiting for drafts, copies, messages.
  double exposed_seconds = 0.0;
};

struct NodeChoice {
  // Per session the chosen candidates' indices, increasing. With every node its parent is chosen.
  std::vector<std::vector<uint32_t>> nodes;
  double expected_tokens = 0.0;
  double seconds = 0.0;
};

// Selects the nodes to verify in one step, over all sessions: the candidates with the highest path
// scores, which are the probabilities of their paths, as many as maximise expected committed tokens per
// second,
//
//   (fixed_tokens + sum of path scores) / (max(b_p(rows), hidden) + exposed).
//
// where rows is fixed_rows plus the number of chosen nodes. A step that also computes prompts takes longer,
// whatever is chosen, and more nodes do not make such steps rarer. There a node must be worth its additional
// time at the rate of steps without prompts:
//
//   tokens - best rate without prompts * seconds with prompts  is greatest.
//
// A step's time depends only on the number of rows, so for each number the most probable candidates are the
// best. A path score is never above the parent's, so this set contains the parents of its nodes: the
// choice is the optimum over all sub-trees. It may be empty. O(n log n) for n candidates.
NodeChoice ChooseNodes(absl::Span<const ChoiceSession> sessions, const ChoiceCosts& costs);

}  // namespace tandem

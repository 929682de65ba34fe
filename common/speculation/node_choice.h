#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/speculation/round_time_model.h"

namespace tandem {

// A candidate, as seen by the choice of nodes to verify.
struct ChoiceNode {
  static constexpr uint32_t kRoot = UINT32_MAX;
  uint32_t parent = kRoot;   // Index into the same session's candidates; before its children.
  double probability = 0.0;  // Calibrated: that it is right if its parent is. In [0, 1].
};

struct ChoiceSession {
  std::vector<ChoiceNode> candidates;
  uint32_t most_nodes = UINT32_MAX;
  // To learn: the candidate, a child of the root, that is verified even if it is not worth its row.
  std::optional<uint32_t> probe;
};

// Costs and yields of the step apart from the chosen nodes.
struct ChoiceCosts {
  const RoundTimeModel* round_time = nullptr;
  uint32_t context = 0;
  uint32_t fixed_rows = 0;    // Roots, nodes of other policies' sessions.
  uint32_t prompt_rows = 0;   // Of prompts, which have to be computed once, now or later.
  double fixed_tokens = 0.0;  // Those that come without any node: one per session with a round.
  uint32_t most_nodes = UINT32_MAX;
  // Drafting that goes on during the step and that the next step needs: the step's cost is the larger of the
  // two, so that rows are free until verification takes longer.
  double hidden_draft_seconds = 0.0;
  // What every round pays besides the step: the wait for drafts, copies, messages.
  double exposed_seconds = 0.0;
};

struct NodeChoice {
  // Per session the chosen candidates' indices, increasing. With every node its parent is chosen.
  std::vector<std::vector<uint32_t>> nodes;
  double expected_tokens = 0.0;
  double seconds = 0.0;
};

// What to verify in one step, over all sessions together: the candidates with the highest path probabilities,
// as many as maximise expected committed tokens per second,
//
//   (fixed_tokens + sum of path probabilities) / (max(b_p(rows), hidden) + exposed).
//
// rows being fixed_rows and those of the chosen nodes. A step that computes prompts as well takes longer,
// whatever is chosen, and making it richer does not make that rarer: there a node has to be worth its further
// time at the rate that steps without prompts would have,
//
//   tokens - best rate without prompts * seconds with prompts  is greatest.
//
// Since a step's time depends on the number of rows alone, for each number the most probable candidates are
// the best, and with a path probability never above the parent's they are closed under parents: the choice is
// the optimum over all sub-trees. None at all is possible. O(n log n) for n candidates.
NodeChoice ChooseNodes(absl::Span<const ChoiceSession> sessions, const ChoiceCosts& costs);

}  // namespace tandem

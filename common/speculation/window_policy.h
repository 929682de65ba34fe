#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/speculation/acceptance_estimate.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/round_time_model.h"

namespace tandem {

// What bounds and shapes the trees of a session.
struct WindowLimits {
  uint32_t max_depth = 8;
  // Nodes a tree of some depth may have: depth times this, at most max_nodes.
  uint32_t nodes_per_level = 2;
  uint32_t max_nodes = 16;
  uint32_t branching = 4;
  // Levels that are drafted ahead while a round is verified; 0 is the synchronous loop.
  uint32_t lookahead = 4;
  TreeShape shape = TreeShape::kBestFirst;

  uint32_t NodesFor(uint32_t depth) const;
  DraftBudget BudgetFor(uint32_t depth) const;
};

// best-first, chain or eagle2. InvalidArgument lists them.
absl::StatusOr<TreeShape> ParseTreeShape(absl::string_view name);
std::vector<std::string> TreeShapeNames();

// What a round would cost now.
struct RoundCosts {
  const RoundTimeModel* round_time = nullptr;
  // Sessions that share a step; each is taken to verify a tree of the same size.
  uint32_t batch = 1;
  // a_q: seconds of drafting, per level, that verification does not hide.
  double draft_seconds_per_level = 0.0;
  WindowLimits limits;

  // b_p(depth): seconds of a verification step with a window of `depth`.
  double VerifySeconds(uint32_t depth) const;
};

// Chooses a session's window, the depth of the next trees, from what became of the last ones (DESIGN section
// 4). One per session; no I/O and no clock.
class WindowPolicy {
 public:
  virtual ~WindowPolicy() = default;

  virtual absl::string_view name() const = 0;
  virtual void Observe(const RoundOutcome& outcome) = 0;
  // In [0, max_depth of the limits]; 0 does not draft.
  virtual uint32_t NextDepth(const RoundCosts& costs) = 0;
};

// A constant window: always the largest (Leviathan et al., 2023).
std::unique_ptr<WindowPolicy> MakeFixedPolicy();

// The depth g that maximises the expected tokens per second (On-the-fly adaptation, method 1, equation 1):
//
//   (1 - A^(g+1)) / ((1 - A) * (g * a_q + b_p(g)))
//
// with A from AcceptanceEstimate. When that is 0, every `kProbeInterval`-th round still tries a window of 1,
// since without drafts nothing would ever tell that drafting pays again.
std::unique_ptr<WindowPolicy> MakeAnalyticPolicy(const AcceptanceEstimate::Options& options = {});

// By the names of DESIGN section 4. InvalidArgument lists the known ones.
absl::StatusOr<std::unique_ptr<WindowPolicy>> MakeWindowPolicy(absl::string_view name);
std::vector<std::string> WindowPolicyNames();

}  // namespace tandem

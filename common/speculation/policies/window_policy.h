#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/acceptance_estimate.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/level_acceptance.h"
#include "common/speculation/policies/window_policy_options.h"
#include "common/speculation/round_time_model.h"

namespace tandem {

// Limits and shape of a session's trees.
struct WindowLimits {
  uint32_t max_depth = 8;
  // Nodes a tree of some depth may have: depth times this, at most max_nodes.
  uint32_t nodes_per_level = 2;
  uint32_t max_nodes = 16;
  uint32_t branching = 4;
  // Levels that are drafted ahead while a round is verified; 0 is the synchronous loop.
  uint32_t lookahead = 8;
  // Nodes that are drafted ahead meanwhile, over all sessions that share a step, for all possible ends of the
  // round; and the most children of one node among them. 0 nodes: only as many as the levels have, which is
  // also the least that a session gets. Neither applies to EAGLE-2 trees.
  uint32_t ahead_nodes = 112;
  uint32_t ahead_branching = 8;
  TreeShape shape = TreeShape::kBestFirst;

  uint32_t NodesFor(uint32_t depth) const;
  // `ahead`: whether to draft these nodes ahead, and not only those of the levels.
  DraftBudget BudgetFor(uint32_t depth, uint32_t batch = 1, bool ahead = true) const;
};

// best-first, chain or eagle2. InvalidArgument lists them.
absl::StatusOr<TreeShape> ParseTreeShape(absl::string_view name);
std::vector<std::string> TreeShapeNames();

// Current costs of a round, and what is known about the drafter from other sessions.
struct RoundCosts {
  const RoundTimeModel* round_time = nullptr;
  // Sessions that share a step; each is taken to verify a tree of the same size.
  uint32_t batch = 1;
  // Tokens a row of the step attends to, on average.
  uint32_t context = 0;
  // a_q: seconds of drafting, per level, that verification does not hide.
  double draft_seconds_per_level = 0.0;
  // Seconds the drafter takes for a level while a round is verified. Costs nothing until it is more than the
  // round takes.
  double hidden_draft_seconds_per_level = 0.0;
  // The drafter's acceptance over all sessions; nullptr if unknown.
  const LevelAcceptance* drafter_acceptance = nullptr;
  // Whether rounds with this drafter have recently produced more tokens per second than rounds without.
  bool drafting_pays = true;
  // The next round drafts nothing only to be compared with others (ControlGroup): the drafter is needed again
  // soon.
  bool is_control = false;
  // The same for drafting many nodes ahead, compared with a few levels.
  bool ahead_pays = true;
  // Verified nodes per level, if fewer than the limits allow are worth their rows; 0 if unknown.
  double nodes_per_level = 0.0;
  WindowLimits limits;

  // b_p(depth): seconds of a verification step with a window of `depth`.
  double VerifySeconds(uint32_t depth) const;
};

// The largest exported state.
inline constexpr size_t kMaxPolicyStateBytes = 4096;

// Chooses a session's window from the outcomes of its last rounds (DESIGN section 4;
// docs/reference/policies.md). The window is the depth of the next trees (On-the-fly adaptation, appendix
// D.5). Which nodes a tree has depends on the drafter's best-first growth and on the verifier's choice.
//
// One per session. No I/O, no clock, and no randomness except its seed. A session's policy can be replaced
// between any two rounds; the new one starts from the session's tokens.
class WindowPolicy {
 public:
  virtual ~WindowPolicy() = default;

  virtual absl::string_view name() const = 0;
  virtual void Observe(const RoundOutcome& outcome) = 0;
  // The depth of the next tree, in [0, max_depth of the limits]; 0: no drafting. May be called several times
  // per round; only Observe means that a round was made.
  virtual uint32_t NextDepth(const RoundCosts& costs) = 0;
  // Whether the last answer is a probe: its best candidate is verified even if it is not worth a row.
  virtual bool probing() const { return false; }
  // The learned state, with which later sessions can start (PolicySession::learned): at most
  // kMaxPolicyStateBytes. Empty for policies that start fresh in every session.
  virtual std::string ExportState() const { return {}; }
  // Whether nodes are selected by worth over the whole batch (ChooseNodes), and drafting stops while the
  // drafter as a whole does not pay. Otherwise every round verifies all nodes of its window while no other
  // request runs; if others run, worth decides as well.
  virtual bool heeds_worth() const { return false; }
  // A round verifies no deeper than the first level that is reached with less than this probability, by the
  // predictions of the drafter's stop head or, without one, by its scores. It starts as soon as there is such
  // a level. 0: only depth ends windows.
  virtual double stop_below() const { return 0.0; }
};

// What a policy knows of its session at the start.
struct PolicySession {
  absl::Span<const TokenId> tokens;  // Prompt and output so far; holds for the call only.
  uint64_t seed = 0;                 // Of the policy's own random choices.
  // ExportState of an earlier session's policy, or several merged (MergePolicyStates); holds for the call
  // only. It is not trusted: a state that the policy cannot read is ignored.
  absl::string_view learned;
};

// Makes a policy by its name in DESIGN section 4. InvalidArgument lists the known names.
absl::StatusOr<std::unique_ptr<WindowPolicy>> MakeWindowPolicy(absl::string_view name,
                                                               const WindowPolicyOptions& options = {},
                                                               const PolicySession& session = {});
std::vector<std::string> WindowPolicyNames();

}  // namespace tandem

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
  // Nodes that are drafted ahead then, of all sessions that share a step, for whatever the round may end
  // with, and how many of them may be children of one node. 0 nodes: only as many as the levels have, which
  // is what sessions get whose share would be less. Neither of them is for EAGLE-2 trees.
  uint32_t ahead_nodes = 112;
  uint32_t ahead_branching = 8;
  TreeShape shape = TreeShape::kBestFirst;

  uint32_t NodesFor(uint32_t depth) const;
  // `ahead`: whether as much as that is drafted ahead, and not just what the levels have.
  DraftBudget BudgetFor(uint32_t depth, uint32_t batch = 1, bool ahead = true) const;
};

// best-first, chain or eagle2. InvalidArgument lists them.
absl::StatusOr<TreeShape> ParseTreeShape(absl::string_view name);
std::vector<std::string> TreeShapeNames();

// Current costs of a round, and what is known of the drafter from other sessions.
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
  // How the drafter does over all sessions; nullptr: nothing is known.
  const LevelAcceptance* drafter_acceptance = nullptr;
  // Whether rounds with this drafter have lately made more tokens per second than rounds without.
  bool drafting_pays = true;
  // Whether rounds of which much is drafted ahead have, and not just a few levels.
  bool ahead_pays = true;
  // Nodes that rounds have verified for each of their levels, where fewer than the limits allow are worth
  // their rows; 0: not known.
  double nodes_per_level = 0.0;
  WindowLimits limits;

  // b_p(depth): seconds of a verification step with a window of `depth`.
  double VerifySeconds(uint32_t depth) const;
};

// Of what a policy has learned.
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
  // In [0, max_depth of the limits]; 0 does not draft. Only Observe tells that a round was made with
  // the answer; it may be asked again before.
  virtual uint32_t NextDepth(const RoundCosts& costs) = 0;
  // Whether the last answer is there to learn from: its best candidate is verified even if it is not worth
  // it.
  virtual bool probing() const { return false; }
  // What it has learned that sessions to come can begin with (PolicySession::learned): at most
  // kMaxPolicyStateBytes. Empty: nothing, as of all policies that begin anew with every session.
  virtual std::string ExportState() const { return {}; }
  // Whether what is verified is chosen by worth over the whole batch (ChooseNodes), and drafting stops while
  // the drafter as a whole does not pay. Otherwise every round verifies as many nodes as its window has, as
  // long as no other request runs; beside others their worth decides all the same.
  virtual bool heeds_worth() const { return false; }
  // A round verifies no deeper than the first level that is reached with less than this probability, as the
  // drafter's stop head predicts of each node, or by its scores where it has no such head; and it begins as
  // soon as there is such a level. 0: windows end by depth alone.
  virtual double stop_below() const { return 0.0; }
};

// What a policy knows of its session at the start.
struct PolicySession {
  absl::Span<const TokenId> tokens;  // Prompt and output so far; holds for the call only.
  uint64_t seed = 0;                 // Of the policy's own random choices.
  // ExportState of an earlier session's policy, or several merged (MergePolicyStates); holds for the call
  // only. It may come from anywhere: what the policy cannot read counts as none.
  absl::string_view learned;
};

// By the names of DESIGN section 4. InvalidArgument lists the known ones.
absl::StatusOr<std::unique_ptr<WindowPolicy>> MakeWindowPolicy(absl::string_view name,
                                                               const WindowPolicyOptions& options = {},
                                                               const PolicySession& session = {});
std::vector<std::string> WindowPolicyNames();

}  // namespace tandem

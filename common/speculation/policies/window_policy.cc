#include "common/speculation/policies/window_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/speculation/policies/analytic_policy.h"
#include "common/speculation/policies/cached_fsm_policy.h"
#include "common/speculation/policies/ema_tiers_policy.h"
#include "common/speculation/policies/fixed_policy.h"
#include "common/speculation/policies/fsm_policy.h"
#include "common/speculation/policies/goodput_policy.h"
#include "common/speculation/policies/qlearning_policy.h"
#include "common/speculation/policies/specdec_policy.h"

namespace tandem {

absl::StatusOr<TreeShape> ParseTreeShape(absl::string_view name) {
  if (name == "best-first") return TreeShape::kBestFirst;
  if (name == "chain") return TreeShape::kChain;
  if (name == "eagle2") return TreeShape::kEagle2;
  return absl::InvalidArgumentError(absl::StrCat("tree shape \"", name, "\" is not known, expected one of ",
                                                 absl::StrJoin(TreeShapeNames(), ", ")));
}

std::vector<std::string> TreeShapeNames() {
  return {"best-first", "chain", "eagle2"};
}

uint32_t WindowLimits::NodesFor(uint32_t depth) const {
  return std::min(depth * (shape == TreeShape::kChain ? 1 : nodes_per_level), max_nodes);
}

DraftBudget WindowLimits::BudgetFor(uint32_t depth, uint32_t batch, bool ahead) const {
  if (depth == 0) return DraftBudget{};
  DraftBudget budget{.depth = depth,
                     .nodes = NodesFor(depth),
                     .branching = branching,
                     .lookahead = lookahead,
                     .shape = shape};
  const uint32_t share = !ahead ? 0 : ahead_nodes / std::max<uint32_t>(batch, 1);
  if (lookahead == 0 || shape == TreeShape::kEagle2 || share <= budget.nodes * lookahead / depth)
    return budget;
  budget.ahead_nodes = share;
  budget.ahead_branching = std::max(ahead_branching, branching);
  return budget;
}

double RoundCosts::VerifySeconds(uint32_t depth) const {
  uint32_t nodes = limits.NodesFor(depth);
  if (nodes_per_level > 0.0) {
    nodes = std::min(nodes, static_cast<uint32_t>(std::ceil(std::max(nodes_per_level, 1.0) * depth)));
  }
  return round_time->Seconds(std::max<uint32_t>(batch, 1) * (1 + nodes), context);
}

absl::StatusOr<std::unique_ptr<WindowPolicy>> MakeWindowPolicy(absl::string_view name,
                                                               const WindowPolicyOptions& options,
                                                               const PolicySession& session) {
  if (name == "analytic") return MakeAnalyticPolicy(options.analytic);
  if (name == "cached-fsm") return MakeCachedFsmPolicy(options.cached_fsm, session.tokens);
  if (name == "ema-tiers") return MakeEmaTiersPolicy(options.ema_tiers);
  if (name == "fixed") return MakeFixedPolicy(options.fixed);
  if (name == "fsm") return MakeFsmPolicy(options.fsm);
  if (name == "goodput") return MakeGoodputPolicy(options.goodput);
  if (name == "qlearning") return MakeQLearningPolicy(options.qlearning, session.seed, session.learned);
  if (name == "specdec++") return MakeSpecDecPolicy(options.specdec);
  return absl::InvalidArgumentError(absl::StrCat("window policy \"", name,
                                                 "\" is not known, expected one of ",
                                                 absl::StrJoin(WindowPolicyNames(), ", ")));
}

std::vector<std::string> WindowPolicyNames() {
  return {"analytic", "cached-fsm", "ema-tiers", "fixed", "fsm", "goodput", "qlearning", "specdec++"};
}

}  // namespace tandem

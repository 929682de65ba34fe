#include "common/speculation/window_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

constexpr uint32_t kFirstPause = 4;     // Rounds without drafts before the first probe,
constexpr uint32_t kLongestPause = 64;  // and at most, as probes go on failing.
constexpr uint32_t kProbeRounds = 3;

class FixedPolicy final : public WindowPolicy {
 public:
  absl::string_view name() const override { return "fixed"; }
  void Observe(const RoundOutcome&) override {}
  uint32_t NextDepth(const RoundCosts& costs) override { return costs.limits.max_depth; }
};

class AnalyticPolicy final : public WindowPolicy {
 public:
  explicit AnalyticPolicy(const AcceptanceEstimate::Options& options) : acceptance_(options) {}

  absl::string_view name() const override { return "analytic"; }

  void Observe(const RoundOutcome& outcome) override {
    acceptance_.Observe(outcome);
    if (outcome.depth > 0) {
      if (probes_left_ > 0) --probes_left_;
      return;
    }
    if (++idle_rounds_ < pause_) return;
    idle_rounds_ = 0;
    pause_ = std::min(2 * pause_, kLongestPause);
    probes_left_ = kProbeRounds;
  }

  uint32_t NextDepth(const RoundCosts& costs) override {
    const uint32_t best = BestDepth(costs);
    if (best > 0) {
      pause_ = kFirstPause;
      idle_rounds_ = 0;
      return best;
    }
    return probes_left_ > 0 ? std::min<uint32_t>(1, costs.limits.max_depth) : 0;
  }

 private:
  uint32_t BestDepth(const RoundCosts& costs) const {
    uint32_t best_depth = 0;
    double best_rate = 0.0;
    for (uint32_t depth = 0; depth <= costs.limits.max_depth; ++depth) {
      const double seconds = depth * costs.draft_seconds_per_level + costs.VerifySeconds(depth);
      const double rate = ExpectedTokens(acceptance_.value(), depth) / seconds;
      if (rate > best_rate) {
        best_rate = rate;
        best_depth = depth;
      }
    }
    return best_depth;
  }

  AcceptanceEstimate acceptance_;
  uint32_t pause_ = kFirstPause;
  uint32_t idle_rounds_ = 0;
  uint32_t probes_left_ = 0;
};

}  // namespace

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

DraftBudget WindowLimits::BudgetFor(uint32_t depth) const {
  if (depth == 0) return DraftBudget{};
  return {.depth = depth,
          .nodes = NodesFor(depth),
          .branching = branching,
          .lookahead = lookahead,
          .shape = shape};
}

double RoundCosts::VerifySeconds(uint32_t depth) const {
  return round_time->Seconds(std::max<uint32_t>(batch, 1) * (1 + limits.NodesFor(depth)));
}

std::unique_ptr<WindowPolicy> MakeFixedPolicy() {
  return std::make_unique<FixedPolicy>();
}

std::unique_ptr<WindowPolicy> MakeAnalyticPolicy(const AcceptanceEstimate::Options& options) {
  return std::make_unique<AnalyticPolicy>(options);
}

absl::StatusOr<std::unique_ptr<WindowPolicy>> MakeWindowPolicy(absl::string_view name) {
  if (name == "analytic") return MakeAnalyticPolicy();
  if (name == "fixed") return MakeFixedPolicy();
  return absl::InvalidArgumentError(absl::StrCat("window policy \"", name,
                                                 "\" is not known, expected one of ",
                                                 absl::StrJoin(WindowPolicyNames(), ", ")));
}

std::vector<std::string> WindowPolicyNames() {
  return {"analytic", "fixed"};
}

}  // namespace tandem

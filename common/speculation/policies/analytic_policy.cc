#include "common/speculation/policies/analytic_policy.h"

#include <algorithm>

#include "common/speculation/policies/round_probe.h"

namespace tandem {
namespace {

class AnalyticPolicy final : public WindowPolicy {
 public:
  explicit AnalyticPolicy(const AcceptanceEstimate::Options& options) : acceptance_(options) {}

  absl::string_view name() const override { return "analytic"; }

  void Observe(const RoundOutcome& outcome) override {
    acceptance_.Observe(outcome);
    probe_.Observe(outcome.depth > 0);
  }

  uint32_t NextDepth(const RoundCosts& costs) override {
    const uint32_t best = BestDepth(costs);
    if (best > 0) {
      probe_.Reset();
      return best;
    }
    return probe_.due() ? std::min<uint32_t>(1, costs.limits.max_depth) : 0;
  }

 private:
  uint32_t BestDepth(const RoundCosts& costs) const {
    uint32_t best_depth = 0;
    double best_rate = 0.0;
    const double acceptance = acceptance_.value();
    for (uint32_t depth = 0; depth <= costs.limits.max_depth; ++depth) {
      const double seconds = depth * costs.draft_seconds_per_level + costs.VerifySeconds(depth);
      const double rate = ExpectedTokens(acceptance, depth) / seconds;
      if (rate > best_rate) {
        best_rate = rate;
        best_depth = depth;
      }
    }
    return best_depth;
  }

  AcceptanceEstimate acceptance_;
  RoundProbe probe_;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeAnalyticPolicy(const AcceptanceEstimate::Options& options) {
  return std::make_unique<AnalyticPolicy>(options);
}

}  // namespace tandem

#include "common/speculation/policies/goodput_policy.h"

#include <algorithm>

#include "common/speculation/policies/round_probe.h"

namespace tandem {
namespace {

// After so many rounds whose candidates were all found not worth a row, no more are drafted. Such rounds cost
// the verifier nothing, and where rows are dear there are some in every text.
constexpr uint32_t kDeclinedRounds = 16;

class GoodputPolicy final : public WindowPolicy {
 public:
  explicit GoodputPolicy(const GoodputOptions& options)
      : acceptance_({.history = options.history, .prior_trials = options.prior_trials}) {}

  absl::string_view name() const override { return "goodput"; }

  void Observe(const RoundOutcome& outcome) override {
    acceptance_.Observe(outcome);
    probe_.Observe(outcome.depth > 0 || outcome.declined);
    if (outcome.declined) {
      ++declined_in_a_row_;
    } else if (outcome.accepted > 0) {
      if (declined_in_a_row_ == 0) probe_.Reset();
      declined_in_a_row_ = 0;
    }
  }

  uint32_t NextDepth(const RoundCosts& costs) override {
    if (!costs.drafting_pays) return 0;
    const uint32_t best = BestDepth(costs);
    probing_ = best == 0 || declined_in_a_row_ >= kDeclinedRounds;
    if (!probing_) return best;
    probing_ = probe_.due();
    return probing_ ? std::min<uint32_t>(1, costs.limits.max_depth) : 0;
  }

  bool probing() const override { return probing_; }
  bool heeds_worth() const override { return true; }

 private:
  uint32_t BestDepth(const RoundCosts& costs) const {
    const auto levels = acceptance_.Levels(costs.drafter_acceptance);
    uint32_t best_depth = 0;
    double best_rate = 0.0;
    double reached = 1.0;
    double tokens = 1.0;
    for (uint32_t depth = 0; depth <= costs.limits.max_depth; ++depth) {
      if (depth > 0) {
        reached *= levels[std::min(depth, LevelAcceptance::kLevels) - 1];
        tokens += reached;
      }
      const double seconds =
          std::max(costs.VerifySeconds(depth), depth * costs.hidden_draft_seconds_per_level) +
          depth * costs.draft_seconds_per_level;
      if (tokens / seconds > best_rate) {
        best_rate = tokens / seconds;
        best_depth = depth;
      }
    }
    return best_depth;
  }

  LevelAcceptance acceptance_;
  // Rarer than elsewhere: what the drafter does for other sessions tells as well.
  RoundProbe probe_{{.first_pause = 12, .longest_pause = 192, .probe_rounds = 3}};
  bool probing_ = false;
  uint32_t declined_in_a_row_ = 0;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeGoodputPolicy(const GoodputOptions& options) {
  return std::make_unique<GoodputPolicy>(options);
}

}  // namespace tandem

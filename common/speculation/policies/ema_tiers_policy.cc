#include "common/speculation/policies/ema_tiers_policy.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace tandem {
namespace {

class EmaTiersPolicy final : public WindowPolicy {
 public:
  explicit EmaTiersPolicy(const EmaTiersOptions& options) : options_(options) {
    const std::vector<uint32_t>& tiers = options_.candidate_steps;
    assert(!tiers.empty() && std::is_sorted(tiers.begin(), tiers.end()));
    const auto distance = [&](uint32_t tier) {
      return tier > options_.initial_steps ? tier - options_.initial_steps : options_.initial_steps - tier;
    };
    for (size_t i = 1; i < tiers.size(); ++i) {
      if (distance(tiers[i]) < distance(tiers[tier_])) tier_ = i;
    }
    ema_ = static_cast<double>(tiers[tier_]) - 1.0;
  }

  absl::string_view name() const override { return "ema-tiers"; }

  void Observe(const RoundOutcome& outcome) override {
    if (outcome.depth == 0) return;
    ema_ += options_.ema_alpha * (outcome.accepted - ema_);
    ++rounds_;
    if (rounds_ <= options_.warmup_batches) return;
    if ((rounds_ - options_.warmup_batches) % options_.update_interval == 0) Move();
  }

  uint32_t NextDepth(const RoundCosts& costs) override {
    return std::min(options_.candidate_steps[tier_], costs.limits.max_depth);
  }

 private:
  void Move() {
    const std::vector<uint32_t>& tiers = options_.candidate_steps;
    while (tier_ > 0 && ema_ <= tiers[tier_ - 1] - 0.5 + options_.down_hysteresis) --tier_;
    while (tier_ + 1 < tiers.size() && ema_ > tiers[tier_] - 0.5 + options_.up_hysteresis) ++tier_;
  }

  const EmaTiersOptions options_;
  size_t tier_ = 0;
  double ema_ = 0.0;
  uint64_t rounds_ = 0;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeEmaTiersPolicy(const EmaTiersOptions& options) {
  return std::make_unique<EmaTiersPolicy>(options);
}

}  // namespace tandem

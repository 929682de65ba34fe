#include "common/speculation/qlearning_policy.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/philox.h"

namespace tandem {
namespace {

// Keeps the draws apart from other uses of the same seed.
constexpr uint32_t kPhiloxStream = 0x51'4c'52'4e;

class QLearningPolicy final : public WindowPolicy {
 public:
  QLearningPolicy(const QLearningOptions& options, uint64_t seed)
      : options_(options), seed_(seed), state_(options.initial_depth), action_(options.initial_depth) {}

  absl::string_view name() const override { return "qlearning"; }

  void Observe(const RoundOutcome& outcome) override {
    ++round_;
    if (outcome.depth == 0 && action_ > 0) {
      chosen_ = false;
      return;
    }
    const double reward =
        outcome.depth == 0 ? 0.0
                           : static_cast<double>(std::min(outcome.accepted, outcome.depth)) / outcome.depth;
    const double next = Value(action_, BestAction(action_));
    auto [entry, inserted] = values_.try_emplace({state_, action_}, options_.initial_value);
    entry->second += options_.learning_rate * (reward + options_.discount * next - entry->second);
    state_ = action_;
    chosen_ = false;
  }

  uint32_t NextDepth(const RoundCosts& costs) override {
    const uint32_t max_depth = costs.limits.max_depth;
    // One choice per round, however often it is asked for.
    if (chosen_ && max_depth == max_depth_) return action_;
    max_depth_ = max_depth;
    state_ = std::min(state_, max_depth);
    chosen_ = true;
    if (round_ == 0) return action_ = std::min(options_.initial_depth, max_depth);
    const PhiloxCounter bits = Philox4x32({round_, kPhiloxStream, 0, 0},
                                          {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    const bool explore = bits[0] < options_.exploration * 4294967296.0;
    action_ = explore ? static_cast<uint32_t>((uint64_t{bits[1]} * (uint64_t{max_depth} + 1)) >> 32)
                      : BestAction(state_);
    return action_;
  }

 private:
  double Value(uint32_t state, uint32_t action) const {
    const auto found = values_.find({state, action});
    return found == values_.end() ? options_.initial_value : found->second;
  }
  uint32_t BestAction(uint32_t state) const {
    uint32_t best = 0;
    for (uint32_t action = 1; action <= max_depth_; ++action) {
      if (Value(state, action) > Value(state, best)) best = action;
    }
    return best;
  }

  const QLearningOptions options_;
  const uint64_t seed_;
  // By (state, action). At most (max_depth + 1)^2 of them.
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, double> values_;
  uint32_t max_depth_ = 0;
  uint32_t round_ = 0;
  uint32_t state_;
  uint32_t action_;
  bool chosen_ = false;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeQLearningPolicy(const QLearningOptions& options, uint64_t seed) {
  return std::make_unique<QLearningPolicy>(options, seed);
}

}  // namespace tandem

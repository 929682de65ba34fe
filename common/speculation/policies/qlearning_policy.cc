#include "common/speculation/policies/qlearning_policy.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/philox.h"
#include "common/speculation/policies/qlearning_state.h"

namespace tandem {
namespace {

// Keeps the draws apart from other uses of the same seed.
constexpr uint32_t kPhiloxStream = 0x51'4c'52'4e;

class QLearningPolicy final : public WindowPolicy {
 public:
  QLearningPolicy(const QLearningOptions& options, uint64_t seed, absl::string_view learned)
      : options_(options), seed_(seed), state_(options.initial_depth), action_(options.initial_depth) {
    const absl::StatusOr<QLearningState> before = QLearningState::Parse(learned);
    if (before.ok()) Begin(*before);
  }

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
    Learned& learned = values_.try_emplace({state_, action_}, Learned{options_.initial_value}).first->second;
    learned.value += options_.learning_rate * (reward + options_.discount * next - learned.value);
    ++learned.fresh;
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
    if (round_ == 0 && prompts_ == 0) return action_ = std::min(options_.initial_depth, max_depth);
    // Requests often have the same seed, and are to try different windows all the same.
    const PhiloxCounter bits = Philox4x32({round_, kPhiloxStream, prompts_, 0},
                                          {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    const bool explore = prompts_ < options_.warmup_prompts && bits[0] < options_.exploration * 4294967296.0;
    action_ = explore ? static_cast<uint32_t>((uint64_t{bits[1]} * (uint64_t{max_depth} + 1)) >> 32)
                      : BestAction(state_);
    return action_;
  }

  std::string ExportState() const override {
    QLearningState state{.prompts = prompts_};
    uint32_t updates = 0;
    for (const auto& [pair, learned] : values_) {
      if (pair.first > UINT8_MAX || pair.second > UINT8_MAX) continue;
      updates += learned.fresh;
      const uint32_t fresh = std::min(learned.fresh, QLearningState::kMostVisits - learned.visits_before);
      state.entries.push_back({.state = static_cast<uint8_t>(pair.first),
                               .action = static_cast<uint8_t>(pair.second),
                               .value = static_cast<float>(learned.value),
                               .visits = learned.visits_before + fresh,
                               .fresh = fresh});
    }
    if (updates == 0) return {};
    if (state.prompts < QLearningState::kMostVisits) {
      ++state.prompts;
      state.fresh_prompts = 1;
    }
    return state.Serialize();
  }

 private:
  struct Learned {
    double value = 0.0;
    uint32_t visits_before = 0;  // In earlier sessions.
    uint32_t fresh = 0;          // In this one.
  };

  void Begin(const QLearningState& before) {
    prompts_ = before.prompts;
    // Rewards lie in [0, 1], so nothing above this sum of them can have been learned.
    const double largest = std::max(options_.initial_value, 1.0 / (1.0 - options_.discount));
    for (const QLearningState::Entry& entry : before.entries) {
      if (entry.value < 0.0F || entry.value > largest) continue;
      values_[{entry.state, entry.action}] = {.value = entry.value, .visits_before = entry.visits};
    }
  }

  double Value(uint32_t state, uint32_t action) const {
    const auto found = values_.find({state, action});
    return found == values_.end() ? options_.initial_value : found->second.value;
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
  // By (state, action). At most (max_depth + 1)^2 of them, and what was learned before.
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Learned> values_;
  uint32_t prompts_ = 0;  // That were learned from before.
  uint32_t max_depth_ = 0;
  uint32_t round_ = 0;
  uint32_t state_;
  uint32_t action_;
  bool chosen_ = false;
};

}  // namespace

std::unique_ptr<WindowPolicy> MakeQLearningPolicy(const QLearningOptions& options, uint64_t seed,
                                                  absl::string_view learned) {
  return std::make_unique<QLearningPolicy>(options, seed, learned);
}

}  // namespace tandem

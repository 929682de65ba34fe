#include "common/speculation/level_acceptance.h"

#include <algorithm>

namespace tandem {

void LevelAcceptance::Observe(const RoundOutcome& outcome) {
  if (outcome.depth == 0) return;
  const double keep = 1.0 - 1.0 / std::max(options_.history, 1.0);
  for (Count& count : counts_) {
    count.trials *= keep;
    count.successes *= keep;
  }
  for (uint32_t level = 1; level <= outcome.accepted; ++level) {
    Count& count = counts_[std::min(level, kLevels) - 1];
    count.trials += 1.0;
    count.successes += 1.0;
  }
  if (outcome.rejected) counts_[std::min(outcome.accepted + 1, kLevels) - 1].trials += 1.0;
}

std::array<double, LevelAcceptance::kLevels> LevelAcceptance::Levels(const LevelAcceptance* prior) const {
  std::array<double, kLevels> expected{};
  if (prior != nullptr) expected = prior->Levels();
  std::array<double, kLevels> levels{};
  double above = options_.initial;
  for (uint32_t i = 0; i < kLevels; ++i) {
    const Count& count = counts_[i];
    const double guess = prior != nullptr ? expected[i] : above;
    above = (count.successes + options_.prior_trials * guess) / (count.trials + options_.prior_trials);
    levels[i] = std::min(above, options_.maximum);
  }
  return levels;
}

double LevelAcceptance::ExpectedAccepted(uint32_t depth, const LevelAcceptance* prior) const {
  const std::array<double, kLevels> levels = Levels(prior);
  double reached = 1.0;
  double expected = 0.0;
  for (uint32_t level = 1; level <= depth; ++level) {
    reached *= levels[std::min(level, kLevels) - 1];
    expected += reached;
  }
  return expected;
}

double LevelAcceptance::trials() const {
  double sum = 0.0;
  for (const Count& count : counts_) sum += count.trials;
  return sum;
}

}  // namespace tandem

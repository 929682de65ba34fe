#include "common/speculation/acceptance_estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem {

void AcceptanceEstimate::Observe(const RoundOutcome& outcome) {
  if (outcome.depth == 0) return;
  rounds_.push_back({outcome.accepted, outcome.rejected});
  if (rounds_.size() > options_.history) rounds_.pop_front();
}

double AcceptanceEstimate::value() const {
  uint32_t accepted = 0;
  uint32_t rejected = 0;
  for (const Round& round : rounds_) {
    accepted += round.accepted;
    rejected += round.rejected ? 1 : 0;
  }
  if (accepted + rejected == 0) return std::min(options_.initial, options_.maximum);
  return std::min(options_.maximum, static_cast<double>(accepted) / (accepted + rejected));
}

void RecentMean::Add(double value) {
  values_.push_back(value);
  if (values_.size() > history_) values_.pop_front();
}

double RecentMean::value() const {
  if (values_.empty()) return 0.0;
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
}

double ExpectedTokens(double acceptance, uint32_t depth) {
  if (acceptance >= 1.0) return depth + 1.0;
  return (1.0 - std::pow(acceptance, depth + 1.0)) / (1.0 - acceptance);
}

}  // namespace tandem

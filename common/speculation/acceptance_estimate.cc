#include "common/speculation/acceptance_estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem {

void AcceptanceEstimate::Observe(const RoundOutcome& outcome) {
  if (outcome.depth == 0) return;
  rounds_.push_back({outcome.depth, outcome.accepted, outcome.rejected});
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
  const double sum = accepted + static_cast<double>(rounds_.size());
  double estimate = 0.0;
  switch (options_.equation) {
    case AcceptanceEquation::kEquation2:
      estimate = static_cast<double>(accepted) / (accepted + rejected);
      break;
    case AcceptanceEquation::kEquation11:
      estimate = Bisect(sum);
      break;
    case AcceptanceEquation::kEquation12:
      estimate = Interpolate(sum);
      break;
  }
  return std::min(options_.maximum, estimate);
}

double AcceptanceEstimate::ExpectedSum(double acceptance) const {
  double sum = 0.0;
  for (const Round& round : rounds_) sum += TruncatedMean(acceptance, round.depth);
  return sum;
}

// The expected sum grows with A, from one for each round.
double AcceptanceEstimate::Bisect(double sum) const {
  double low = 0.0;
  double high = 1.0;
  if (sum >= ExpectedSum(high)) return high;
  // Far below what the choice of a window could tell apart.
  constexpr double kPrecision = 1e-6;
  while (high - low > kPrecision) {
    const double middle = (low + high) / 2.0;
    (ExpectedSum(middle) < sum ? low : high) = middle;
  }
  return (low + high) / 2.0;
}

double AcceptanceEstimate::Interpolate(double sum) const {
  Table expected{};
  for (const Round& round : rounds_) {
    const Table& table = TableOf(round.depth);
    for (size_t step = 0; step < table.size(); ++step) expected[step] += table[step];
  }
  const auto above = std::upper_bound(expected.begin(), expected.end(), sum);
  if (above == expected.begin()) return 0.0;
  if (above == expected.end()) return 1.0;
  const auto below = above - 1;
  const double part = (sum - *below) / (*above - *below);
  return (static_cast<double>(below - expected.begin()) + part) / kTableSteps;
}

const AcceptanceEstimate::Table& AcceptanceEstimate::TableOf(uint32_t depth) const {
  const auto [found, is_new] = tables_.try_emplace(depth);
  if (is_new) {
    for (size_t step = 0; step <= kTableSteps; ++step) {
      found->second[step] = TruncatedMean(static_cast<double>(step) / kTableSteps, depth);
    }
  }
  return found->second;
}

// As the quotient of sums, since both sides of the closed form go to 0 with 1 - A.
double TruncatedMean(double acceptance, uint32_t window) {
  double weight = 1.0;
  double total = 0.0;
  double mean = 0.0;
  for (uint32_t y = 1; y <= window + 1; ++y) {
    total += weight;
    mean += y * weight;
    weight *= acceptance;
  }
  return mean / total;
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

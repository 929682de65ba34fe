#include "router/drafters/choice/live_costs.h"

#include <algorithm>
#include <cmath>

namespace tandem::router {
namespace {

// Of a new figure: a memory of about ten requests, which is seconds under load.
constexpr double kNewShare = 0.1;
// Of corrections: a memory of about fifty requests, and how many standard deviations are beyond chance.
constexpr double kNewShareOfCorrection = 0.02;
constexpr double kBeyondChance = 3.0;
constexpr double kLongestSeconds = 100.0;
constexpr uint32_t kMostCounted = 1000;
constexpr uint32_t kFewestTokens = 8;
// What requests before a long time without any count as: the next one is a fifth of the average.
constexpr uint32_t kOldRequests = 3;

bool IsSeconds(double value) {
  return value >= 0.0 && value <= kLongestSeconds;
}

}  // namespace

void LiveDraftCosts::Observe(const DraftCosts& costs) {
  if (!IsSeconds(costs.exposed_level_seconds) || !IsSeconds(costs.hidden_level_seconds)) return;
  if (!value_.has_value()) {
    value_ = costs;
    return;
  }
  value_->exposed_level_seconds += kNewShare * (costs.exposed_level_seconds - value_->exposed_level_seconds);
  value_->hidden_level_seconds += kNewShare * (costs.hidden_level_seconds - value_->hidden_level_seconds);
}

void LiveVerifySeconds::Observe(absl::Span<const double> seconds) {
  if (seconds.empty() || seconds.size() > kMaxWindows) return;
  const bool usable = std::all_of(seconds.begin(), seconds.end(),
                                  [](double value) { return value > 0.0 && value <= kLongestSeconds; });
  if (!usable) return;
  // Verifiers of one model may have other largest windows: the smaller one is what all can do.
  if (value_.empty()) value_.assign(seconds.begin(), seconds.end());
  value_.resize(std::min(value_.size(), seconds.size()));
  for (size_t i = 0; i < value_.size(); ++i) value_[i] += kNewShare * (seconds[i] - value_[i]);
}

bool ThroughputCorrection::Observe(double predicted_tokens_per_second, const RequestOutcome& outcome) {
  if (outcome.decode_tokens < kFewestTokens || !(outcome.decode_seconds > 0.0)) return false;
  const double ratio = outcome.decode_tokens / outcome.decode_seconds / predicted_tokens_per_second;
  if (!(ratio > 0.0) || !std::isfinite(ratio)) return false;
  const double bound = std::log(kLargest);
  const double log_ratio = std::clamp(std::log(ratio), -bound, bound);
  // The first ones count alike, beside one that is as predicted.
  const double first_share = 1.0 / (observed_ + 2.0);
  observed_ = std::min(observed_ + 1, kMostCounted);
  const double share = std::max(kNewShareOfCorrection, first_share);
  const double error = log_ratio - log_ratio_;
  variance_ += share * (error * error - variance_);
  log_ratio_ += share * error;
  recent_ += std::max(kNewShare, first_share) * (log_ratio - recent_);
  // What an average that forgets in this way scatters by.
  const double chance = std::sqrt(variance_ * kNewShare / (2.0 - kNewShare));
  if (std::abs(recent_ - log_ratio_) > kBeyondChance * chance) log_ratio_ = recent_;
  return true;
}

void ThroughputCorrection::Age() {
  observed_ = std::min(observed_, kOldRequests);
}

void ThroughputCorrection::Set(double value) {
  log_ratio_ = recent_ = std::log(std::clamp(value, 1.0 / kLargest, kLargest));
  variance_ = kPriorVariance;
  observed_ = kMostCounted;
}

double ThroughputCorrection::value() const {
  return std::exp(log_ratio_);
}

}  // namespace tandem::router

#include "router/verifiers/retry_budget.h"

#include <algorithm>

namespace tandem::router {

void RetryBudget::Add(double tokens) {
  level_ = std::min(level_ + tokens, options_.reserve);
}

void RetryBudget::Refill(absl::Time now) {
  // A clock that was set back refills nothing until it has caught up.
  if (now <= refilled_) return;
  Add(options_.per_second * absl::ToDoubleSeconds(now - refilled_));
  refilled_ = now;
}

void RetryBudget::OnRequest(absl::Time now) {
  Refill(now);
  Add(options_.share);
}

bool RetryBudget::Take(absl::Time now) {
  Refill(now);
  if (level_ < 1.0) return false;
  level_ -= 1.0;
  return true;
}

}  // namespace tandem::router

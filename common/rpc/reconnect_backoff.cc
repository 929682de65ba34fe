#include "common/rpc/reconnect_backoff.h"

#include <algorithm>
#include <utility>

namespace tandem {

ReconnectBackoff::ReconnectBackoff(const Clock* clock, std::function<double()> uniform, Options options)
    : clock_(clock), uniform_(std::move(uniform)), options_(options), delay_(options.initial) {}

absl::Time ReconnectBackoff::Failed() {
  const double factor = 1.0 - options_.jitter + options_.jitter * uniform_();
  next_attempt_ = clock_->Now() + std::min(delay_, options_.maximum) * factor;
  delay_ = std::min(delay_ * options_.multiplier, options_.maximum);
  return next_attempt_;
}

void ReconnectBackoff::Succeeded() {
  delay_ = options_.initial;
  next_attempt_ = absl::InfinitePast();
}

}  // namespace tandem

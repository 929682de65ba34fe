#pragma once

#include <functional>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace tandem {

// The back-off for reconnecting: the n-th consecutive delay is min(maximum, initial * multiplier^n) * (1 -
// jitter + jitter * u), u uniform in [0, 1). The jitter keeps the peers of a lost server from returning all
// at once. Not thread-safe.
class ReconnectBackoff {
 public:
  struct Options {
    absl::Duration initial = absl::Milliseconds(100);
    absl::Duration maximum = absl::Seconds(10);
    double multiplier = 1.6;
    double jitter = 0.4;
  };

  // `clock` outlives this; `uniform` draws from [0, 1).
  ReconnectBackoff(const Clock* clock, std::function<double()> uniform, Options options);
  ReconnectBackoff(const Clock* clock, std::function<double()> uniform)
      : ReconnectBackoff(clock, std::move(uniform), Options()) {}

  // The connection failed or was lost. Returns the time of the next attempt.
  absl::Time Failed();
  // The peer has answered: the next failure starts from the initial delay.
  void Succeeded();

  // Whether it is time for the next attempt.
  bool Ready() const { return clock_->Now() >= next_attempt_; }

 private:
  const Clock* const clock_;
  const std::function<double()> uniform_;
  const Options options_;
  absl::Duration delay_;
  absl::Time next_attempt_ = absl::InfinitePast();  // Also after a success.
};

}  // namespace tandem

#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::router {

// A quota of tokens per minute. The bucket starts full, fills steadily, and holds at most a minute's worth.
// The tokens that a request may use are taken out before it runs, and unused ones are put back. At most a
// minute's worth can be taken out in advance, but a request may use more: then the level falls below zero,
// and requests wait until it is positive again. Plain logic: time is passed in. Not thread-safe.
class TokenBucket {
 public:
  // How long until `tokens` (at most a minute's worth) are left; zero if they are left at `now`. A changed
  // `per_minute` applies from this call on.
  absl::Duration WaitTime(double tokens, double per_minute, absl::Time now) {
    Refill(per_minute, now);
    // Allows for rounding, so that a caller that retries after the returned time is let in.
    if (level_ >= tokens - 1e-6) return absl::ZeroDuration();
    return absl::Seconds((tokens - level_) * 60.0 / per_minute);
  }

  // A negative number puts tokens back.
  void Take(double tokens, double per_minute, absl::Time now) {
    Refill(per_minute, now);
    level_ = std::min(level_ - tokens, per_minute);
  }

  // Lowers the level to `level` if it is higher.
  void LowerTo(double level, double per_minute, absl::Time now) {
    Refill(per_minute, now);
    level_ = std::min(level_, level);
  }

  // The tokens left at `now`.
  double Level(double per_minute, absl::Time now) {
    Refill(per_minute, now);
    return level_;
  }

  double level() const { return level_; }

 private:
  void Refill(double per_minute, absl::Time now) {
    if (last_ == absl::InfinitePast()) level_ = per_minute;
    // If the clock was set back, nothing is refilled.
    const double minutes = last_ == absl::InfinitePast() ? 0.0 : absl::ToDoubleMinutes(now - last_);
    level_ = std::min(level_ + std::max(minutes, 0.0) * per_minute, per_minute);
    last_ = now;
  }

  double level_ = 0.0;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace tandem::router

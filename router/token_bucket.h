#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::router {

// A quota of tokens per minute. Begins full, fills steadily, and holds at most a minute's worth. What is used
// is charged when it is known, which is after a request was let in: the level may fall below zero, and
// requests wait until it is above again. Plain logic with the time passed in; not thread-safe.
class TokenBucket {
 public:
  // Nothing when something is left at `now`; else how long until there is. A `per_minute` that differs from
  // that of the call before holds from now on.
  absl::Duration WaitTime(double per_minute, absl::Time now) {
    Refill(per_minute, now);
    // A whole token, but for rounding: who comes back when told to is let in.
    if (level_ >= 1.0 - 1e-6) return absl::ZeroDuration();
    return absl::Seconds((1.0 - level_) * 60.0 / per_minute);
  }

  void Charge(double tokens, double per_minute, absl::Time now) {
    Refill(per_minute, now);
    level_ -= tokens;
  }

  double level() const { return level_; }

 private:
  void Refill(double per_minute, absl::Time now) {
    if (last_ == absl::InfinitePast()) level_ = per_minute;
    // A clock that is set back refills nothing.
    const double minutes = last_ == absl::InfinitePast() ? 0.0 : absl::ToDoubleMinutes(now - last_);
    level_ = std::min(level_ + std::max(minutes, 0.0) * per_minute, per_minute);
    last_ = now;
  }

  double level_ = 0.0;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace tandem::router

#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::router {

// A quota of tokens per minute. Begins full, fills steadily, and holds at most a minute's worth. What a
// request may use is taken out before it runs, and what it did not use is put back. More than a minute's
// worth cannot be taken out, but it can be used: then the level falls below zero, and requests wait until it
// is above again. Plain logic with the time passed in; not thread-safe.
class TokenBucket {
 public:
  // Nothing when so many tokens are left at `now`, at most a minute's worth; else how long until there are. A
  // `per_minute` that differs from that of the call before holds from now on.
  absl::Duration WaitTime(double tokens, double per_minute, absl::Time now) {
    Refill(per_minute, now);
    // But for rounding: who comes back when told to is let in.
    if (level_ >= tokens - 1e-6) return absl::ZeroDuration();
    return absl::Seconds((tokens - level_) * 60.0 / per_minute);
  }

  // A negative number is put back.
  void Take(double tokens, double per_minute, absl::Time now) {
    Refill(per_minute, now);
    level_ = std::min(level_ - tokens, per_minute);
  }

  // At most so much is left.
  void LowerTo(double level, double per_minute, absl::Time now) {
    Refill(per_minute, now);
    level_ = std::min(level_, level);
  }

  // What is left at `now`.
  double Level(double per_minute, absl::Time now) {
    Refill(per_minute, now);
    return level_;
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

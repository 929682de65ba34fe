#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace tandem {

// How long a thread has been busy with one piece of work, for other threads to read. It distinguishes a
// thread that hangs from an idle one. Only that thread calls Begin and End.
class BusyTime {
 public:
  void Begin(absl::Time now) { since_.store(absl::ToUnixNanos(now), std::memory_order_relaxed); }
  void End() { since_.store(kIdle, std::memory_order_relaxed); }

  // Zero while there is no work.
  absl::Duration At(absl::Time now) const {
    const int64_t since = since_.load(std::memory_order_relaxed);
    return since == kIdle ? absl::ZeroDuration() : now - absl::FromUnixNanos(since);
  }

 private:
  static constexpr int64_t kIdle = INT64_MIN;

  std::atomic<int64_t> since_{kIdle};
};

}  // namespace tandem

#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace tandem {

// A clock that starts at the system's time and then advances steadily. For deadlines and spans, which must
// not change when somebody sets the system's clock. Thread-safe.
class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override {
    return start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

 private:
  const std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
  const absl::Time start_ = absl::Now();
};

}  // namespace tandem

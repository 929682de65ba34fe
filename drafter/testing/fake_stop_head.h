#pragma once

#include <algorithm>

#include "absl/types/span.h"
#include "drafter/drafting/stop_head.h"

namespace tandem {

// For tests: turns the first number of a state, which is in [-1, 1) in FakeEngine, into an acceptance in (0,
// 1].
class FakeStopHead final : public StopHead {
 public:
  float Acceptance(absl::Span<const float> state) const override {
    return std::clamp(0.5f + 0.5f * state[0], 0.01f, 1.0f);
  }
};

}  // namespace tandem

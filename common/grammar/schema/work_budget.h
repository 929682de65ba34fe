#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The work that one schema may cause, in steps of some nanoseconds each. Schemas are written by strangers: a
// few bytes can describe automata and combinations without end.
class WorkBudget {
 public:
  explicit WorkBudget(int64_t steps) : left_(steps) {}

  // ResourceExhausted once more was spent than there was.
  absl::Status Spend(int64_t steps) {
    left_ -= steps;
    if (left_ >= 0) return absl::OkStatus();
    return absl::ResourceExhaustedError("too large: it takes too much work to turn it into a grammar");
  }

 private:
  int64_t left_;
};

}  // namespace tandem

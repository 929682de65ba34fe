#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/choice/live_costs.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Gathers, from a request's events, what the choice of drafters learns from it. Not thread-safe.
class OutcomeRecorder {
 public:
  void OnTokens(uint32_t count, absl::Time now);
  // What the request came to with `drafter` (empty: none). What a verifier says is believed as far as it can
  // be true: acceptance of a drafter that is not the one that was chosen, or of more tokens than there are,
  // is not.
  RequestOutcome Conclude(absl::string_view drafter, const v1::SpeculationStats& stats) const;

 private:
  uint32_t num_tokens_ = 0;
  uint32_t first_tokens_ = 0;  // In the first chunk.
  absl::Time first_at_;
  absl::Time last_at_;
};

}  // namespace tandem::router

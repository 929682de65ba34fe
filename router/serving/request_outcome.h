#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "router/drafters/choice/live_costs.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// What the choice of drafters learns from a request that ended with `stats`, after `num_tokens` tokens of
// output were seen, with `drafter` (empty: none). How fast it went is the verifier's own figure: when tokens
// get to the client is up to the client. What a verifier says is believed as far as it can be true:
// acceptance of a drafter that is not the one that was chosen, or of more tokens than there are, is not.
RequestOutcome OutcomeOf(absl::string_view drafter, const v1::SpeculationStats& stats, uint32_t num_tokens);

}  // namespace tandem::router

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "router/drafters/choice/live_costs.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// What the choice of drafters learns from a request that ended with `stats`, after `num_tokens` output
// tokens, with `drafter` (empty: none). The speed is the verifier's own figure, because the client decides
// when it reads its tokens. Figures that cannot be true are ignored: acceptance of a drafter other than the
// chosen one, or of more tokens than there are.
RequestOutcome OutcomeOf(absl::string_view drafter, const v1::SpeculationStats& stats, uint32_t num_tokens);

}  // namespace tandem::router

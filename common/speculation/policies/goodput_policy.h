#pragma once

#include <memory>

#include "common/speculation/policies/window_policy.h"

namespace tandem {

// The window whose rounds are expected to commit the most tokens per second:
//
//   (1 + sum over d <= g of a_1 ... a_d) / (max(b_p(g), g * hidden) + g * exposed)
//
// a_d is the session's own acceptance at level d, with the drafter's over all sessions as its prior; `hidden`
// is the drafter's time per level while a round is verified, which costs nothing until it is longer than the
// round, and `exposed` what rounds have had to wait. 0 when drafting does not pay or when, round after round,
// no candidate was found worth a row; with probes (RoundProbe), unless it is the drafter as a whole that does
// not pay (DraftPayoff).
//
// This bounds what is drafted. What of it is verified is chosen over the whole batch, by ChooseNodes.
std::unique_ptr<WindowPolicy> MakeGoodputPolicy(const GoodputOptions& options = {});

}  // namespace tandem

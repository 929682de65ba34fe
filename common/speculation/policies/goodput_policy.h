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
// round, and `exposed` the time that rounds waited. The window is 0 if drafting does not pay or if, round
// after round, no candidate was worth a row. A session with window 0 makes probes (RoundProbe), unless the
// drafter as a whole does not pay (DraftPayoff).
//
// The window only bounds drafting. ChooseNodes selects the nodes to verify, over the whole batch.
std::unique_ptr<WindowPolicy> MakeGoodputPolicy(const GoodputOptions& options = {});

}  // namespace tandem

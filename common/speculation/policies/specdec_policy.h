#pragma once

#include <memory>

#include "common/speculation/policies/window_policy.h"

namespace tandem {

// SpecDec++ (Huang et al., "SpecDec++: Boosting speculative decoding via adaptive candidate lengths", 2024):
// the largest window, which ends for each round where the drafter's stop head says that a token before will
// have been rejected with a probability above the threshold (algorithm 1).
std::unique_ptr<WindowPolicy> MakeSpecDecPolicy(const SpecDecOptions& options = {});

}  // namespace tandem

#pragma once

#include <memory>

#include "common/speculation/policies/window_policy.h"

namespace tandem {

// SpecDec++ (Huang et al., "SpecDec++: Boosting speculative decoding via adaptive candidate lengths", 2024):
// the largest window, which ends in each round where, by the drafter's stop head, the probability that an
// earlier token is rejected exceeds the threshold (algorithm 1).
std::unique_ptr<WindowPolicy> MakeSpecDecPolicy(const SpecDecOptions& options = {});

}  // namespace tandem

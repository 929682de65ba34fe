#pragma once

#include <memory>

#include "common/speculation/policies/window_policy.h"

namespace tandem {

// The depth g that maximises the expected tokens per second (On-the-fly adaptation, method 1, equation 1):
//
//   (1 - A^(g+1)) / ((1 - A) * (g * a_q + b_p(g)))
//
// with A from AcceptanceEstimate (equation 2, or 11 or 12). The paper drafts again only when the estimate
// changes, which it cannot without drafts: here a window of 1 is tried for a few rounds now and then
// (RoundProbe).
std::unique_ptr<WindowPolicy> MakeAnalyticPolicy(const AcceptanceEstimate::Options& options = {});

}  // namespace tandem

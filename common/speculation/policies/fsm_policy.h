#pragma once

#include <memory>

#include "common/speculation/policies/window_policy.h"

namespace tandem {

// A saturating counter, as a branch predictor has (On-the-fly adaptation, method 2):
//
//   g <- max(g - 1, 0)    when a draft token was rejected,
//   g <- min(g + 1, max)  when all were accepted.
//
// A round with a window of 0 rejects nothing and so counts as all accepted: from 0 the counter comes back by
// itself. A round that wanted drafts and got none says nothing.
std::unique_ptr<WindowPolicy> MakeFsmPolicy(const FsmOptions& options = {});

}  // namespace tandem

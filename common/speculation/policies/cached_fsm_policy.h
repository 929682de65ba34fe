#pragma once

#include <memory>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/policies/window_policy.h"

namespace tandem {

// A counter that leans on which tokens have been seen (On-the-fly adaptation, method 3). The cache holds the
// tokens of the prompt and every token committed since; per round, with the cache as it was before:
//
//   g <- g + 1  when a validated token is in the cache,
//   g <- g - 1  when none is,
//   g <- g + 1  in addition when all draft tokens were accepted,
//
// within [0, max]. Validated are the accepted tokens and the target's own, so that a window of 0 can open
// again.
//
// `tokens`: prompt and output so far.
std::unique_ptr<WindowPolicy> MakeCachedFsmPolicy(const FsmOptions& options,
                                                  absl::Span<const TokenId> tokens);

}  // namespace tandem

#pragma once

#include <memory>

#include "common/speculation/policies/window_policy.h"

namespace tandem {

// SGLang's adaptive speculation: a moving average of the accepted length chooses among a few windows.
//
//   ema <- (1 - ema_alpha) * ema + ema_alpha * accepted,   after every drafted round
//
// After `warmup_batches` rounds, every `update_interval` rounds, the window moves towards
// round(ema) + 1, one step beyond what is accepted: up past a tier t while ema > t - 0.5 + up_hysteresis, and
// down to the tier t below while ema <= t - 0.5 + down_hysteresis. SGLang averages over a batch, here every
// session has its own average. It begins at the value that keeps the first tier.
std::unique_ptr<WindowPolicy> MakeEmaTiersPolicy(const EmaTiersOptions& options = {});

}  // namespace tandem

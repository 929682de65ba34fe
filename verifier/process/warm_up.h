#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/speculation/round_time_model.h"

namespace tandem {

// Runs forward passes of 1, 2, 4, ... rows, all with a choice where the engine chooses and else with logits,
// each over a short and a long context, and takes the fastest of a few of each as the round-time model's
// grid. Touches every weight, so that the first request finds the engine warm. Uses blocks of `pool` and
// gives them back. Cancelled when `stopped`, which is asked before each pass, says so; unset, it never does.
absl::StatusOr<RoundTimeModel> MeasureRoundTimes(Engine* engine, BlockPool* pool,
                                                 const std::function<bool()>& stopped = nullptr);

}  // namespace tandem

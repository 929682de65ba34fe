#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/speculation/round_time_model.h"

namespace tandem {

// Measures forward passes of 1, 2, 4, ... rows, each over a short and a long context; the fastest of a few
// runs of each goes into the grid of the round-time model. All rows ask for choices if the engine chooses,
// otherwise for logits. This touches every weight, so that the engine is warm for the first request. Uses
// blocks of `pool` and frees them. Cancelled if `stopped`, which is called before each pass, returns true;
// `stopped` may be unset.
absl::StatusOr<RoundTimeModel> MeasureRoundTimes(Engine* engine, BlockPool* pool,
                                                 const std::function<bool()>& stopped = nullptr);

}  // namespace tandem

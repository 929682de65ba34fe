#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/cuda/kernels/step_words.h"
#include "common/engine/engine.h"

namespace tandem {

// A pass of attention has a multiple of so many rows, unless it is the last: no work item crosses one.
inline constexpr uint32_t kAttendRows = 64;

// Which input states of a draft head's rows stay in float32, because they are not only multiplied: states
// that continue unchanged (EAGLE-3), or that are normed first (MTP). All others are rounded to bfloat16, as
// their product would round them.
enum class FloatStates : uint8_t { kNone, kOwn, kAll };

// The places of adapters, for kernels.
using AdapterPlaces = std::map<AdapterId, uint32_t>;

struct StepPlanOptions {
  uint32_t max_rows = 0;
  uint32_t sliding_window = 0;  // 0: none.
  uint32_t rows_per_item = 1;   // At most StepWords::kMaxItemRows.
  uint32_t num_layers = 0;      // Of the model.
  FloatStates float_states = FloatStates::kNone;
  const AdapterPlaces* adapters = nullptr;  // All that rows name; null: none.
};

// Writes `rows` (valid ones, at most max_rows) as kernels read them (step_words.h). Neighbours that begin
// with the same blocks, such as those of a prompt or a tree, share a work item, so the rows of a session
// should be adjacent. Sharing an item only changes the time that it takes.
void WriteStepWords(absl::Span<const StepRow> rows, const StepPlanOptions& options,
                    std::vector<uint32_t>* words);

// The number of a step's words with fixed positions.
uint64_t FixedStepWords(uint32_t max_rows);

// The slot that receives a row's keys and values: the last of its context.
SlotId SlotWritten(const RowContext& context);

}  // namespace tandem

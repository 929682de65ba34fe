#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/cuda/kernels/step_words.h"
#include "common/engine/engine.h"

namespace tandem {

// Rows that attention goes through at once: its scratch holds as many, and no work item spans a multiple of
// it.
inline constexpr uint32_t kAttendRows = 64;

// Which states that a draft head's rows read stay in float32, because more is done with them than to multiply
// them: those that go on as they are (EAGLE-3), or are normed first (MTP). All others are rounded to
// bfloat16, as the product that they enter would round them.
enum class FloatStates : uint8_t { kNone, kOwn, kAll };

// Where kernels find adapters.
using AdapterPlaces = std::map<AdapterId, uint32_t>;

struct StepPlanOptions {
  uint32_t max_rows = 0;
  uint32_t sliding_window = 0;  // 0: none.
  uint32_t rows_per_item = 1;   // At most StepWords::kMaxItemRows.
  uint32_t num_layers = 0;      // Of the model.
  FloatStates float_states = FloatStates::kNone;
  const AdapterPlaces* adapters = nullptr;  // Of all that rows name; null: none.
};

// Writes `rows` (valid ones, at most max_rows) as kernels read them (step_words.h). Neighbours that begin
// with the same blocks, as a prompt's and a tree's do, become work items together; so the rows of a session
// should stand side by side. Which rows share an item changes nothing but the time it takes.
void WriteStepWords(absl::Span<const StepRow> rows, const StepPlanOptions& options,
                    std::vector<uint32_t>* words);

// How many words of a step stand at fixed places.
uint64_t FixedStepWords(uint32_t max_rows);

// The slot that a row's keys and values are written to: the last of its context.
SlotId SlotWritten(const RowContext& context);

}  // namespace tandem

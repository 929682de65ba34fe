#include "verifier/warm_up.h"

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/engine/sequence_kv.h"

namespace tandem {
namespace {

constexpr uint32_t kContext = 64;
constexpr uint32_t kLargestRows = 64;
constexpr int kRepetitions = 5;

}  // namespace

absl::StatusOr<RoundTimeModel> MeasureRoundTimes(Engine* engine, BlockPool* pool) {
  const ModelConfig& config = engine->config();
  const uint32_t largest = std::min(kLargestRows, engine->max_rows());
  const auto length = std::min<uint32_t>(kContext, static_cast<uint32_t>(config.max_context));
  SequenceKv kv(pool, /*salt=*/0);
  kv.Start(TokenIds(length, 0));
  TANDEM_RETURN_IF_ERROR(kv.Reserve(length));
  std::vector<SlotId> slots;
  for (uint32_t i = 0; i < largest; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const SlotId slot, kv.AllocateScratch());
    slots.push_back(slot);
  }
  std::vector<float> logits(size_t{largest} * static_cast<size_t>(config.vocab_size));

  // The common prefix, computed once, one row a step.
  for (uint32_t position = 0; position + 1 < length; ++position) {
    const StepRow row{.token = 0, .context = kv.CommittedRow(position)};
    TANDEM_RETURN_IF_ERROR(engine->Step(absl::MakeConstSpan(&row, 1)));
  }
  std::vector<RoundTimeModel::Point> grid;
  for (uint32_t num_rows = 1; num_rows <= largest; num_rows *= 2) {
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < num_rows; ++i) {
      rows.push_back({.token = 0,
                      .context = {.blocks = kv.blocks(),
                                  .num_committed = length - 1,
                                  .tail = absl::MakeConstSpan(slots).subspan(i, 1)},
                      .logits = &logits[size_t{i} * static_cast<size_t>(config.vocab_size)]});
    }
    absl::Duration fastest = absl::InfiniteDuration();
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      const absl::Time start = absl::Now();
      TANDEM_RETURN_IF_ERROR(engine->Step(rows));
      fastest = std::min(fastest, absl::Now() - start);
    }
    grid.push_back({.rows = num_rows, .seconds = absl::ToDoubleSeconds(fastest)});
  }
  return RoundTimeModel(std::move(grid));
}

}  // namespace tandem

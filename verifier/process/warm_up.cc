#include "verifier/process/warm_up.h"

#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/engine/sequence_kv.h"

namespace tandem {
namespace {

// Contexts of the grid: short, and long enough to tell what a token more to attend to costs.
constexpr uint32_t kContexts[] = {64, 512};
constexpr uint32_t kLargestRows = 64;
constexpr int kRepetitions = 5;

// A pass, unless the warm-up should stop.
absl::Status StepUnless(const std::function<bool()>& stopped, Engine* engine,
                        absl::Span<const StepRow> rows) {
  if (stopped != nullptr && stopped()) return absl::CancelledError("the warm-up was stopped");
  return engine->Step(rows);
}

// Computes the first `length` tokens of `kv`.
absl::Status Prefill(const std::function<bool()>& stopped, Engine* engine, const SequenceKv& kv,
                     uint32_t length) {
  std::vector<StepRow> rows;
  for (uint32_t position = 0; position < length; ++position) {
    rows.push_back({.token = 0, .context = kv.CommittedRow(position)});
    if (rows.size() < std::min(kLargestRows, engine->max_rows()) && position + 1 < length) continue;
    TANDEM_RETURN_IF_ERROR(StepUnless(stopped, engine, rows));
    rows.clear();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RoundTimeModel> MeasureRoundTimes(Engine* engine, BlockPool* pool,
                                                 const std::function<bool()>& stopped) {
  const ModelConfig& config = engine->config();
  const uint32_t largest = std::min(kLargestRows, engine->max_rows());
  // Half of the pool at most: the rows need slots of their own.
  const uint64_t room = std::min<uint64_t>(static_cast<uint64_t>(config.max_context),
                                           uint64_t{pool->num_blocks()} * kBlockTokens / 2);
  std::vector<uint32_t> contexts;
  for (uint32_t context : kContexts) {
    if (context <= room || contexts.empty()) {
      contexts.push_back(static_cast<uint32_t>(std::min<uint64_t>(context, room)));
    }
  }
  SequenceKv kv(pool, /*salt=*/0);
  kv.Start(TokenIds(contexts.back(), 0));
  TANDEM_RETURN_IF_ERROR(kv.Reserve(contexts.back()));
  std::vector<SlotId> slots;
  for (uint32_t i = 0; i < largest; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const SlotId slot, kv.AllocateScratch());
    slots.push_back(slot);
  }
  const auto vocab_size = static_cast<size_t>(config.vocab_size);
  std::vector<float> logits(engine->chooses() ? 0 : largest * vocab_size);
  // What most requests ask of an engine that chooses.
  const SamplingParameters sampling = {.temperature = 0.8f, .top_p = 0.95f};
  std::vector<TokenId> tokens(largest);
  std::vector<SeededChoice> choices;
  for (TokenId& token : tokens) choices.push_back({.sampling = &sampling, .token = &token});
  TANDEM_RETURN_IF_ERROR(Prefill(stopped, engine, kv, contexts.back() - 1));

  const auto fastest_step = [&](uint32_t num_rows, uint32_t context) -> absl::StatusOr<double> {
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < num_rows; ++i) {
      rows.push_back({.token = 0,
                      .context = {.blocks = kv.blocks(),
                                  .num_committed = context - 1,
                                  .tail = absl::MakeConstSpan(slots).subspan(i, 1)}});
      if (engine->chooses()) {
        rows.back().choice = &choices[i];
      } else {
        rows.back().logits = &logits[i * vocab_size];
      }
    }
    absl::Duration fastest = absl::InfiniteDuration();
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      const absl::Time start = absl::Now();
      TANDEM_RETURN_IF_ERROR(StepUnless(stopped, engine, rows));
      fastest = std::min(fastest, absl::Now() - start);
    }
    return absl::ToDoubleSeconds(fastest);
  };
  std::vector<RoundTimeModel::Point> grid;
  for (uint32_t context : contexts) {
    for (uint32_t num_rows = 1; num_rows <= largest; num_rows *= 2) {
      TANDEM_ASSIGN_OR_RETURN(const double seconds, fastest_step(num_rows, context));
      grid.push_back({.rows = num_rows, .seconds = seconds, .context = context});
    }
  }
  return RoundTimeModel(grid);
}

}  // namespace tandem

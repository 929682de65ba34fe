#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/engine/sequence_kv.h"
#include "common/speculation/round_time_model.h"

namespace tandem {

// Measures forward passes of 1, 2, 4, ... rows for the grid of the round-time model, pass by pass, so that
// its owner can serve requests in between. All rows ask for choices if the engine chooses, otherwise for
// logits.
//
// All passes together take at most the budget. Before a pass, what it may take is bounded from what was
// measured: a pass of twice the rows takes at most twice as long. A pass that might not end in time is not
// made. What a model is too slow to have measured is interpolated and extrapolated (RoundTime), and steps in
// service correct it. The order follows from that: first how times grow with rows, coarsely, then the points
// in between, then a long context, for models that compute one in a part of the budget, then every point
// again while there is budget left: the fastest time counts, because what disturbs a pass only adds. What is
// known then (warm_up_test.cc): where a row takes up to 80 ms, all points up to 16 rows; up to half a second,
// times within a factor of 1.4 there; from a second on, a guess.
//
//   construction --Pass--> ... --Pass--> done() --> RoundTime() is as good as it gets
//
// Plain state without locks: belongs to the thread that owns the engine. `engine`, `pool` and `clock` outlive
// it. Takes blocks of `pool` for a pass, or for a long context until Release.
class WarmUp {
 public:
  struct Options {
    std::string model;  // What log lines call it.
    absl::Duration budget = absl::Seconds(3);
  };
  WarmUp(Engine* engine, BlockPool* pool, const Clock* clock, Options options);

  // One pass, or none if all is done. `alone`: nobody else needs the pool's blocks, or waits; otherwise there
  // are no passes for a long context, and none at all if only these are left. After an error, which is the
  // engine's or ResourceExhausted without blocks, it is done.
  absl::Status Pass(bool alone);
  // Gives blocks back that are kept from pass to pass.
  void Release();
  bool done() const { return done_; }
  // How many points of the grid were measured; and how long all passes took.
  uint32_t num_measured() const;
  absl::Duration spent() const { return spent_; }

  // The model from what was measured so far. Needs one Pass without an error.
  RoundTimeModel RoundTime() const;

 private:
  // A point of the grid.
  struct Point {
    uint32_t rows = 0;
    bool deep = false;  // In a long context, or in none.
    double seconds = 0.0;
    uint32_t runs = 0;
  };

  double Left() const;
  // The most that a pass of so many rows may take, without a context.
  double Bound(uint32_t rows) const;
  // The next point to measure, if any can be.
  std::optional<size_t> NextPoint(bool alone) const;
  // Whether a long context, and passes in it, can be computed in a part of what is left.
  bool CanGoDeep() const;
  uint32_t CheapestRows() const;
  bool IsFlat(const Point& point) const { return point.runs > 0 && !point.deep; }

  absl::Status Measure(Point* point);
  // Computes a part of the long context.
  absl::Status Deepen();
  absl::StatusOr<double> Step(absl::Span<const StepRow> rows);
  void LogProgress(bool at_end);
  void End();

  Engine* const engine_;
  BlockPool* const pool_;
  const Clock* const clock_;
  const Options options_;
  uint32_t largest_ = 0;       // Rows.
  uint32_t deep_context_ = 0;  // 0: the pool or the model has no room for one.
  std::vector<Point> points_;  // In the order in which they are wanted; the first is one row.
  std::optional<SequenceKv> deep_kv_;
  uint32_t depth_ = 0;  // Tokens of it that were computed.
  absl::Duration spent_;
  absl::Time last_log_;
  bool done_ = false;
};

}  // namespace tandem

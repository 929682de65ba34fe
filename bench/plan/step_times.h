#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/speculation/round_time_model.h"

namespace tandem::plan {

// The duration of a pass by its rows and by the mean number of tokens that a row attends to: a grid,
// interpolated like the verifier's own round-time model. Immutable.
class StepTimes {
 public:
  StepTimes() : StepTimes({{.rows = 1, .seconds = 0.0}}) {}
  // Every combination of some numbers of rows and some contexts.
  explicit StepTimes(const std::vector<RoundTimeModel::Point>& grid) : grid_(grid) {}

  // "25" or "25+0.5": milliseconds of one row, and of each further one. InvalidArgument as of ParsePace.
  static absl::StatusOr<StepTimes> OfPace(absl::string_view text);
  // The medians of one run of `tandem-bench engine --json`, with `threads`, or the run with the most threads
  // if 0; times `factor`. Errors name file and field.
  static absl::StatusOr<StepTimes> OfEngineReport(absl::string_view json, absl::string_view path,
                                                  uint32_t threads, double factor);

  absl::Duration Of(uint32_t rows, uint32_t context) const {
    return absl::Seconds(grid_.Uncorrected(rows, context));
  }
  // As a verifier measures it at warm-up: 1 to 64 rows, with a short and a long context.
  RoundTimeModel AsMeasured() const;

 private:
  RoundTimeModel grid_;
};

}  // namespace tandem::plan

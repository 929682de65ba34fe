#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/speculation/round_time_model.h"

namespace tandem::plan {

// How long a step takes, by its number of rows and the mean context of a row. Interpolates a grid in the same
// way as the verifier's round-time model. Immutable.
class StepTimes {
 public:
  StepTimes() : StepTimes({{.rows = 1, .seconds = 0.0}}) {}
  // `grid`: every combination of some numbers of rows and some contexts.
  explicit StepTimes(const std::vector<RoundTimeModel::Point>& grid) : grid_(grid) {}

  // "25" or "25+0.5": the milliseconds of one row, and of each further row. InvalidArgument as of ParsePace.
  static absl::StatusOr<StepTimes> OfPace(absl::string_view text);
  // The medians of a run of `tandem-bench engine --json`, multiplied by `factor`. Takes the run with this
  // number of threads; 0: the run with the most. Errors name the file and the field.
  static absl::StatusOr<StepTimes> OfEngineReport(absl::string_view json, absl::string_view path,
                                                  uint32_t threads, double factor);

  absl::Duration Of(uint32_t rows, uint32_t context) const {
    return absl::Seconds(grid_.Uncorrected(rows, context));
  }
  // The model that a verifier measures at warm-up: 1 to 64 rows, with a short and a long context.
  RoundTimeModel AsMeasured() const;

 private:
  RoundTimeModel grid_;
};

}  // namespace tandem::plan

#pragma once

#include <array>

#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"

namespace tandem {

// Metrics about the calibration of a drafter's scores, by {target, drafter, score}. `score` is the upper end
// of one of kRanges ranges of equal width:
//
//   tandem_spec_decode_calibration_nodes_total            judged candidates: verified below the root or below
//                                                         an accepted node
//   tandem_spec_decode_calibration_accepted_nodes_total   those of them that were accepted
//   tandem_spec_decode_calibration_score_sum_total        sum of their scores
//   tandem_spec_decode_calibration_expected_nodes_total   sum of their calibrated probabilities of acceptance
//
// The reliability curve plots, for each range, accepted / nodes (the accepted share) over score_sum / nodes
// (the mean score), with expected / nodes (the mean calibrated probability).
class CalibrationMetrics {
 public:
  static constexpr int kRanges = 10;

  // The series of one {target, drafter}; cheap to copy, for a session to keep.
  class Series {
   public:
    Series() = default;
    // Records one judged candidate. Ranges include their upper ends. A score outside (0, 1] counts in the
    // nearest range, NaN in the lowest.
    void Record(float score, double calibrated, bool accepted) const;

   private:
    friend class CalibrationMetrics;
    struct Range {
      Counter nodes;
      Counter accepted;
      Counter score_sum;
      Counter expected;
    };
    std::array<Range, kRanges> ranges_;
  };

  // One per registry, which outlives this.
  explicit CalibrationMetrics(MetricsRegistry* registry);

  Series With(absl::string_view target, absl::string_view drafter);

 private:
  CounterFamily& nodes_;
  CounterFamily& accepted_;
  CounterFamily& score_sum_;
  CounterFamily& expected_;
};

}  // namespace tandem

#pragma once

#include <array>

#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"

namespace tandem {

// How reliable a drafter's scores are, by {target, drafter, score}, `score` being the upper end of one of
// kRanges ranges of equal width:
//
//   tandem_spec_decode_calibration_nodes_total            candidates that the target judged: verified below
//   one
//                                                         that was right, or below the root
//   tandem_spec_decode_calibration_accepted_nodes_total   of them, those that were right
//   tandem_spec_decode_calibration_score_sum_total        sum of their scores
//   tandem_spec_decode_calibration_expected_nodes_total   sum of what was made of the scores: probabilities
//   of
//                                                         acceptance
//
// The reliability curve: of each range, accepted / nodes, the share that was right, over score_sum / nodes,
// what the drafter said; with expected / nodes, what the verifier made of it.
class CalibrationMetrics {
 public:
  static constexpr int kRanges = 10;

  // The series of one {target, drafter}; cheap to copy, for a session to keep.
  class Series {
   public:
    Series() = default;
    // One candidate that was judged. Ranges hold their upper ends; a score outside (0, 1] counts in the
    // nearest range, one that is not a number in the lowest.
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

  // Once per registry, which outlives this.
  explicit CalibrationMetrics(MetricsRegistry* registry);

  Series With(absl::string_view target, absl::string_view drafter);

 private:
  CounterFamily& nodes_;
  CounterFamily& accepted_;
  CounterFamily& score_sum_;
  CounterFamily& expected_;
};

}  // namespace tandem

#include "common/metrics/calibration_metrics.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

CounterFamily& AddFamily(MetricsRegistry* registry, const char* what, const char* help) {
  return registry->AddCounter({.name = absl::StrFormat("tandem_spec_decode_calibration_%s_total", what),
                               .help = help,
                               .labels = {"target", "drafter", "score"}});
}

}  // namespace

CalibrationMetrics::CalibrationMetrics(MetricsRegistry* registry)
    : nodes_(AddFamily(
          registry, "nodes",
          "Verified candidates whose parent was accepted, by the upper end of their score's range.")),
      accepted_(AddFamily(registry, "accepted_nodes", "Accepted candidates among these.")),
      score_sum_(AddFamily(registry, "score_sum", "Sum of these candidates' scores.")),
      expected_(AddFamily(registry, "expected_nodes",
                          "Sum of these candidates' calibrated probabilities of acceptance.")) {}

CalibrationMetrics::Series CalibrationMetrics::With(absl::string_view target, absl::string_view drafter) {
  Series series;
  for (int i = 0; i < kRanges; ++i) {
    const std::string end = absl::StrFormat("%.1f", (i + 1.0) / kRanges);
    series.ranges_[static_cast<size_t>(i)] = {.nodes = nodes_.With({target, drafter, end}),
                                              .accepted = accepted_.With({target, drafter, end}),
                                              .score_sum = score_sum_.With({target, drafter, end}),
                                              .expected = expected_.With({target, drafter, end})};
  }
  return series;
}

void CalibrationMetrics::Series::Record(float score, double calibrated, bool accepted) const {
  const float bounded = score > 0.0f ? std::min(score, 1.0f) : 0.0f;
  // In float, where 0.3f * 10 is 3 again.
  const float place = std::max(std::ceil(bounded * kRanges) - 1.0f, 0.0f);
  const Range& range = ranges_[static_cast<size_t>(place)];
  range.nodes.Increment();
  if (accepted) range.accepted.Increment();
  range.score_sum.Increment(bounded);
  range.expected.Increment(calibrated > 0.0 ? std::min(calibrated, 1.0) : 0.0);
}

}  // namespace tandem

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "drafter/drafting/draft_core.h"

namespace tandem {

// A drafter's metrics, as listed in docs/reference/metrics.md. Only the engine thread calls the methods.
class DrafterMetrics {
 public:
  explicit DrafterMetrics(MetricsRegistry* registry);

  void RecordStep(absl::Duration took);
  // Records a score that was answered with a result.
  void RecordScore(absl::Duration took);
  // Sets counters and gauges to `stats`.
  void Update(const DraftStats& stats);

 private:
  Histogram step_seconds_;
  Histogram score_seconds_;
  Counter accepted_nodes_;
  Counter pruned_nodes_;
  Counter stale_nodes_;
  Counter prefill_tokens_;
  Counter feature_bytes_;
  Counter ignored_features_;
  Counter ignored_commits_;
  Counter parked_sessions_;
  Counter constrained_sessions_;
  Counter masked_rows_;
  Counter mask_seconds_;
  Counter forbidden_candidates_;
  Counter resyncs_;
  CounterFamily& model_step_seconds_;
  CounterFamily& refused_sessions_;
  CounterFamily& scores_;
  Gauge scores_waiting_;
  Gauge sessions_;
  Gauge backlog_nodes_;
  Gauge kv_tokens_used_;
  Gauge kv_tokens_capacity_;
  Gauge models_;
  Gauge retired_models_;
  DraftStats last_;
};

}  // namespace tandem

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"
#include "common/metrics/spec_decode_metrics.h"
#include "verifier/scheduler.h"

namespace tandem {

// A verifier's metrics (DESIGN section 7). Its methods are called by the engine thread.
class VerifierMetrics {
 public:
  VerifierMetrics(MetricsRegistry* registry, std::string target);

  SpecDecodeMetrics::Series SpeculationOf(absl::string_view tenant, absl::string_view drafter) {
    return speculation_.With(tenant, target_, drafter);
  }

  void RecordStep(const StepReport& report);
  void RecordRound(const RoundReport& report);
  void RecordStaleNodes(uint32_t count);
  void RecordFinished(const absl::Status& status, const SessionSummary& summary);
  void RecordViolation(absl::string_view drafter);
  void SetDrafterConnected(absl::string_view endpoint, bool connected);
  void SetLoad(uint32_t running, uint32_t waiting, uint64_t kv_tokens_used, uint64_t kv_tokens_total);

 private:
  const std::string target_;
  SpecDecodeMetrics speculation_;
  Histogram step_seconds_;
  Histogram batch_tokens_;
  Histogram draft_wait_seconds_;
  Counter prefill_tokens_;
  Counter preemptions_;
  Counter cached_prompt_tokens_;
  Counter output_tokens_;
  Counter stale_nodes_;
  Counter declined_nodes_;
  Counter expected_accepted_;
  Counter exposed_draft_seconds_;
  Counter rounds_hit_;
  Counter rounds_miss_;
  Counter rounds_undrafted_;
  CounterFamily& requests_;
  CounterFamily& violations_;
  GaugeFamily& drafter_connected_;
  Gauge running_;
  Gauge waiting_;
  Gauge kv_tokens_used_;
  Gauge kv_tokens_capacity_;
};

}  // namespace tandem

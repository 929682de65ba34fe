#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/metrics/spec_decode_metrics.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {

// The times of a request's events, by the engine thread's clock.
struct RequestTimes {
  absl::Time arrived;
  std::optional<absl::Time> started;       // Admitted: its prefill begins.
  std::optional<absl::Time> first_tokens;  // Committed,
  std::optional<absl::Time> last_tokens;   // and the latest ones.
};

// Metrics under vLLM's names, for dashboards, autoscalers and gateways that use those. Names, meanings,
// labels and buckets are those of vLLM, 0.11 and later (vllm/v1/metrics/loggers.py); there is one engine,
// number 0. docs/reference/metrics.md lists them, and those that have no meaning here. Called by the engine
// thread.
class VllmMetrics {
 public:
  VllmMetrics(MetricsRegistry* registry, const std::string& target);

  void RecordRound(const RoundReport& report);
  void RecordStep(const StepReport& report);
  void SetLoad(uint32_t running, uint32_t waiting, double kv_usage, uint64_t kv_tokens_total);

  void RecordStarted(uint32_t prompt_tokens);
  // `times` are those before these tokens.
  void RecordTokens(const RequestTimes& times, absl::Time at);
  // `max_tokens`: of the request.
  void RecordFinished(const absl::Status& status, const SessionSummary& summary, const RequestTimes& times,
                      uint32_t max_tokens, absl::Time at);

 private:
  const std::string target_;
  Counter drafts_;
  Counter draft_tokens_;
  Counter accepted_tokens_;
  std::array<Counter, SpecDecodeMetrics::kPositions> accepted_at_;
  Gauge running_;
  Gauge waiting_;
  Gauge waiting_for_capacity_;
  Counter rejections_;
  Gauge kv_usage_;
  GaugeFamily& cache_config_;
  uint64_t kv_tokens_ = 0;  // As cache_config_ has them.
  Counter preemptions_;
  Counter prompt_tokens_;
  Counter generation_tokens_;
  Counter cached_prompt_tokens_;
  Counter computed_prompt_tokens_;
  Counter found_prompt_tokens_;
  Counter prefix_cache_queries_;
  Counter prefix_cache_hits_;
  CounterFamily& finished_;
  Histogram step_tokens_;
  uint32_t tokens_since_step_ = 0;
  Histogram request_prompt_tokens_;
  Histogram request_generation_tokens_;
  Histogram request_most_generation_tokens_;
  Histogram request_outputs_;
  Histogram request_computed_tokens_;
  Histogram request_preemptions_;
  Histogram request_max_tokens_;
  Histogram time_to_first_token_;
  Histogram inter_token_latency_;
  Histogram time_per_output_token_;
  Histogram request_time_per_output_token_;
  Histogram latency_;
  Histogram queue_time_;
  Histogram prefill_time_;
  Histogram decode_time_;
  Histogram inference_time_;
};

}  // namespace tandem

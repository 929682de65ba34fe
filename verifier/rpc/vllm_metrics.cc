#include "verifier/rpc/vllm_metrics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/engine.h"

namespace tandem {
namespace {

constexpr absl::string_view kEngine = "0";

std::vector<double> TokenBuckets() {
  // 1, 2, 5, 10, ... up to what any model holds.
  std::vector<double> buckets;
  for (double power = 1.0; power < 1e7; power *= 10.0) {
    for (const double mantissa : {1.0, 2.0, 5.0}) buckets.push_back(mantissa * power);
  }
  return buckets;
}

std::vector<double> RequestSeconds() {
  return {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
          30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
}

std::vector<double> TokenSeconds() {
  return {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
          0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
}

std::vector<double> FirstTokenSeconds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
          1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
}

std::vector<double> StepTokens() {
  return {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
}

// What vLLM calls the end of a request.
absl::string_view FinishedReason(const absl::Status& status, const SessionSummary& summary) {
  if (status.ok()) return summary.end.reason == OutputEnd::Reason::kMaxTokens ? "length" : "stop";
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) ? "abort" : "error";
}

double SecondsFrom(absl::Time from, absl::Time to) {
  return std::max(absl::ToDoubleSeconds(to - from), 0.0);
}

Counter AddCounter(MetricsRegistry* registry, const std::string& target, const char* name, const char* help) {
  return registry->AddCounter({name, help, {"model_name", "engine"}}).With({target, kEngine});
}

Gauge AddGauge(MetricsRegistry* registry, const std::string& target, const char* name, const char* help) {
  return registry->AddGauge({name, help, {"model_name", "engine"}}).With({target, kEngine});
}

Histogram AddHistogram(MetricsRegistry* registry, const std::string& target, const char* name,
                       const char* help, std::vector<double> buckets) {
  return registry->AddHistogram({name, help, {"model_name", "engine"}}, std::move(buckets))
      .With({target, kEngine});
}

}  // namespace

VllmMetrics::VllmMetrics(MetricsRegistry* registry, const std::string& target)
    : target_(target),
      cache_config_(registry->AddGauge(
          {"vllm:cache_config_info",
           "Always 1; the labels give the tokens per KV cache block and the number of blocks.",
           {"engine", "block_size", "num_gpu_blocks"}})),
      finished_(registry->AddCounter(
          {"vllm:request_success_total",
           "Finished requests, by what ended the output: the model or a stop string (stop), max_tokens "
           "(length), the client or the deadline (abort), or a failure (error).",
           {"model_name", "engine", "finished_reason"}})) {
  const auto counter = [&](const char* name, const char* help) {
    return AddCounter(registry, target, name, help);
  };
  const auto gauge = [&](const char* name, const char* help) {
    return AddGauge(registry, target, name, help);
  };
  const auto histogram = [&](const char* name, const char* help, std::vector<double> buckets) {
    return AddHistogram(registry, target, name, help, std::move(buckets));
  };
  drafts_ = counter("vllm:spec_decode_num_drafts_total", "Rounds with at least one draft token.");
  draft_tokens_ = counter("vllm:spec_decode_num_draft_tokens_total", "Verified draft tokens.");
  accepted_tokens_ = counter("vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens.");
  CounterFamily& positions = registry->AddCounter({"vllm:spec_decode_num_accepted_tokens_per_pos_total",
                                                   "Accepted draft tokens at each position.",
                                                   {"model_name", "engine", "position"}});
  for (size_t i = 0; i < accepted_at_.size(); ++i) {
    accepted_at_[i] = positions.With({target, kEngine, absl::StrCat(i)});
  }
  running_ = gauge("vllm:num_requests_running", "Running requests.");
  waiting_ = gauge("vllm:num_requests_waiting", "Requests that wait for admission.");
  GaugeFamily& reasons =
      registry->AddGauge({"vllm:num_requests_waiting_by_reason",
                          "Requests that wait for admission, by what they wait for. Here all "
                          "wait for a place or for keys and values (capacity).",
                          {"model_name", "engine", "reason"}});
  waiting_for_capacity_ = reasons.With({target, kEngine, "capacity"});
  reasons.With({target, kEngine, "deferred"});
  rejections_ = registry
                    ->AddCounter({"vllm:admission_rejections_total",
                                  "Requests refused because the queue is full (max-waiting).",
                                  {"model_name", "reason"}})
                    .With({target, "max_num_queued_reqs"});
  kv_usage_ = gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, from 0 to 1.");
  preemptions_ = counter("vllm:num_preemptions_total", "Preemptions of requests.");
  prompt_tokens_ = counter("vllm:prompt_tokens_total", "Tokens of the prompts of admitted requests.");
  generation_tokens_ = counter("vllm:generation_tokens_total", "Committed tokens.");
  cached_prompt_tokens_ = counter("vllm:prompt_tokens_cached_total",
                                  "Prompt tokens of finished requests that were not computed.");
  CounterFamily& sources =
      registry->AddCounter({"vllm:prompt_tokens_by_source_total",
                            "Prompt tokens of finished requests, by where their keys and "
                            "values came from.",
                            {"model_name", "engine", "source"}});
  computed_prompt_tokens_ = sources.With({target, kEngine, "local_compute"});
  found_prompt_tokens_ = sources.With({target, kEngine, "local_cache_hit"});
  sources.With({target, kEngine, "external_kv_transfer"});
  prefix_cache_queries_ = counter("vllm:prefix_cache_queries_total",
                                  "Prompt tokens of finished requests, all looked up in the prefix cache.");
  prefix_cache_hits_ = counter("vllm:prefix_cache_hits_total",
                               "Prompt tokens of finished requests found in the prefix cache.");
  for (const absl::string_view reason : {"stop", "length", "abort", "error"}) {
    finished_.With({target, kEngine, reason});
  }
  step_tokens_ = histogram("vllm:iteration_tokens_total",
                           "Prompt tokens computed plus tokens committed, per forward pass.", StepTokens());
  request_prompt_tokens_ =
      histogram("vllm:request_prompt_tokens", "Prompt tokens of finished requests.", TokenBuckets());
  request_generation_tokens_ =
      histogram("vllm:request_generation_tokens", "Output tokens of finished requests.", TokenBuckets());
  request_most_generation_tokens_ =
      histogram("vllm:request_max_num_generation_tokens",
                "Output tokens of finished requests; here every request has one output.", TokenBuckets());
  request_outputs_ =
      histogram("vllm:request_params_n", "Outputs of finished requests; a router makes one request of each.",
                {1, 2, 5, 10, 20});
  request_computed_tokens_ = histogram("vllm:request_prefill_kv_computed_tokens",
                                       "Prompt tokens of finished requests that were computed, not found in "
                                       "the prefix cache.",
                                       TokenBuckets());
  request_preemptions_ =
      histogram("vllm:request_num_preemptions", "Preemptions of finished requests.", {1, 2, 3, 4, 5, 10, 20});
  request_max_tokens_ =
      histogram("vllm:request_params_max_tokens", "max_tokens of finished requests.", TokenBuckets());
  time_to_first_token_ = histogram("vllm:time_to_first_token_seconds",
                                   "Time from a request's arrival to its first tokens.", FirstTokenSeconds());
  inter_token_latency_ =
      histogram("vllm:inter_token_latency_seconds",
                "Time between two commits of a request, each of one or more tokens.", TokenSeconds());
  time_per_output_token_ =
      histogram("vllm:time_per_output_token_seconds",
                "vllm:inter_token_latency_seconds under its older name.", TokenSeconds());
  request_time_per_output_token_ =
      histogram("vllm:request_time_per_output_token_seconds",
                "Decode time of a finished request per token after the first.", TokenSeconds());
  latency_ = histogram("vllm:e2e_request_latency_seconds", "Time from a request's arrival to its end.",
                       RequestSeconds());
  queue_time_ = histogram("vllm:request_queue_time_seconds",
                          "Time from a request's arrival to its admission.", RequestSeconds());
  prefill_time_ = histogram("vllm:request_prefill_time_seconds",
                            "Time from a request's admission to its first tokens.", RequestSeconds());
  decode_time_ = histogram("vllm:request_decode_time_seconds",
                           "Time from a request's first tokens to its last ones.", RequestSeconds());
  inference_time_ = histogram("vllm:request_inference_time_seconds",
                              "Time from a request's admission to its last tokens.", RequestSeconds());
}

void VllmMetrics::RecordRound(const RoundReport& report) {
  generation_tokens_.Increment(report.committed);
  tokens_since_step_ += report.committed;
  if (report.kind == RoundKind::kUndrafted) return;
  drafts_.Increment();
  draft_tokens_.Increment(report.nodes);
  accepted_tokens_.Increment(report.accepted);
  const size_t positions = std::min<size_t>(report.accepted, accepted_at_.size());
  for (size_t i = 0; i < positions; ++i) accepted_at_[i].Increment();
}

void VllmMetrics::RecordStep(const StepReport& report) {
  preemptions_.Increment(report.preemptions);
  step_tokens_.Observe(report.prefill_rows + tokens_since_step_);
  tokens_since_step_ = 0;
}

void VllmMetrics::SetLoad(uint32_t running, uint32_t waiting, double kv_usage, uint64_t kv_tokens_total) {
  running_.Set(running);
  waiting_.Set(waiting);
  waiting_for_capacity_.Set(waiting);
  kv_usage_.Set(kv_usage);
  if (kv_tokens_total == kv_tokens_) return;
  kv_tokens_ = kv_tokens_total;
  cache_config_.With({kEngine, absl::StrCat(kBlockTokens), absl::StrCat(kv_tokens_total / kBlockTokens)})
      .Set(1.0);
}

void VllmMetrics::RecordStarted(uint32_t prompt_tokens) {
  prompt_tokens_.Increment(prompt_tokens);
}

void VllmMetrics::RecordTokens(const RequestTimes& times, absl::Time at) {
  if (!times.last_tokens.has_value()) {
    time_to_first_token_.Observe(SecondsFrom(times.arrived, at));
    return;
  }
  const double seconds = SecondsFrom(*times.last_tokens, at);
  inter_token_latency_.Observe(seconds);
  time_per_output_token_.Observe(seconds);
}

void VllmMetrics::RecordFinished(const absl::Status& status, const SessionSummary& summary,
                                 const RequestTimes& times, uint32_t max_tokens, absl::Time at) {
  finished_.With({target_, kEngine, FinishedReason(status, summary)}).Increment();
  latency_.Observe(SecondsFrom(times.arrived, at));
  queue_time_.Observe(SecondsFrom(times.arrived, times.started.value_or(at)));
  if (max_tokens > 0) request_max_tokens_.Observe(max_tokens);
  request_prompt_tokens_.Observe(summary.prompt_tokens);
  request_generation_tokens_.Observe(summary.output_tokens);
  request_most_generation_tokens_.Observe(summary.output_tokens);
  request_outputs_.Observe(1);
  request_preemptions_.Observe(summary.preemptions);
  if (!times.started.has_value()) {
    if (absl::IsResourceExhausted(status)) rejections_.Increment();
    return;
  }
  // What the cache had is known at the end.
  const uint32_t computed =
      summary.prompt_tokens - std::min(summary.cached_prompt_tokens, summary.prompt_tokens);
  computed_prompt_tokens_.Increment(computed);
  request_computed_tokens_.Observe(computed);
  found_prompt_tokens_.Increment(summary.cached_prompt_tokens);
  cached_prompt_tokens_.Increment(summary.cached_prompt_tokens);
  prefix_cache_queries_.Increment(summary.prompt_tokens);
  prefix_cache_hits_.Increment(summary.cached_prompt_tokens);
  if (!times.first_tokens.has_value()) return;
  const double decoding = SecondsFrom(*times.first_tokens, *times.last_tokens);
  prefill_time_.Observe(SecondsFrom(*times.started, *times.first_tokens));
  decode_time_.Observe(decoding);
  inference_time_.Observe(SecondsFrom(*times.started, *times.last_tokens));
  if (summary.output_tokens > 1) {
    request_time_per_output_token_.Observe(decoding / (summary.output_tokens - 1));
  }
}

}  // namespace tandem

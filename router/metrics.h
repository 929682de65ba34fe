#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/metrics/spec_decode_metrics.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What the router tells Prometheus:
//
//   tandem_router_requests_total{tenant,model,code}             requests that got their terminal status, by
//   its code tandem_router_waiting, tandem_router_running                admitted requests before and after
//   `started` tandem_router_time_to_first_token_seconds{tenant,model}     arrival to the first chunk with
//   tokens tandem_router_inter_token_seconds{tenant,model}             between tokens; a chunk's share its
//   gap evenly tandem_router_request_seconds{tenant,model}                 arrival to the terminal status
//   tandem_router_drafter_selected_total{tenant,drafter,reason} requests sent to a verifier, by choice of
//   drafter tandem_router_prompt_tokens_total{tenant,model}, tandem_router_output_tokens_total{tenant,model}
//   tandem_spec_decode_*{tenant,target,drafter}                 from finished requests' statistics
//
// Thread-safe.
class RouterMetrics {
 public:
  // Once per registry, which outlives this.
  explicit RouterMetrics(MetricsRegistry* registry);

  // One request's contribution. Not thread-safe. Labels that are not known yet stay empty. Gauges are given
  // back by OnEnd.
  class Request {
   public:
    Request(RouterMetrics& metrics, absl::Time arrival) : metrics_(metrics), arrival_(arrival) {}

    void SetTenant(const std::string& tenant) { tenant_ = tenant; }
    void SetModel(const std::string& model) { model_ = model; }
    void OnAdmitted();
    // The prompt is tokenized and the drafter chosen; `drafter` is empty for none.
    void OnPrepared(const std::string& drafter, absl::string_view reason, uint32_t prompt_tokens);
    void OnStarted();
    void OnTokens(uint32_t count, absl::Time now);
    void OnFinished(const v1::GenerationFinished& finished);
    void OnEnd(absl::StatusCode code, absl::Time now);

   private:
    RouterMetrics& metrics_;
    const absl::Time arrival_;
    std::string tenant_;
    std::string model_;
    std::string drafter_;
    enum class Phase { kNew, kWaiting, kRunning, kEnded } phase_ = Phase::kNew;
    uint32_t num_tokens_ = 0;
    absl::Time last_tokens_at_;
    Histogram inter_token_;
    Counter output_tokens_;
  };

  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.value()); }
  uint32_t running() const { return static_cast<uint32_t>(running_.value()); }

 private:
  CounterFamily& requests_;
  Gauge waiting_;
  Gauge running_;
  HistogramFamily& time_to_first_token_;
  HistogramFamily& inter_token_;
  HistogramFamily& request_seconds_;
  CounterFamily& drafter_selected_;
  CounterFamily& prompt_tokens_;
  CounterFamily& output_tokens_;
  SpecDecodeMetrics spec_decode_;
};

}  // namespace tandem::router

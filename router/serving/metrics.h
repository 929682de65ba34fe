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

// The router's Prometheus metrics. Thread-safe.
//
//   requests
//     tandem_router_requests_total{tenant,model,code}          by the code of the terminal status
//     tandem_router_waiting, tandem_router_running             admitted requests, before and after `started`
//     tandem_router_queued                                     requests that wait for a place
//     tandem_router_queue_seconds{tenant}                      how long requests waited for their place
//     tandem_router_time_to_first_token_seconds{tenant,model}  arrival to the first chunk with tokens
//     tandem_router_inter_token_seconds{tenant,model}          between tokens; those of a chunk share its gap
//     tandem_router_request_seconds{tenant,model}              arrival to the terminal status
//     tandem_router_prompt_tokens_total{tenant,model}
//     tandem_router_output_tokens_total{tenant,model}
//   servers
//     tandem_router_verifier_waits_total{model,outcome}        waits for a verifier that serves
//     tandem_router_registered_servers{kind}                   verifiers and drafters that have registered
//   drafters
//     tandem_router_drafter_selected_total{tenant,drafter,reason}  requests sent to a verifier
//     tandem_router_choice_predicted_acceptance{tenant,drafter}    of requests whose drafter was chosen by a
//     tandem_router_choice_realised_acceptance{tenant,drafter}     prediction: sum / count is the mean, and
//     tandem_router_choice_acceptance_error{tenant,drafter}        the error is absolute
//     tandem_router_choice_surprises_total{tenant,drafter}         of these, outside of the 90% interval
//     tandem_spec_decode_*{tenant,target,drafter,source}           from the statistics of finished requests
//   canaries
//     tandem_router_canary_tokens_per_round{tenant,drafter}    in a trial: the tenant's drafter, the canary
//     tandem_router_canary_margin{tenant}                      uncertainty of their difference
//     tandem_router_canary_requests{tenant}                    requests of the canary
//     tandem_router_canary_promotions_total{tenant,drafter}    canaries that became their tenant's drafter
//     tandem_router_canary_rollbacks_total{tenant,drafter}     canaries that accepted too little
class RouterMetrics {
 public:
  // One per registry. `registry` outlives this.
  explicit RouterMetrics(MetricsRegistry* registry);

  // The metrics of one request. Labels that are not known yet stay empty. OnEnd takes the request
  // out of all gauges. Not thread-safe.
  class Request {
   public:
    Request(RouterMetrics& metrics, absl::Time arrival) : metrics_(metrics), arrival_(arrival) {}

    void SetTenant(const std::string& tenant) { tenant_ = tenant; }
    void SetModel(const std::string& model) { model_ = model; }
    // `queued`: the request waits for a place.
    void OnAdmitted(bool queued);
    // The request got its place.
    void OnPlaced(absl::Time now);
    // The prompt is tokenized and the drafter chosen; `drafter` is empty for none.
    void OnPrepared(const std::string& drafter, absl::string_view reason, uint32_t prompt_tokens);
    void OnStarted();
    // The drafter was chosen because acceptance `mean`, within [low, high], was predicted;
    // `realised` is what it was.
    void OnPrediction(double mean, double low, double high, double realised);
    // The request's verifier was lost. `kind`: "no output" or "mid-stream" if another one takes
    // over, "refused" if the retry budget does not allow it.
    void OnRetry(absl::string_view kind);
    // The request waited for a verifier that serves. `outcome`: "served", or "timed out" if none
    // came.
    void OnWaited(absl::string_view outcome);
    void OnTokens(uint32_t count, absl::Time now);
    // Returns false, and does not count the speculation statistics, if they contradict themselves.
    bool OnFinished(const v1::GenerationFinished& finished);
    void OnEnd(absl::StatusCode code, absl::Time now);

   private:
    RouterMetrics& metrics_;
    const absl::Time arrival_;
    std::string tenant_;
    std::string model_;
    std::string drafter_;
    enum class Phase { kNew, kQueued, kWaiting, kRunning, kEnded } phase_ = Phase::kNew;
    uint32_t num_tokens_ = 0;
    absl::Time last_tokens_at_;
    Histogram inter_token_;
    Counter output_tokens_;
  };

  // The state of the trial of a tenant's canary; all 0 once it is over.
  void SetCanary(const std::string& tenant, double own, double canary, double margin, double requests) {
    canary_tokens_per_round_.With({tenant, "own"}).Set(own);
    canary_tokens_per_round_.With({tenant, "canary"}).Set(canary);
    canary_margin_.With({tenant}).Set(margin);
    canary_requests_.With({tenant}).Set(requests);
  }
  // The verdict ended the trial of a canary.
  void RecordCanaryEnd(const std::string& tenant, const std::string& drafter, bool promoted) {
    (promoted ? canary_promotions_ : canary_rollbacks_).With({tenant, drafter}).Increment();
    SetCanary(tenant, 0, 0, 0, 0);
  }

  // Servers that are registered now.
  void SetRegistered(size_t verifiers, size_t drafters) {
    registered_verifiers_.Set(static_cast<double>(verifiers));
    registered_drafters_.Set(static_cast<double>(drafters));
  }

  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.value()); }
  uint32_t running() const { return static_cast<uint32_t>(running_.value()); }

 private:
  CounterFamily& requests_;
  Gauge queued_;
  HistogramFamily& queue_seconds_;
  Gauge waiting_;
  Gauge running_;
  HistogramFamily& time_to_first_token_;
  HistogramFamily& inter_token_;
  HistogramFamily& request_seconds_;
  CounterFamily& drafter_selected_;
  CounterFamily& canary_rollbacks_;
  CounterFamily& canary_promotions_;
  GaugeFamily& canary_tokens_per_round_;
  GaugeFamily& canary_margin_;
  GaugeFamily& canary_requests_;
  HistogramFamily& predicted_acceptance_;
  HistogramFamily& realised_acceptance_;
  HistogramFamily& acceptance_error_;
  CounterFamily& acceptance_surprises_;
  CounterFamily& retries_;
  CounterFamily& verifier_waits_;
  CounterFamily& prompt_tokens_;
  CounterFamily& output_tokens_;
  Gauge registered_verifiers_;
  Gauge registered_drafters_;
  SpecDecodeMetrics spec_decode_;
};

}  // namespace tandem::router

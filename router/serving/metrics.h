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
//   tandem_router_queued                                        requests that wait for a place
//   tandem_router_queue_seconds{tenant}                         how long requests waited for their place
//   tandem_router_canary_rollbacks_total{tenant,drafter}        canaries that accepted too little
//   tandem_router_drafter_selected_total{tenant,drafter,reason} requests sent to a verifier, by choice of
//   drafter tandem_router_prompt_tokens_total{tenant,model}, tandem_router_output_tokens_total{tenant,model}
//   tandem_router_choice_predicted_acceptance{tenant,drafter},
//   tandem_router_choice_realised_acceptance{tenant,drafter},
//   tandem_router_choice_acceptance_error{tenant,drafter}              of requests whose drafter was chosen
//   by prediction: the means are sum / count, and the error is absolute
//   tandem_router_choice_surprises_total{tenant,drafter}    of these, realised outside of the interval
//   that is to hold 90 of 100
//   tandem_router_verifier_waits_total{model,outcome}       waits for a verifier that serves
//   tandem_router_registered_servers{kind}                  verifiers and drafters that have registered
//   tandem_router_canary_promotions_total{tenant,drafter}       canaries that became their tenant's drafter
//   tandem_router_canary_tokens_per_round{tenant,drafter}       of a trial: the tenant's own drafter, the
//   canary tandem_router_canary_margin{tenant}                         how far their difference may be off
//   tandem_router_canary_requests{tenant}                       requests of the canary
//   tandem_spec_decode_*{tenant,target,drafter,source}          from finished requests' statistics
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
    // `queued`: it waits for a place.
    void OnAdmitted(bool queued);
    // It has its place among the requests in flight.
    void OnPlaced(absl::Time now);
    // The prompt is tokenized and the drafter chosen; `drafter` is empty for none.
    void OnPrepared(const std::string& drafter, absl::string_view reason, uint32_t prompt_tokens);
    void OnStarted();
    // The drafter was chosen by a prediction of its acceptance, in [low, high], and this came of it.
    void OnPrediction(double mean, double low, double high, double realised);
    // Its verifier was lost. `kind`: "no output" or "mid-stream" when another one takes over, or "refused" by
    // the retry budget.
    void OnRetry(absl::string_view kind);
    // It waited for a verifier that serves, and one came ("served") or none did ("timed out").
    void OnWaited(absl::string_view outcome);
    void OnTokens(uint32_t count, absl::Time now);
    // False if its speculation statistics contradict themselves, which are not counted then.
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

  // How the trial of a tenant's canary stands; all 0 once it is over.
  void SetCanary(const std::string& tenant, double own, double canary, double margin, double requests) {
    canary_tokens_per_round_.With({tenant, "own"}).Set(own);
    canary_tokens_per_round_.With({tenant, "canary"}).Set(canary);
    canary_margin_.With({tenant}).Set(margin);
    canary_requests_.With({tenant}).Set(requests);
  }
  // The trial of a canary ended by itself.
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

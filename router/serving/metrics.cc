#include "router/serving/metrics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "router/drafters/source_kind.h"

namespace tandem::router {
namespace {

std::vector<double> AcceptanceBuckets() {
  return {0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9};
}

// More than any request has: sources times drafters that it was swapped to, and levels of a tree.
constexpr int kMostSources = 64;
constexpr int kDeepestTree = 1024;

// Whether what a verifier says of one source can be true of an output of `num_tokens`. Every drafted round
// commits a token, so this also bounds what one report can weigh.
bool IsPlausible(const v1::SourceStats& stats, uint32_t num_tokens) {
  if (stats.source() == v1::DRAFT_SOURCE_UNSPECIFIED || !v1::DraftSource_IsValid(stats.source()))
    return false;
  if (stats.drafted_rounds() > num_tokens || stats.accepted_per_position_size() > kDeepestTree) return false;
  if (stats.draft_tokens() < stats.drafted_rounds()) return false;
  if (stats.drafted_rounds() == 0 && stats.draft_tokens() > 0) return false;
  uint64_t accepted = 0;
  for (uint32_t rounds : stats.accepted_per_position()) {
    if (rounds > stats.drafted_rounds()) return false;
    accepted += rounds;
  }
  return accepted == stats.accepted_tokens() && accepted <= stats.draft_tokens();
}

// The same of all sources, and that they add up to the whole.
bool IsPlausible(const v1::SpeculationStats& stats, uint32_t num_tokens) {
  if (stats.drafted_rounds() > num_tokens || stats.by_source_size() > kMostSources) return false;
  uint64_t draft_tokens = 0;
  uint64_t accepted_tokens = 0;
  for (const v1::SourceStats& source : stats.by_source()) {
    if (!IsPlausible(source, num_tokens)) return false;
    draft_tokens += source.draft_tokens();
    accepted_tokens += source.accepted_tokens();
  }
  return draft_tokens == stats.draft_tokens() && accepted_tokens == stats.accepted_tokens();
}

}  // namespace

RouterMetrics::RouterMetrics(MetricsRegistry* registry)
    : requests_(registry->AddCounter({"tandem_router_requests_total",
                                      "Requests that ended, by status code.",
                                      {"tenant", "model", "code"}})),
      queued_(registry->AddGauge({"tandem_router_queued", "Requests that wait for a place.", {}}).With()),
      queue_seconds_(registry->AddHistogram({"tandem_router_queue_seconds",
                                             "Time from a request's arrival until it has a place in flight.",
                                             {"tenant"}},
                                            ExponentialBuckets(0.0005, 4.0, 10))),
      waiting_(
          registry->AddGauge({"tandem_router_waiting", "Admitted requests that no verifier has started.", {}})
              .With()),
      running_(
          registry->AddGauge({"tandem_router_running", "Requests that a verifier has started.", {}}).With()),
      time_to_first_token_(registry->AddHistogram({"tandem_router_time_to_first_token_seconds",
                                                   "Time from a request's arrival to its first token.",
                                                   {"tenant", "model"}},
                                                  LatencyBuckets())),
      inter_token_(registry->AddHistogram(
          {"tandem_router_inter_token_seconds",
           "Time between tokens of an output; tokens of one chunk share its time evenly.",
           {"tenant", "model"}},
          ExponentialBuckets(0.0005, 2.0, 14))),
      request_seconds_(registry->AddHistogram(
          {"tandem_router_request_seconds", "Time from a request's arrival to its end.", {"tenant", "model"}},
          ExponentialBuckets(0.005, 2.0, 18))),
      drafter_selected_(registry->AddCounter({"tandem_router_drafter_selected_total",
                                              "Requests sent to a verifier, by chosen drafter and reason.",
                                              {"tenant", "drafter", "reason"}})),
      canary_rollbacks_(registry->AddCounter({"tandem_router_canary_rollbacks_total",
                                              "Canaries rolled back because they earned too little.",
                                              {"tenant", "drafter"}})),
      canary_promotions_(registry->AddCounter({"tandem_router_canary_promotions_total",
                                               "Canaries that became their tenant's drafter.",
                                               {"tenant", "drafter"}})),
      canary_tokens_per_round_(registry->AddGauge(
          {"tandem_router_canary_tokens_per_round",
           "Tokens per round in a tenant's trial: of its own drafter (own) and of the canary (canary).",
           {"tenant", "drafter"}})),
      canary_margin_(registry->AddGauge({"tandem_router_canary_margin",
                                         "Uncertainty of the difference between the two, at the confidence "
                                         "of a verdict; infinite while there is too little data.",
                                         {"tenant"}})),
      canary_requests_(registry->AddGauge(
          {"tandem_router_canary_requests", "Requests that were given to the canary.", {"tenant"}})),
      predicted_acceptance_(
          registry->AddHistogram({"tandem_router_choice_predicted_acceptance",
                                  "Predicted acceptance of drafters that were chosen by prediction.",
                                  {"tenant", "drafter"}},
                                 AcceptanceBuckets())),
      realised_acceptance_(
          registry->AddHistogram({"tandem_router_choice_realised_acceptance",
                                  "Realised acceptance of drafters that were chosen by prediction.",
                                  {"tenant", "drafter"}},
                                 AcceptanceBuckets())),
      acceptance_error_(
          registry->AddHistogram({"tandem_router_choice_acceptance_error",
                                  "Absolute difference between that predicted and realised acceptance.",
                                  {"tenant", "drafter"}},
                                 {0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5})),
      acceptance_surprises_(
          registry->AddCounter({"tandem_router_choice_surprises_total",
                                "Requests whose acceptance was outside the predicted 90 % interval.",
                                {"tenant", "drafter"}})),
      retries_(registry->AddCounter({"tandem_router_retries_total",
                                     "Requests that lost their verifier, by what happened next.",
                                     {"model", "kind"}})),
      verifier_waits_(registry->AddCounter(
          {"tandem_router_verifier_waits_total",
           "Waits for a serving verifier, by outcome: one came (served) or none did (timed out).",
           {"model", "outcome"}})),
      prompt_tokens_(registry->AddCounter(
          {"tandem_router_prompt_tokens_total", "Prompt tokens sent to verifiers.", {"tenant", "model"}})),
      output_tokens_(registry->AddCounter(
          {"tandem_router_output_tokens_total", "Tokens received from verifiers.", {"tenant", "model"}})),
      spec_decode_(registry) {
  GaugeFamily& registered = registry->AddGauge(
      {"tandem_router_registered_servers", "Registered verifiers and drafters.", {"kind"}});
  registered_verifiers_ = registered.With({"verifier"});
  registered_drafters_ = registered.With({"drafter"});
}

void RouterMetrics::Request::OnAdmitted(bool queued) {
  phase_ = queued ? Phase::kQueued : Phase::kWaiting;
  (queued ? metrics_.queued_ : metrics_.waiting_).Add(1);
}

void RouterMetrics::Request::OnPlaced(absl::Time now) {
  const bool queued = phase_ == Phase::kQueued;
  // Without the queue, what passed since the arrival is no waiting for a place.
  metrics_.queue_seconds_.With({tenant_}).Observe(queued ? absl::ToDoubleSeconds(now - arrival_) : 0.0);
  if (!queued) return;
  phase_ = Phase::kWaiting;
  metrics_.queued_.Add(-1);
  metrics_.waiting_.Add(1);
}

void RouterMetrics::Request::OnPrepared(const std::string& drafter, absl::string_view reason,
                                        uint32_t prompt_tokens) {
  drafter_ = drafter;
  metrics_.drafter_selected_.With({tenant_, drafter.empty() ? "none" : absl::string_view(drafter), reason})
      .Increment();
  metrics_.prompt_tokens_.With({tenant_, model_}).Increment(prompt_tokens);
  inter_token_ = metrics_.inter_token_.With({tenant_, model_});
  output_tokens_ = metrics_.output_tokens_.With({tenant_, model_});
}

void RouterMetrics::Request::OnPrediction(double mean, double low, double high, double realised) {
  metrics_.predicted_acceptance_.With({tenant_, drafter_}).Observe(mean);
  metrics_.realised_acceptance_.With({tenant_, drafter_}).Observe(realised);
  metrics_.acceptance_error_.With({tenant_, drafter_}).Observe(std::abs(mean - realised));
  if (realised < low || realised > high) metrics_.acceptance_surprises_.With({tenant_, drafter_}).Increment();
}

void RouterMetrics::Request::OnRetry(absl::string_view kind) {
  metrics_.retries_.With({model_, kind}).Increment();
}

void RouterMetrics::Request::OnWaited(absl::string_view outcome) {
  metrics_.verifier_waits_.With({model_, outcome}).Increment();
}

void RouterMetrics::Request::OnStarted() {
  phase_ = Phase::kRunning;
  metrics_.waiting_.Add(-1);
  metrics_.running_.Add(1);
}

void RouterMetrics::Request::OnTokens(uint32_t count, absl::Time now) {
  if (count == 0) return;
  if (num_tokens_ == 0) {
    metrics_.time_to_first_token_.With({tenant_, model_}).Observe(absl::ToDoubleSeconds(now - arrival_));
  } else {
    const double gap = absl::ToDoubleSeconds(now - last_tokens_at_) / count;
    for (uint32_t i = 0; i < count; ++i) inter_token_.Observe(gap);
  }
  num_tokens_ += count;
  last_tokens_at_ = now;
  output_tokens_.Increment(count);
}

bool RouterMetrics::Request::OnFinished(const v1::GenerationFinished& finished) {
  const v1::SpeculationStats& stats = finished.speculation();
  if (!IsPlausible(stats, num_tokens_)) return false;
  for (const v1::SourceStats& source : stats.by_source()) {
    metrics_.spec_decode_.With(tenant_, model_, source.drafter(), KindOf(source.source()))
        .Record(source.drafted_rounds(), source.draft_tokens(),
                absl::MakeConstSpan(source.accepted_per_position().data(),
                                    static_cast<size_t>(source.accepted_per_position_size())));
  }
  return true;
}

void RouterMetrics::Request::OnEnd(absl::StatusCode code, absl::Time now) {
  if (phase_ == Phase::kQueued) metrics_.queued_.Add(-1);
  if (phase_ == Phase::kWaiting) metrics_.waiting_.Add(-1);
  if (phase_ == Phase::kRunning) metrics_.running_.Add(-1);
  phase_ = Phase::kEnded;
  metrics_.requests_.With({tenant_, model_, absl::StatusCodeToString(code)}).Increment();
  metrics_.request_seconds_.With({tenant_, model_}).Observe(absl::ToDoubleSeconds(now - arrival_));
}

}  // namespace tandem::router

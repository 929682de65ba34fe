#include "verifier/metrics.h"

#include <algorithm>
#include <utility>

namespace tandem {

VerifierMetrics::VerifierMetrics(MetricsRegistry* registry, std::string target)
    : target_(std::move(target)),
      speculation_(registry),
      step_seconds_(
          registry
              ->AddHistogram({"tandem_verifier_step_seconds", "Time of one forward pass of the target.", {}},
                             ExponentialBuckets(0.0001, 2.0, 16))
              .With()),
      batch_tokens_(
          registry
              ->AddHistogram(
                  {"tandem_verifier_batch_tokens", "Rows (prompt, root and tree tokens) in one step.", {}},
                  ExponentialBuckets(1.0, 2.0, 11))
              .With()),
      draft_wait_seconds_(registry
                              ->AddHistogram({"tandem_verifier_draft_wait_seconds",
                                              "How long rounds that found no drafts waited for them.",
                                              {}},
                                             ExponentialBuckets(0.00005, 2.0, 14))
                              .With()),
      prefill_tokens_(
          registry->AddCounter({"tandem_verifier_prefill_tokens_total", "Prompt tokens computed.", {}})
              .With()),
      preemptions_(registry
                       ->AddCounter({"tandem_verifier_preemptions_total",
                                     "Times a request gave up its keys and values to others, to compute "
                                     "them again later.",
                                     {}})
                       .With()),
      cached_prompt_tokens_(registry
                                ->AddCounter({"tandem_verifier_cached_prompt_tokens_total",
                                              "Prompt tokens taken from the prefix cache.",
                                              {}})
                                .With()),
      output_tokens_(
          registry->AddCounter({"tandem_verifier_output_tokens_total", "Tokens committed.", {}}).With()),
      stale_nodes_(registry
                       ->AddCounter({"tandem_verifier_stale_nodes_total",
                                     "Candidates that arrived after a commit had ruled them out.",
                                     {}})
                       .With()),
      declined_nodes_(registry
                          ->AddCounter({"tandem_verifier_declined_nodes_total",
                                        "Candidates within the window that were not worth a row.",
                                        {}})
                          .With()),
      expected_accepted_(registry
                             ->AddCounter({"tandem_verifier_expected_accepted_tokens_total",
                                           "Accepted draft tokens that the calibrated scores of verified "
                                           "candidates promised.",
                                           {}})
                             .With()),
      exposed_draft_seconds_(
          registry
              ->AddCounter(
                  {"tandem_verifier_exposed_draft_seconds_total", "Time that rounds waited for drafts.", {}})
              .With()),
      requests_(registry->AddCounter(
          {"tandem_verifier_requests_total", "Finished requests by their terminal status.", {"code"}})),
      violations_(registry->AddCounter({"tandem_verifier_protocol_violations_total",
                                        "Messages of a drafter that broke the draft protocol.",
                                        {"drafter"}})),
      drafter_connected_(registry->AddGauge(
          {"tandem_verifier_drafter_connected", "1 while the stream to the drafter is open.", {"endpoint"}})),
      running_(
          registry->AddGauge({"tandem_verifier_running_requests", "Requests being computed.", {}}).With()),
      waiting_(registry
                   ->AddGauge({"tandem_verifier_waiting_requests",
                               "Requests waiting to be admitted, or admitted again.",
                               {}})
                   .With()),
      kv_tokens_used_(
          registry->AddGauge({"tandem_verifier_kv_tokens_used", "Tokens of keys and values held.", {}})
              .With()),
      kv_tokens_capacity_(
          registry->AddGauge({"tandem_verifier_kv_tokens_capacity", "Tokens of keys and values in all.", {}})
              .With()) {
  CounterFamily& rounds = registry->AddCounter({"tandem_verifier_rounds_total",
                                                "Verification rounds: drafts were there (hit), were waited "
                                                "for (miss), or there were none (undrafted).",
                                                {"outcome"}});
  rounds_hit_ = rounds.With({"hit"});
  rounds_miss_ = rounds.With({"miss"});
  rounds_undrafted_ = rounds.With({"undrafted"});
}

void VerifierMetrics::RecordStep(const StepReport& report) {
  step_seconds_.Observe(report.seconds);
  batch_tokens_.Observe(report.rows);
  prefill_tokens_.Increment(report.prefill_rows);
  preemptions_.Increment(report.preemptions);
}

void VerifierMetrics::RecordRound(const RoundReport& report) {
  output_tokens_.Increment(report.committed);
  switch (report.kind) {
    case RoundKind::kHit:
      rounds_hit_.Increment();
      break;
    case RoundKind::kMiss:
      rounds_miss_.Increment();
      break;
    case RoundKind::kUndrafted:
      rounds_undrafted_.Increment();
      break;
  }
  declined_nodes_.Increment(report.declined);
  expected_accepted_.Increment(report.expected_accepted);
  exposed_draft_seconds_.Increment(std::max(report.wait_seconds, 0.0));
  if (report.wait_seconds > 0.0) draft_wait_seconds_.Observe(report.wait_seconds);
}

void VerifierMetrics::RecordStaleNodes(uint32_t count) {
  stale_nodes_.Increment(count);
}

void VerifierMetrics::RecordFinished(const absl::Status& status, const SessionSummary& summary) {
  requests_.With({absl::StatusCodeToString(status.code())}).Increment();
  cached_prompt_tokens_.Increment(summary.cached_prompt_tokens);
}

void VerifierMetrics::RecordViolation(absl::string_view drafter) {
  violations_.With({drafter}).Increment();
}

void VerifierMetrics::SetDrafterConnected(absl::string_view endpoint, bool connected) {
  drafter_connected_.With({endpoint}).Set(connected ? 1.0 : 0.0);
}

void VerifierMetrics::SetLoad(uint32_t running, uint32_t waiting, uint64_t kv_tokens_used,
                              uint64_t kv_tokens_total) {
  running_.Set(running);
  waiting_.Set(waiting);
  kv_tokens_used_.Set(static_cast<double>(kv_tokens_used));
  kv_tokens_capacity_.Set(static_cast<double>(kv_tokens_total));
}

}  // namespace tandem

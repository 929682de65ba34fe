#include "drafter/rpc/metrics.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace tandem {

DrafterMetrics::DrafterMetrics(MetricsRegistry* registry)
    : model_step_seconds_(
          registry->AddCounter({"tandem_drafter_model_step_seconds_total",
                                "Time of forward passes that draft, by draft model; sources take no time.",
                                {"draft_model"}})),
      refused_sessions_(
          registry->AddCounter({"tandem_drafter_sessions_refused_total",
                                "Sessions refused or ended, by status code; failed_precondition: another "
                                "vocabulary, not_found: no such draft model.",
                                {"reason"}})),
      scores_(registry->AddCounter(
          {"tandem_drafter_scores_total", "Answers to score requests, by status code.", {"outcome"}})) {
  const auto counter = [&](const char* name, const char* help) {
    return registry->AddCounter({name, help, {}}).With();
  };
  const auto gauge = [&](const char* name, const char* help) {
    return registry->AddGauge({name, help, {}}).With();
  };
  step_seconds_ =
      registry
          ->AddHistogram({"tandem_drafter_step_seconds", "Time of one forward pass of a draft model.", {}},
                         ExponentialBuckets(0.00005, 2.0, 15))
          .With();
  score_seconds_ =
      registry
          ->AddHistogram({"tandem_drafter_score_seconds",
                          "Time from the arrival of a score request to its result, including waiting.",
                          {}},
                         LatencyBuckets())
          .With();
  scores_waiting_ = gauge("tandem_drafter_scores_waiting", "Score requests that wait or run.");
  CounterFamily& nodes = registry->AddCounter(
      {"tandem_drafter_nodes_total",
       "Nodes that left a candidate tree: committed (accepted), off the committed path (pruned), or wasted "
       "because they crossed a commit or their session ended (stale).",
       {"fate"}});
  accepted_nodes_ = nodes.With({"accepted"});
  pruned_nodes_ = nodes.With({"pruned"});
  stale_nodes_ = nodes.With({"stale"});
  prefill_tokens_ =
      counter("tandem_drafter_prefill_tokens_total",
              "Committed tokens that a draft model computed, without those from the prefix cache.");
  ignored_commits_ =
      counter("tandem_drafter_commits_ignored_total",
              "Ignored commits: repeated, of an old epoch, or of a session that waits to be reopened.");
  feature_bytes_ = counter("tandem_drafter_feature_bytes_total",
                           "Bytes of the target's hidden states received for draft heads.");
  ignored_features_ = counter("tandem_drafter_features_ignored_total",
                              "Ignored messages with hidden states: of an old epoch, or of a session that is "
                              "parked or waits to be reopened.");
  parked_sessions_ =
      counter("tandem_drafter_sessions_parked_total",
              "Times that a session was parked: its keys and values were freed for lack of room.");
  constrained_sessions_ =
      counter("tandem_drafter_constrained_sessions_total",
              "Sessions opened with a constraint that was compiled in time to be applied.");
  masked_rows_ = counter("tandem_drafter_masked_rows_total",
                         "Distributions of draft models that a request's constraint masked.");
  mask_seconds_ = counter("tandem_drafter_mask_seconds_total", "Time to mask distributions of draft models.");
  forbidden_candidates_ = counter("tandem_drafter_forbidden_candidates_total",
                                  "Candidates not sent because a constraint forbids them: of sources, and of "
                                  "draft models before the constraint was compiled.");
  resyncs_ =
      counter("tandem_drafter_resyncs_total", "Resyncs: the verifier was asked to open a session again.");
  sessions_ = gauge("tandem_drafter_sessions", "Open sessions.");
  backlog_nodes_ = gauge("tandem_drafter_backlog_nodes", "Nodes that wait to be forwarded.");
  kv_tokens_used_ = gauge("tandem_drafter_kv_tokens_used", "KV cache used by sessions, in tokens.");
  kv_tokens_capacity_ = gauge("tandem_drafter_kv_tokens_capacity", "Capacity of the KV cache, in tokens.");
  models_ = gauge("tandem_drafter_models", "Draft models that sessions can be opened with.");
  retired_models_ = gauge("tandem_drafter_retired_models",
                          "Unloaded or replaced draft models that open sessions still use.");
}

void DrafterMetrics::RecordStep(absl::Duration took) {
  step_seconds_.Observe(absl::ToDoubleSeconds(took));
}

void DrafterMetrics::RecordScore(absl::Duration took) {
  score_seconds_.Observe(absl::ToDoubleSeconds(took));
}

void DrafterMetrics::Update(const DraftStats& stats) {
  const auto add = [](const Counter& counter, uint64_t now, uint64_t before) {
    if (now > before) counter.Increment(static_cast<double>(now - before));
  };
  add(accepted_nodes_, stats.counters.accepted_nodes, last_.counters.accepted_nodes);
  add(pruned_nodes_, stats.counters.pruned_nodes, last_.counters.pruned_nodes);
  add(stale_nodes_, stats.counters.stale_nodes, last_.counters.stale_nodes);
  add(prefill_tokens_, stats.counters.prefill_tokens, last_.counters.prefill_tokens);
  add(ignored_commits_, stats.counters.ignored_commits, last_.counters.ignored_commits);
  add(feature_bytes_, stats.counters.feature_bytes, last_.counters.feature_bytes);
  add(ignored_features_, stats.counters.ignored_features, last_.counters.ignored_features);
  add(parked_sessions_, stats.counters.parked_sessions, last_.counters.parked_sessions);
  add(constrained_sessions_, stats.counters.constrained_sessions, last_.counters.constrained_sessions);
  add(masked_rows_, stats.counters.masked_rows, last_.counters.masked_rows);
  mask_seconds_.Increment(std::max(stats.counters.mask_seconds - last_.counters.mask_seconds, 0.0));
  add(forbidden_candidates_, stats.counters.forbidden_candidates, last_.counters.forbidden_candidates);
  add(resyncs_, stats.resyncs, last_.resyncs);
  for (const auto& [code, count] : stats.refused_sessions) {
    add(refused_sessions_.With({absl::AsciiStrToLower(absl::StatusCodeToString(code))}), count,
        last_.refused_sessions[code]);
  }
  for (const auto& [code, count] : stats.answered_scores) {
    add(scores_.With({absl::AsciiStrToLower(absl::StatusCodeToString(code))}), count,
        last_.answered_scores[code]);
  }
  for (const auto& [model, seconds] : stats.step_seconds) {
    model_step_seconds_.With({model}).Increment(std::max(seconds - last_.step_seconds[model], 0.0));
  }
  scores_waiting_.Set(stats.num_scores);
  sessions_.Set(stats.num_sessions);
  backlog_nodes_.Set(stats.backlog_nodes);
  kv_tokens_used_.Set(static_cast<double>(stats.kv_tokens_used));
  kv_tokens_capacity_.Set(static_cast<double>(stats.kv_tokens));
  models_.Set(stats.num_models);
  retired_models_.Set(stats.num_retired_models);
  last_ = stats;
}

}  // namespace tandem

#include "drafter/rpc/metrics.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace tandem {

DrafterMetrics::DrafterMetrics(MetricsRegistry* registry)
    : model_step_seconds_(registry->AddCounter({"tandem_drafter_model_step_seconds_total",
                                                "Time of the forward passes that draft, by draft model; "
                                                "sources draft in no time.",
                                                {"draft_model"}})),
      refused_sessions_(
          registry->AddCounter({"tandem_drafter_sessions_refused_total",
                                "Sessions refused or ended, by status code: failed_precondition "
                                "is another vocabulary, not_found no such draft model.",
                                {"reason"}})),
      scores_(registry->AddCounter(
          {"tandem_drafter_scores_total", "Scores of outputs answered, by status code.", {"outcome"}})) {
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
  score_seconds_ = registry
                       ->AddHistogram({"tandem_drafter_score_seconds",
                                       "From the arrival of a score to its result, waiting included.",
                                       {}},
                                      LatencyBuckets())
                       .With();
  scores_waiting_ = gauge("tandem_drafter_scores_waiting", "Scores that wait or are under way.");
  CounterFamily& nodes =
      registry->AddCounter({"tandem_drafter_nodes_total",
                            "Nodes that left a candidate tree: committed (accepted), off the committed path "
                            "(pruned), or sent in vain because they crossed a commit or their session ended "
                            "(stale).",
                            {"fate"}});
  accepted_nodes_ = nodes.With({"accepted"});
  pruned_nodes_ = nodes.With({"pruned"});
  stale_nodes_ = nodes.With({"stale"});
  prefill_tokens_ =
      counter("tandem_drafter_prefill_tokens_total",
              "Committed tokens computed by a draft model, those of the prefix cache not counted.");
  ignored_commits_ =
      counter("tandem_drafter_commits_ignored_total",
              "Commits that were repeated, of an old epoch, or of a session that waits to be reopened.");
  feature_bytes_ = counter("tandem_drafter_feature_bytes_total",
                           "Bytes of the target's hidden states that came for draft heads.");
  ignored_features_ = counter("tandem_drafter_features_ignored_total",
                              "Messages of hidden states of an old epoch, or of a session that is parked or "
                              "waits to be reopened.");
  parked_sessions_ = counter("tandem_drafter_sessions_parked_total",
                             "Times a session gave up its keys and values for a lack of room.");
  constrained_sessions_ = counter("tandem_drafter_constrained_sessions_total",
                                  "Openings of sessions whose constraint was compiled in time to be heeded.");
  masked_rows_ = counter("tandem_drafter_masked_rows_total",
                         "Distributions of draft models that a request's constraint was put on.");
  mask_seconds_ = counter("tandem_drafter_mask_seconds_total",
                          "Time to put constraints on distributions of draft models.");
  forbidden_candidates_ =
      counter("tandem_drafter_forbidden_candidates_total",
              "Candidates that a constraint does not allow and that were not sent: of sources, and of draft "
              "models before the constraint was compiled.");
  resyncs_ = counter("tandem_drafter_resyncs_total", "Sessions whose verifier was asked to open them again.");
  sessions_ = gauge("tandem_drafter_sessions", "Open sessions.");
  backlog_nodes_ = gauge("tandem_drafter_backlog_nodes", "Nodes that wait to be forwarded.");
  kv_tokens_used_ = gauge("tandem_drafter_kv_tokens_used", "Tokens of keys and values held by sessions.");
  kv_tokens_capacity_ = gauge("tandem_drafter_kv_tokens_capacity", "Tokens of keys and values in all.");
  models_ = gauge("tandem_drafter_models", "Draft models that sessions may be opened with.");
  retired_models_ = gauge("tandem_drafter_retired_models",
                          "Draft models that were unloaded or replaced, and that sessions go on with.");
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

#include "verifier/rpc/metrics.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace tandem {
namespace {

// By the values of DraftSupply.
constexpr std::array<absl::string_view, kNumDraftSupplies> kSupplyNames = {"drafted", "unwanted", "opening",
                                                                           "late", "lost"};

// By DrafterPools::MoveReason.
constexpr std::array<absl::string_view, DrafterPools::kNumMoveReasons> kMoveReasonNames = {"left", "joined",
                                                                                           "balanced"};
// Of rounds that verified candidates of more than one source.
constexpr absl::string_view kSeveralSources = "several";

// SourceKind of a round that verified anything, or kNumSourceKinds for several of them.
size_t RoundSourceIndex(const RoundReport& report) {
  size_t found = kNumSourceKinds;
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    if (report.shares[i].nodes == 0) continue;
    const auto kind = static_cast<size_t>(KindOf(static_cast<DraftOrigin>(i)));
    if (found != kNumSourceKinds && found != kind) return kNumSourceKinds;
    found = kind;
  }
  return found;
}

}  // namespace

VerifierMetrics::VerifierMetrics(MetricsRegistry* registry, std::string target, bool vllm_names)
    : target_(std::move(target)),
      speculation_(registry),
      calibration_(registry),
      round_seconds_(registry->AddCounter(
          {"tandem_verifier_round_seconds_total",
           "Time of rounds, including waits, summed over requests, without each request's first round.",
           {"tenant", "drafter"}})),
      plain_seconds_(registry->AddCounter({"tandem_verifier_plain_seconds_total",
                                           "Time that plain decoding would have taken for the tokens of "
                                           "these rounds, by the round-time model.",
                                           {"tenant", "drafter"}})),
      drafter_rounds_(registry->AddCounter(
          {"tandem_verifier_drafter_rounds_total",
           "Rounds of requests with a drafter, by its supply: candidates (drafted); or none, because none "
           "were wanted (unwanted), it had not answered yet (opening), they came too late (late), or it was "
           "unreachable, refused, quarantined or full (lost).",
           {"tenant", "drafter", "supply"}})),
      drafter_requests_(
          registry->AddCounter({"tandem_verifier_drafter_requests_total",
                                "Finished requests with a drafter, by its supply: drafted if at least every "
                                "tenth round was, otherwise the most frequent reason of the other rounds.",
                                {"tenant", "drafter", "supply"}})),
      window_depth_(registry->AddHistogram(
          {"tandem_verifier_window_depth",
           "Depth of the drafter's nodes in the tree that a round of its requests verified.",
           {"drafter"}},
          {0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32})),
      wire_bytes_(registry->AddCounter({"tandem_verifier_draft_wire_bytes_total",
                                        "Bytes of messages to (sent) and from (received) drafters.",
                                        {"tenant", "drafter", "direction"}})),
      feature_bytes_(registry->AddCounter({"tandem_feature_bytes_total",
                                           "Bytes of hidden states sent to draft heads.",
                                           {"tenant", "drafter"}})),
      received_nodes_(registry->AddCounter({"tandem_verifier_draft_received_nodes_total",
                                            "Candidates that drafters sent.",
                                            {"tenant", "drafter"}})),
      step_seconds_(
          registry
              ->AddHistogram({"tandem_verifier_step_seconds", "Time of a forward pass of the target.", {}},
                             ExponentialBuckets(0.0001, 2.0, 16))
              .With()),
      modelled_step_seconds_(
          registry
              ->AddCounter({"tandem_verifier_modelled_step_seconds_total",
                            "Time that the steps would have taken at the speed measured at warm-up.",
                            {}})
              .With()),
      speedup_(registry->AddGauge({"tandem_speculation_speedup",
                                   "Tokens per second with drafts over tokens per second without, measured "
                                   "by the control group: by drafter "
                                   "(none: the verifier alone guesses; several: requests of one step have "
                                   "different ones), and by the "
                                   "requests in a step (1, 2 to 3, 4 to 7, ...: the least of each range).",
                                   {"drafter", "requests"}})),
      speedup_low_(
          registry->AddGauge({"tandem_speculation_speedup_low",
                              "Lower end of the 95 % confidence interval of tandem_speculation_speedup.",
                              {"drafter", "requests"}})),
      speedup_high_(
          registry->AddGauge({"tandem_speculation_speedup_high",
                              "Upper end of the 95 % confidence interval of tandem_speculation_speedup.",
                              {"drafter", "requests"}})),
      control_blocks_(
          registry->AddCounter({"tandem_speculation_control_blocks_total",
                                "Blocks of steps of the control group after which there was a new "
                                "tandem_speculation_speedup.",
                                {"drafter", "requests"}})),
      plain_steps_(
          registry
              ->AddCounter({"tandem_speculation_control_steps_total",
                            "Steps of the control group: nothing was drafted, to measure what drafts gain.",
                            {}})
              .With()),
      batch_tokens_(
          registry
              ->AddHistogram(
                  {"tandem_verifier_batch_tokens", "Rows (prompt, root and tree tokens) per step.", {}},
                  ExponentialBuckets(1.0, 2.0, 11))
              .With()),
      draft_wait_seconds_(registry
                              ->AddHistogram({"tandem_verifier_draft_wait_seconds",
                                              "Time that rounds without drafts waited for them.",
                                              {}},
                                             ExponentialBuckets(0.00005, 2.0, 14))
                              .With()),
      prefill_tokens_(
          registry->AddCounter({"tandem_verifier_prefill_tokens_total", "Computed prompt tokens.", {}})
              .With()),
      preemptions_(registry
                       ->AddCounter({"tandem_verifier_preemptions_total",
                                     "Preemptions: a request lost its KV cache blocks to others and "
                                     "recomputes its tokens later.",
                                     {}})
                       .With()),
      cached_prompt_tokens_(registry
                                ->AddCounter({"tandem_verifier_cached_prompt_tokens_total",
                                              "Prompt tokens found in the prefix cache.",
                                              {}})
                                .With()),
      output_tokens_(
          registry->AddCounter({"tandem_verifier_output_tokens_total", "Committed tokens.", {}}).With()),
      stale_nodes_(registry
                       ->AddCounter({"tandem_verifier_stale_nodes_total",
                                     "Candidates that arrived after a commit had ruled them out.",
                                     {}})
                       .With()),
      constrained_requests_(
          registry
              ->AddCounter(
                  {"tandem_verifier_constrained_requests_total", "Finished requests with a constraint.", {}})
              .With()),
      masked_nodes_(
          registry
              ->AddCounter({"tandem_verifier_masked_nodes_total",
                            "Candidates that a constraint did not allow, dropped before they took a row.",
                            {}})
              .With()),
      mask_seconds_(registry
                        ->AddCounter({"tandem_verifier_mask_seconds_total",
                                      "Time to make and apply the masks of constrained requests' rows.",
                                      {}})
                        .With()),
      hidden_mask_seconds_(registry
                               ->AddCounter({"tandem_verifier_hidden_mask_seconds_total",
                                             "Part of the mask time that was hidden behind a device's "
                                             "computation; the rest delayed steps.",
                                             {}})
                               .With()),
      drafter_changes_(registry
                           ->AddCounter({"tandem_verifier_drafter_changes_total",
                                         "Swaps of a running request to another drafter.",
                                         {}})
                           .With()),
      requests_(registry->AddCounter(
          {"tandem_verifier_requests_total", "Finished requests by terminal status.", {"code"}})),
      violations_(registry->AddCounter({"tandem_verifier_protocol_violations_total",
                                        "Messages of a drafter that broke the draft protocol.",
                                        {"endpoint"}})),
      quarantines_(registry->AddCounter({"tandem_verifier_drafter_quarantines_total",
                                         "Times a drafter was quarantined for breaking the draft protocol.",
                                         {"endpoint"}})),
      drafter_connected_(registry->AddGauge(
          {"tandem_verifier_drafter_connected", "1 while the stream to the drafter is open.", {"endpoint"}})),
      drafter_random_(registry->AddGauge({"tandem_verifier_drafter_random",
                                          "1 while the drafter's guesses hardly ever match the target.",
                                          {"target", "drafter"}})),
      running_(registry->AddGauge({"tandem_verifier_running_requests", "Running requests.", {}}).With()),
      waiting_(registry
                   ->AddGauge({"tandem_verifier_waiting_requests",
                               "Requests that wait for admission, also after a preemption.",
                               {}})
                   .With()),
      kv_tokens_used_(
          registry->AddGauge({"tandem_verifier_kv_tokens_used", "KV cache in use, in tokens.", {}}).With()),
      kv_tokens_capacity_(
          registry
              ->AddGauge({"tandem_verifier_kv_tokens_capacity", "Capacity of the KV cache, in tokens.", {}})
              .With()),
      waiting_features_(registry
                            ->AddGauge({"tandem_features_waiting_bytes",
                                        "Bytes of hidden states that wait to be sent to draft heads.",
                                        {}})
                            .With()),
      kv_usage_(registry->AddGauge({"tandem_verifier_kv_usage_ratio", "Share of the KV cache in use.", {}})
                    .With()) {
  CounterFamily& declined =
      registry->AddCounter({"tandem_verifier_declined_nodes_total",
                            "Candidates within the window that were not worth a row, by source.",
                            {"source"}});
  CounterFamily& expected = registry->AddCounter({"tandem_verifier_expected_accepted_tokens_total",
                                                  "Expected number of accepted draft tokens, from the "
                                                  "calibrated scores of verified candidates, by source.",
                                                  {"source"}});
  CounterFamily& exposed = registry->AddCounter({"tandem_verifier_exposed_draft_seconds_total",
                                                 "Time that rounds waited for drafts of a drafter, or of the "
                                                 "verifier itself (local, grammar, prediction).",
                                                 {"source"}});
  for (size_t i = 0; i < sources_.size(); ++i) {
    const absl::string_view source = kSourceNames[i];
    sources_[i] = {.declined_nodes = declined.With({source}),
                   .expected_accepted = expected.With({source}),
                   .exposed_draft_seconds = exposed.With({source})};
  }
  CounterFamily& rounds = registry->AddCounter(
      {"tandem_verifier_rounds_total",
       "Rounds, by outcome: drafts were there (hit), the round waited for them (miss), or there were none "
       "(undrafted); and by the source of the verified drafts: a drafter, the verifier itself (local), "
       "forced tokens (grammar), the request's prediction (prediction), several of these, or nobody (none).",
       {"outcome", "source"}});
  for (size_t i = 0; i < kNumRoundSources; ++i) {
    const absl::string_view source = i < kNumSourceKinds ? kSourceNames[i] : kSeveralSources;
    rounds_hit_[i] = rounds.With({"hit", source});
    rounds_miss_[i] = rounds.With({"miss", source});
  }
  rounds_undrafted_ = rounds.With({"undrafted", "none"});
  if (vllm_names) vllm_.emplace(registry, target_);
  CounterFamily& moves =
      registry->AddCounter({"tandem_verifier_drafter_pool_moves_total",
                            "Sessions moved to another member of a pool: theirs left or is down (left), "
                            "another joined (joined), or theirs had more than its share (balanced).",
                            {"reason"}});
  for (size_t i = 0; i < pool_moves_.size(); ++i) pool_moves_[i] = moves.With({kMoveReasonNames[i]});
}

VerifierMetrics::DraftSeries VerifierMetrics::DraftingOf(absl::string_view tenant,
                                                         absl::string_view drafter) {
  DraftSeries series;
  const absl::string_view label = drafter.empty() ? "none" : drafter;
  series.round_seconds_ = round_seconds_.With({tenant, label});
  series.plain_seconds_ = plain_seconds_.With({tenant, label});
  if (drafter.empty()) return series;
  for (size_t i = 0; i < kNumDraftSupplies; ++i) {
    series.supplies_[i] = drafter_rounds_.With({tenant, drafter, kSupplyNames[i]});
    series.requests_[i] = drafter_requests_.With({tenant, drafter, kSupplyNames[i]});
  }
  series.window_ = window_depth_.With({drafter});
  series.feature_bytes_ = feature_bytes_.With({tenant, drafter});
  series.sent_bytes_ = wire_bytes_.With({tenant, drafter, "sent"});
  series.received_bytes_ = wire_bytes_.With({tenant, drafter, "received"});
  series.received_nodes_ = received_nodes_.With({tenant, drafter});
  return series;
}

void VerifierMetrics::DraftSeries::RecordRequest(
    const std::array<uint32_t, kNumDraftSupplies>& rounds) const {
  constexpr auto kDrafted = static_cast<size_t>(DraftSupply::kDrafted);
  const uint32_t all = std::accumulate(rounds.begin(), rounds.end(), 0u);
  if (all == 0) return;
  const auto most = std::max_element(rounds.begin() + kDrafted + 1, rounds.end());
  const bool drafted = rounds[kDrafted] > 0 && rounds[kDrafted] >= all / 10;
  requests_[drafted ? kDrafted : static_cast<size_t>(most - rounds.begin())].Increment();
}

void VerifierMetrics::DraftSeries::RecordRound(const RoundReport& report) const {
  round_seconds_.Increment(report.round_seconds);
  plain_seconds_.Increment(report.plain_seconds);
  if (!report.supply.has_value()) return;
  supplies_[static_cast<size_t>(*report.supply)].Increment();
  window_.Observe(report.shares[static_cast<size_t>(DraftOrigin::kDrafter)].depth);
}

VerifierMetrics::OriginSeries VerifierMetrics::SpeculationOf(absl::string_view tenant,
                                                             const RoundDrafters& drafters) {
  OriginSeries series;
  series.drafters_ = drafters;
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    const auto origin = static_cast<DraftOrigin>(i);
    // No series for a drafter that there is not.
    if (KindOf(origin) == SourceKind::kDrafter && drafters.NameOf(origin).empty()) continue;
    series.series_[i] = speculation_.With(tenant, target_, drafters.NameOf(origin), KindOf(origin));
  }
  return series;
}

void VerifierMetrics::OriginSeries::RecordRound(const RoundReport& report) const {
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    const OriginShare& share = report.shares[i];
    if (share.nodes == 0) continue;
    std::vector<uint32_t> accepted_at;
    accepted_at.reserve(report.accepted_by.size());
    for (DraftOrigin by : report.accepted_by) accepted_at.push_back(static_cast<size_t>(by) == i ? 1 : 0);
    series_[i].Record(1, share.nodes, accepted_at);
  }
}

void VerifierMetrics::RecordStep(const StepReport& report) {
  step_seconds_.Observe(report.seconds);
  modelled_step_seconds_.Increment(report.modelled_seconds);
  batch_tokens_.Observe(report.rows);
  prefill_tokens_.Increment(report.prefill_rows);
  preemptions_.Increment(report.preemptions);
  hidden_mask_seconds_.Increment(report.hidden_mask_seconds);
  if (report.plain) plain_steps_.Increment();
  if (vllm_.has_value()) vllm_->RecordStep(report);
}

void VerifierMetrics::RecordSpeedup(const ControlGroup::Estimate& gain) {
  const absl::string_view drafter = gain.drafter.empty() ? absl::string_view("none") : gain.drafter;
  const std::string requests = absl::StrCat(gain.load);
  control_blocks_.With({drafter, requests}).Increment();
  speedup_.With({drafter, requests}).Set(gain.speedup);
  speedup_low_.With({drafter, requests}).Set(gain.low);
  speedup_high_.With({drafter, requests}).Set(gain.high);
}

void VerifierMetrics::RecordRound(const RoundReport& report) {
  RecordAgreement(report);
  output_tokens_.Increment(report.committed);
  mask_seconds_.Increment(report.mask_seconds);
  switch (report.kind) {
    case RoundKind::kHit:
      rounds_hit_[RoundSourceIndex(report)].Increment();
      break;
    case RoundKind::kMiss:
      rounds_miss_[RoundSourceIndex(report)].Increment();
      break;
    case RoundKind::kUndrafted:
      rounds_undrafted_.Increment();
      break;
  }
  for (size_t i = 0; i < kNumDraftOrigins; ++i) {
    const OriginShare& share = report.shares[i];
    const SourceCounters& counters = sources_[static_cast<size_t>(KindOf(static_cast<DraftOrigin>(i)))];
    counters.declined_nodes.Increment(share.declined);
    counters.expected_accepted.Increment(share.expected_accepted);
    counters.exposed_draft_seconds.Increment(std::max(share.wait_seconds, 0.0));
  }
  if (report.wait_seconds > 0.0) draft_wait_seconds_.Observe(report.wait_seconds);
  if (vllm_.has_value()) vllm_->RecordRound(report);
}

void VerifierMetrics::RecordStaleNodes(uint32_t count) {
  stale_nodes_.Increment(count);
}

void VerifierMetrics::RecordStarted(uint32_t prompt_tokens, RequestTimes* times, absl::Time at) {
  times->started = at;
  if (vllm_.has_value()) vllm_->RecordStarted(prompt_tokens);
}

void VerifierMetrics::RecordTokens(RequestTimes* times, absl::Time at) {
  if (vllm_.has_value()) vllm_->RecordTokens(*times, at);
  if (!times->first_tokens.has_value()) times->first_tokens = at;
  times->last_tokens = at;
}

void VerifierMetrics::RecordFinished(const absl::Status& status, const SessionSummary& summary,
                                     const RequestTimes& times, uint32_t max_tokens, absl::Time at) {
  requests_.With({absl::StatusCodeToString(status.code())}).Increment();
  cached_prompt_tokens_.Increment(summary.cached_prompt_tokens);
  if (summary.constrained) constrained_requests_.Increment();
  masked_nodes_.Increment(summary.masked_draft_tokens);
  if (vllm_.has_value()) vllm_->RecordFinished(status, summary, times, max_tokens, at);
}

void VerifierMetrics::RecordViolation(absl::string_view endpoint, bool quarantined) {
  violations_.With({endpoint}).Increment();
  if (quarantined) quarantines_.With({endpoint}).Increment();
}

void VerifierMetrics::SetDrafterConnected(absl::string_view endpoint, bool connected) {
  drafter_connected_.With({endpoint}).Set(connected ? 1.0 : 0.0);
  // From 0 on: an increase is seen only of what was there before.
  violations_.With({endpoint});
  quarantines_.With({endpoint});
}

void VerifierMetrics::RecordAgreement(const RoundReport& report) {
  const OriginShare& share = report.shares[static_cast<size_t>(DraftOrigin::kDrafter)];
  const std::string& drafter = report.drafters.drafter;
  if (drafter.empty() || share.nodes == 0) return;
  switch (agreement_.RecordRound(drafter, share.accepted > 0)) {
    case DrafterAgreement::Change::kNone:
      return;
    case DrafterAgreement::Change::kBecameRandom:
      LogWarning("drafter guesses as if at random: is it made for this target?",
                 {{"drafter", drafter}, {"target", target_}});
      return drafter_random_.With({target_, drafter}).Set(1.0);
    case DrafterAgreement::Change::kRecovered:
      LogInfo("drafter no longer guesses at random", {{"drafter", drafter}, {"target", target_}});
      return drafter_random_.With({target_, drafter}).Set(0.0);
  }
}

void VerifierMetrics::SetLoad(uint32_t running, uint32_t waiting, uint64_t kv_tokens_used,
                              uint64_t kv_tokens_total) {
  running_.Set(running);
  waiting_.Set(waiting);
  kv_tokens_used_.Set(static_cast<double>(kv_tokens_used));
  kv_tokens_capacity_.Set(static_cast<double>(kv_tokens_total));
  const double usage =
      static_cast<double>(kv_tokens_used) / static_cast<double>(std::max<uint64_t>(kv_tokens_total, 1));
  kv_usage_.Set(usage);
  if (vllm_.has_value()) vllm_->SetLoad(running, waiting, usage, kv_tokens_total);
}

}  // namespace tandem

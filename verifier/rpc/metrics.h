#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/metrics/calibration_metrics.h"
#include "common/metrics/metrics.h"
#include "common/metrics/spec_decode_metrics.h"
#include "verifier/rpc/drafter_agreement.h"
#include "verifier/rpc/vllm_metrics.h"
#include "verifier/scheduler/drafter_pools.h"
#include "verifier/scheduler/scheduler.h"

namespace tandem {

// A verifier's metrics, as listed in docs/reference/metrics.md. Only the engine thread calls its methods.
class VerifierMetrics {
 public:
  // `vllm_names`: also exports metrics under vLLM's names.
  VerifierMetrics(MetricsRegistry* registry, std::string target, bool vllm_names = false);

  // Series about the benefit and cost of drafting, for one tenant and drafter. Cheap to copy; a session keeps
  // one.
  class DraftSeries {
   public:
    DraftSeries() = default;
    void RecordRound(const RoundReport& report) const;
    // A finished request, with its rounds by DraftSupply.
    void RecordRequest(const std::array<uint32_t, kNumDraftSupplies>& rounds) const;
    void RecordSent(size_t bytes) const { sent_bytes_.Increment(static_cast<double>(bytes)); }
    void RecordFeatures(size_t bytes) const { feature_bytes_.Increment(static_cast<double>(bytes)); }
    void RecordReceived(size_t bytes, size_t nodes) const {
      received_bytes_.Increment(static_cast<double>(bytes));
      received_nodes_.Increment(static_cast<double>(nodes));
    }

   private:
    friend class VerifierMetrics;
    Counter round_seconds_;
    Counter plain_seconds_;
    // Without a drafter, the following drop everything.
    std::array<Counter, kNumDraftSupplies> supplies_;
    std::array<Counter, kNumDraftSupplies> requests_;
    Histogram window_;
    Counter sent_bytes_;
    Counter feature_bytes_;
    Counter received_bytes_;
    Counter received_nodes_;
  };
  // `drafter` is empty for none.
  DraftSeries DraftingOf(absl::string_view tenant, absl::string_view drafter);

  CalibrationMetrics::Series CalibrationOf(absl::string_view drafter) {
    return calibration_.With(target_, drafter);
  }
  // Series about each origin of drafts, for one tenant and its drafters. Cheap to copy.
  class OriginSeries {
   public:
    OriginSeries() = default;
    void RecordRound(const RoundReport& report) const;
    bool IsOf(const RoundDrafters& drafters) const {
      return drafters.drafter == drafters_.drafter && drafters.partner == drafters_.partner;
    }

   private:
    friend class VerifierMetrics;
    RoundDrafters drafters_;
    std::array<SpecDecodeMetrics::Series, kNumDraftOrigins> series_;
  };
  OriginSeries SpeculationOf(absl::string_view tenant, const RoundDrafters& drafters);

  void RecordStep(const StepReport& report);
  void RecordSpeedup(const ControlGroup::Estimate& gain);
  void RecordRound(const RoundReport& report);
  void RecordStaleNodes(uint32_t count);
  // `times`: those before the event; these methods update them.
  void RecordStarted(uint32_t prompt_tokens, RequestTimes* times, absl::Time at);
  void RecordTokens(RequestTimes* times, absl::Time at);
  // `max_tokens`: of the request.
  void RecordFinished(const absl::Status& status, const SessionSummary& summary, const RequestTimes& times,
                      uint32_t max_tokens, absl::Time at);
  void RecordDrafterChange() { drafter_changes_.Increment(); }
  void RecordPoolMove(DrafterPools::MoveReason reason) {
    pool_moves_[static_cast<size_t>(reason)].Increment();
  }
  void RecordViolation(absl::string_view endpoint, bool quarantined);
  void SetDrafterConnected(absl::string_view endpoint, bool connected);
  // DrafterAgreement. Called by the thread that records rounds.
  std::vector<std::string> random_drafters() const { return agreement_.random_drafters(); }
  void SetWaitingFeatures(uint64_t bytes) { waiting_features_.Set(static_cast<double>(bytes)); }
  void SetLoad(uint32_t running, uint32_t waiting, uint64_t kv_tokens_used, uint64_t kv_tokens_total);

 private:
  // Says of a drafter that it guesses as if at random, once it is known.
  void RecordAgreement(const RoundReport& report);

  const std::string target_;
  DrafterAgreement agreement_;
  SpecDecodeMetrics speculation_;
  CalibrationMetrics calibration_;
  CounterFamily& round_seconds_;
  CounterFamily& plain_seconds_;
  CounterFamily& drafter_rounds_;
  CounterFamily& drafter_requests_;
  HistogramFamily& window_depth_;
  CounterFamily& wire_bytes_;
  CounterFamily& feature_bytes_;
  CounterFamily& received_nodes_;
  Histogram step_seconds_;
  Counter modelled_step_seconds_;
  GaugeFamily& speedup_;
  GaugeFamily& speedup_low_;
  GaugeFamily& speedup_high_;
  CounterFamily& control_blocks_;
  Counter plain_steps_;
  Histogram batch_tokens_;
  Histogram draft_wait_seconds_;
  Counter prefill_tokens_;
  Counter preemptions_;
  Counter cached_prompt_tokens_;
  Counter output_tokens_;
  Counter stale_nodes_;
  Counter constrained_requests_;
  Counter masked_nodes_;
  Counter mask_seconds_;
  Counter hidden_mask_seconds_;
  Counter drafter_changes_;
  std::array<Counter, DrafterPools::kNumMoveReasons> pool_moves_;  // By MoveReason.
  struct SourceCounters {
    Counter declined_nodes;
    Counter expected_accepted;
    Counter exposed_draft_seconds;
  };
  std::array<SourceCounters, kNumSourceKinds> sources_;  // By SourceKind.
  // By outcome and by the source of the verified nodes.
  static constexpr size_t kNumRoundSources = kNumSourceKinds + 1;  // By SourceKind, and several of them.
  std::array<Counter, kNumRoundSources> rounds_hit_;
  std::array<Counter, kNumRoundSources> rounds_miss_;
  Counter rounds_undrafted_;
  CounterFamily& requests_;
  CounterFamily& violations_;
  CounterFamily& quarantines_;
  GaugeFamily& drafter_connected_;
  GaugeFamily& drafter_random_;
  Gauge running_;
  Gauge waiting_;
  Gauge kv_tokens_used_;
  Gauge kv_tokens_capacity_;
  Gauge waiting_features_;
  Gauge kv_usage_;
  std::optional<VllmMetrics> vllm_;
};

}  // namespace tandem

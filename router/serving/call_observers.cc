#include "router/serving/call_observers.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "router/generation/generation_facts.h"
#include "router/serving/canary_observer.h"
#include "router/serving/feedback_observer.h"
#include "router/serving/metrics.h"
#include "router/serving/preparation.h"
#include "router/serving/request_outcome.h"
#include "router/spool/recorded_call.h"

namespace tandem::router {
namespace {

std::string Text(absl::string_view text) {
  return std::string(text.data(), text.size());
}

class MetricsObserver final : public GenerationObserver {
 public:
  MetricsObserver(RouterMetrics& metrics, absl::Time arrival) : record_(metrics, arrival) {}

  void OnStage(Stage stage, const GenerationFacts& facts, absl::Time now) override {
    if (stage == Stage::kAdmit) {
      SetLabels(facts);
      record_.OnAdmitted(facts.queued);
    } else if (stage == Stage::kPlace) {
      record_.OnPlaced(now);
    }
  }

  void OnPrepared(const GenerationFacts& facts, v1::VerifierGenerateRequest& request, absl::Time) override {
    record_.OnPrepared(facts.drafter(), facts.selection.reason,
                       static_cast<uint32_t>(request.prompt().ids_size()));
  }

  void OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time now) override {
    if (event.has_started()) record_.OnStarted();
    if (event.has_chunk()) record_.OnTokens(static_cast<uint32_t>(event.chunk().tokens_size()), now);
    if (!event.has_finished()) return;
    if (!record_.OnFinished(event.finished())) {
      LogWarning("a verifier's speculation statistics are inconsistent", {{"request_id", facts.request_id},
                                                                          {"trace_id", facts.trace_id},
                                                                          {"model", facts.request.model()},
                                                                          {"drafter", facts.drafter()}});
    }
    if (facts.OnlyScores() || !facts.decision.predicted.has_value()) return;
    const RequestOutcome outcome = OutcomeOf(facts.drafter(), event.finished().speculation(), facts.num_sent);
    if (outcome.trials() == 0) return;
    const AcceptanceRegression::Prediction& predicted = *facts.decision.predicted;
    record_.OnPrediction(predicted.mean, predicted.low, predicted.high, outcome.acceptance());
  }

  void OnTurn(Turn turn, const absl::Status&, const GenerationFacts& facts, absl::Time) override {
    if (turn == Turn::kRetry) record_.OnRetry(facts.num_output > 0 ? "mid-stream" : "no output");
    if (turn == Turn::kRetryRefused) record_.OnRetry("refused");
    if (turn == Turn::kServed) record_.OnWaited("served");
    if (turn == Turn::kWaitedInVain) record_.OnWaited("timed out");
  }

  void OnEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time now) override {
    SetLabels(facts);  // As far as they were found out.
    record_.OnEnd(status.code(), now);
  }

 private:
  void SetLabels(const GenerationFacts& facts) {
    if (facts.tenant != nullptr) record_.SetTenant(facts.tenant->name);
    record_.SetModel(facts.model_name);
  }

  RouterMetrics::Request record_;
};

class LogObserver final : public GenerationObserver {
 public:
  void OnTurn(Turn turn, const absl::Status& reason, const GenerationFacts& facts, absl::Time) override {
    if (turn != Turn::kRetry) return;
    LogWarning("verifier lost, trying the next", {{"request_id", facts.request_id},
                                                  {"trace_id", facts.trace_id},
                                                  {"tokens", absl::StrCat(facts.num_output)},
                                                  {"error", Text(reason.message())}});
  }

  void OnEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time) override {
    // Unauthenticated callers must not be able to fill the log.
    if (facts.tenant == nullptr) return;
    LogInfo("request ended", {{"request_id", facts.request_id},
                              {"trace_id", facts.trace_id},
                              {"tenant", facts.tenant->name},
                              {"model", facts.request.model()},
                              {"drafter", facts.drafter()},
                              {"tokens", absl::StrCat(facts.num_sent)},
                              {"code", absl::StatusCodeToString(status.code())}});
  }
};

class PolicyObserver final : public GenerationObserver {
 public:
  explicit PolicyObserver(PolicyMemory& policies) : policies_(policies) {}

  void OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time) override {
    const v1::SpeculationStats& stats = event.finished().speculation();
    if (stats.policy_state().empty()) return;
    // If another drafter has taken over meanwhile, or this one was lost, the state does not belong to one
    // drafter.
    const PolicyKey key = Preparation::PolicyKeyOf(facts);
    if (stats.drafter() != key.drafter || facts.drafter() != key.drafter || !stats.drafter_lost().empty()) {
      return;
    }
    if (const absl::Status status = policies_.Learn(key, stats.policy_state()); !status.ok()) {
      LogWarning("the learned state of a window policy cannot be read", {{"request_id", facts.request_id},
                                                                         {"trace_id", facts.trace_id},
                                                                         {"model", facts.request.model()},
                                                                         {"error", Text(status.message())}});
    }
  }

 private:
  PolicyMemory& policies_;
};

class SpoolObserver final : public GenerationObserver {
 public:
  explicit SpoolObserver(Router& router) : router_(router) {}

  void OnPrepared(const GenerationFacts& facts, v1::VerifierGenerateRequest& request, absl::Time) override {
    // Of a resumed request only the rest is seen here.
    if (!facts.tenant->record_traffic || request.emitted().ids_size() > 0 || facts.OnlyScores()) return;
    recorded_.emplace(router_.spool(), facts.tenant->name, router_.model(facts.model).vocabulary_fingerprint,
                      request);
  }

  void OnEvent(const GenerationFacts&, v1::GenerateResponse& event, absl::Time) override {
    if (recorded_.has_value()) recorded_->OnEvent(event);
  }

  void OnEnded(const GenerationFacts&, const absl::Status& status, absl::Time now) override {
    if (recorded_.has_value() && status.ok()) recorded_->End(now);
  }

 private:
  Router& router_;
  std::optional<RecordedCall> recorded_;  // Of a tenant that is recorded.
};

}  // namespace

CallObservers::CallObservers(Router& router, const TraceContext& parent, absl::Time now)
    : trace_(router.tracer(), parent, now), live_(router.live()) {
  others_.push_back(std::make_unique<MetricsObserver>(router.metrics(), now));
  others_.push_back(std::make_unique<LogObserver>());
  others_.push_back(std::make_unique<FeedbackObserver>(router, trace_));
  others_.push_back(std::make_unique<CanaryObserver>(router));
  others_.push_back(std::make_unique<PolicyObserver>(router.policies()));
  if (router.spool() != nullptr) others_.push_back(std::make_unique<SpoolObserver>(router));
}

std::vector<GenerationObserver*> CallObservers::list() {
  std::vector<GenerationObserver*> list;
  for (const auto& observer : others_) list.push_back(observer.get());
  list.push_back(&live_);
  list.push_back(&trace_);
  return list;
}

}  // namespace tandem::router

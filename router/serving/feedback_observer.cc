#include "router/serving/feedback_observer.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/tracing/span.h"
#include "router/config/config.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/feedback/feedback.h"
#include "router/serving/request_outcome.h"

namespace tandem::router {

void FeedbackObserver::OnPrepared(const GenerationFacts& facts, v1::VerifierGenerateRequest& request,
                                  absl::Time) {
  // Of a resumed request only the rest is seen here: nothing to score.
  if (router_.feedback() == nullptr || request.emitted().ids_size() > 0 || facts.OnlyScores()) return;
  sampled_ = router_.feedback()->Sample(request, router_.model(facts.model).vocabulary_fingerprint,
                                        facts.decision.learning);
  if (!sampled_.has_value()) return;
  // Under which drafters remember what they have seen.
  if (!facts.adapter.empty()) {
    sampled_->cache_salt =
        HashCombine(sampled_->cache_salt, router_.verifiers().FingerprintOf(facts.model, facts.adapter));
  }
  if (facts.prompt.feature_model != nullptr) {
    sampled_->features = features_ = std::make_shared<ChoiceFeatures>(facts.model, facts.prompt);
  }
}

void FeedbackObserver::OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time) {
  if (event.has_chunk() && sampled_.has_value()) {
    sampled_->tokens.insert(sampled_->tokens.end(), event.chunk().tokens().begin(),
                            event.chunk().tokens().end());
  }
  if (event.has_finished() && !facts.OnlyScores()) Learn(facts, event.finished());
}

void FeedbackObserver::Learn(const GenerationFacts& facts, const v1::GenerationFinished& finished) {
  const RequestOutcome outcome = OutcomeOf(facts.drafter(), finished.speculation(), facts.num_sent);
  if (features_ != nullptr && outcome.trials() > 0) features_->SetRealised(outcome.acceptance());
  DrafterChooser& chooser = router_.chooser();
  chooser.Learn(facts.model, facts.drafter(), facts.prompt, outcome);
  if (chooser.FitDue(facts.model)) {
    router_.workers().Post([&router = router_, lease = std::make_shared<Router::Lease>(router_),
                            model = facts.model] { router.chooser().Fit(model); });
  }
}

void FeedbackObserver::OnEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time now) {
  if (!sampled_.has_value() || !status.ok()) return sampled_.reset();
  std::vector<FeedbackDrafter> candidates;
  for (const size_t index : facts.tenant->allowed_drafters) {
    const Drafter& drafter = facts.routing->table().drafters[index];
    // Drafters that draft by text cannot score.
    if (drafter.draining || router_.chooser().FitOf(facts.model, drafter.name) != VocabularyFit::kIds) {
      continue;
    }
    candidates.push_back({drafter.name, drafter.endpoint, drafter.draft_model});
  }
  sampled_->trace = std::make_shared<Span>(trace_.StartFeedback(now));
  router_.workers().Post(
      [feedback = router_.feedback(), request = *std::exchange(sampled_, std::nullopt),
       candidates = std::move(candidates)]() mutable { feedback->Offer(std::move(request), candidates); });
}

}  // namespace tandem::router

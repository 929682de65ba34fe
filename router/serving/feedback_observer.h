#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/drafters/choice_feedback.h"
#include "router/drafters/feedback/feedback_sink.h"
#include "router/generation/generation_facts.h"
#include "router/generation/generation_observer.h"
#include "router/serving/request_trace.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Tells the choice of drafters how a request went. If the request was sampled for feedback, also lets every
// drafter that could have drafted for it score the output. `router` and `trace`, of the same call, outlive
// this.
class FeedbackObserver final : public GenerationObserver {
 public:
  FeedbackObserver(Router& router, const RequestTrace& trace) : router_(router), trace_(trace) {}

  void OnPrepared(const GenerationFacts& facts, v1::VerifierGenerateRequest& request,
                  absl::Time now) override;
  void OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time now) override;
  void OnEnded(const GenerationFacts& facts, const absl::Status& status, absl::Time now) override;

 private:
  void Learn(const GenerationFacts& facts, const v1::GenerationFinished& finished);

  Router& router_;
  const RequestTrace& trace_;
  std::shared_ptr<ChoiceFeatures> features_;  // Of requests to be scored.
  std::optional<FeedbackRequest> sampled_;    // When sampled, until the end.
};

}  // namespace tandem::router

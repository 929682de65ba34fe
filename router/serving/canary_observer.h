#pragma once

#include "absl/time/time.h"
#include "router/generation/generation_facts.h"
#include "router/generation/generation_observer.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// Counts a finished request for the trial of its tenant's canary, if there is one. If that gives a verdict,
// the canary is promoted or rolled back, on a worker, because it writes to the store. `router` outlives this.
class CanaryObserver final : public GenerationObserver {
 public:
  explicit CanaryObserver(Router& router) : router_(router) {}

  void OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time now) override;

 private:
  void OnFinished(const GenerationFacts& facts, const v1::SpeculationStats& stats);

  Router& router_;
};

}  // namespace tandem::router

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/plan/machines.h"
#include "bench/plan/plan.h"
#include "common/base/clock.h"
#include "router/admission/admission.h"
#include "router/config/config.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/verifiers/verifier_choice.h"

namespace tandem::plan {

// The router's decisions, with the router's own objects: Admission, DrafterChooser and VerifierChoice.
// Belongs to one thread.
class PlanRouter {
 public:
  // All that is passed in outlives this. `clock` is the router's.
  PlanRouter(const Plan& plan, const Layout& layout, const DrafterPlaces& places, const Clock* clock);

  // A place, or one in its tenant's queue, whose `on_place` is then called once.
  absl::StatusOr<router::Admission::Ticket> Admit(uint32_t tenant, router::Admission::OnPlace on_place);

  // Which drafter a request gets, as its group; nothing for none. What has to be remembered to learn from it
  // is in the rest.
  struct Choice {
    std::optional<size_t> group;
    router::PromptHandle prompt;
    router::DrafterDecision decision;
    bool scored = false;  // All drafters are asked about it afterwards.
  };
  Choice ChooseDrafter(uint32_t tenant, uint64_t number, absl::Span<const TokenId> prompt);

  // The best verifier that was not tried; counts the request as there until OnEnd. Nothing: all were tried or
  // are full.
  std::optional<size_t> ChooseVerifier(uint32_t tenant, absl::Span<const TokenId> prompt,
                                       absl::Span<const size_t> tried);
  void OnEnd(size_t verifier) { verifiers_.OnEnd(verifier); }
  void OnSuccess(size_t verifier) { verifiers_.OnSuccess(verifier, clock_->Now()); }

  // A request has finished.
  void Learn(const Choice& choice, uint32_t kind, const SessionSummary& summary);

  uint64_t cache_salt(uint32_t tenant) const { return table_.tenants[tenant].cache_salt; }

 private:
  const Plan& plan_;
  const Layout& layout_;
  const Clock* const clock_;
  router::RoutingTable table_;
  std::vector<std::string> drafters_;  // By group.
  std::optional<size_t> pinned_;
  router::Admission admission_;
  router::VerifierChoice verifiers_;
  router::DrafterChooser chooser_;
};

}  // namespace tandem::plan

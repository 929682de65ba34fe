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

// Makes the router's decisions with the router's own classes: Admission, DrafterChooser and VerifierChoice.
// Used by one thread.
class PlanRouter {
 public:
  // All arguments outlive this. `clock` is the router's.
  PlanRouter(const Plan& plan, const Layout& layout, const DrafterPlaces& places, const Clock* clock);

  // Gives the request a place. If none is free, the request waits in its tenant's queue, and `on_place` is
  // called once when it gets one.
  absl::StatusOr<router::Admission::Ticket> Admit(uint32_t tenant, router::Admission::OnPlace on_place);

  // The choice of a drafter, and what Learn needs of it.
  struct Choice {
    std::optional<size_t> group;  // Nothing: no drafter.
    router::PromptHandle prompt;
    router::DrafterDecision decision;
    bool scored = false;  // All drafters score the finished request.
  };
  Choice ChooseDrafter(uint32_t tenant, uint64_t number, absl::Span<const TokenId> prompt);

  // The best verifier that has not been tried; the request counts there until OnEnd. Nothing: all have been
  // tried or are full.
  std::optional<size_t> ChooseVerifier(uint32_t tenant, absl::Span<const TokenId> prompt,
                                       absl::Span<const size_t> tried);
  void OnEnd(size_t verifier) { verifiers_.OnEnd(verifier); }
  void OnSuccess(size_t verifier) { verifiers_.OnSuccess(verifier, clock_->Now()); }

  // Learns from a finished request.
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

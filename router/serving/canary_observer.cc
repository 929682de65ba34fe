#include "router/serving/canary_observer.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/log.h"
#include "router/config/config.h"
#include "router/drafters/canary_monitor.h"
#include "router/state/routing_admin.h"

namespace tandem::router {
namespace {

// If the trial of the tenant's canary is still running, promotes the canary or rolls it back, as the verdict
// says. Blocks on the store.
void FollowVerdict(Router& router, const RoutingTable& table, const Tenant& tenant,
                   const CanaryVerdict& verdict) {
  const std::string& own = table.drafters[*tenant.drafter].name;
  const std::string& canary = table.drafters[tenant.canary->drafter].name;
  const absl::StatusOr<bool> ended = EndCanary(
      router.routing(), tenant.name, own, canary,
      verdict.promote ? CanaryEnd::kPromoted : CanaryEnd::kRolledBack, verdict.reason, router.clock().Now());
  const char* const what = verdict.promote ? "canary promoted" : "canary rolled back";
  if (!ended.ok()) {
    LogError("the trial of a canary could not be ended", {{"tenant", tenant.name},
                                                          {"drafter", canary},
                                                          {"verdict", what},
                                                          {"error", std::string(ended.status().message())}});
  } else if (*ended) {
    router.metrics().RecordCanaryEnd(tenant.name, canary, verdict.promote);
    Log(verdict.promote ? LogLevel::kInfo : LogLevel::kWarning, what,
        {{"audit", "canary"},
         {"tenant", tenant.name},
         {"drafter", canary},
         {"before", own},
         {"reason", verdict.reason}});
  }
}

}  // namespace

void CanaryObserver::OnEvent(const GenerationFacts& facts, v1::GenerateResponse& event, absl::Time) {
  if (event.has_finished()) OnFinished(facts, event.finished().speculation());
}

void CanaryObserver::OnFinished(const GenerationFacts& facts, const v1::SpeculationStats& stats) {
  const Tenant& tenant = *facts.tenant;
  const DrafterSelection& selection = facts.selection;
  if (!tenant.canary.has_value() || !selection.drafter.has_value() || selection.reason == "request") return;
  // Another one has taken over meanwhile: the rounds are nobody's alone. Of one that was lost they are its
  // own: it earned nothing in them.
  const RoutingTable& table = facts.routing->table();
  const std::string& drafter = table.drafters[*selection.drafter].name;
  if (stats.drafter() != drafter || facts.drafter() != drafter) return;
  std::optional<CanaryVerdict> verdict =
      router_.canaries().OnFinished(table, tenant, *selection.drafter, stats);
  if (!verdict.has_value()) {
    if (const auto view = router_.canaries().View(tenant.name); view.has_value()) {
      router_.metrics().SetCanary(tenant.name, view->own, view->canary, view->margin, view->requests);
    }
    return;
  }
  router_.workers().Post([&router = router_, lease = std::make_shared<Router::Lease>(router_),
                          routing = facts.routing, tenant = facts.tenant, verdict = *std::move(verdict)] {
    FollowVerdict(router, routing->table(), *tenant, verdict);
  });
}

}  // namespace tandem::router

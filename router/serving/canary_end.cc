#include "router/serving/canary_end.h"

#include <string>

#include "absl/status/statusor.h"
#include "common/base/log.h"
#include "router/state/routing_admin.h"

namespace tandem::router {

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

}  // namespace tandem::router

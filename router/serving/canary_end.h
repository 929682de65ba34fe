#pragma once

#include "router/config/config.h"
#include "router/drafters/canary_monitor.h"
#include "router/serving/router.h"

namespace tandem::router {

// If the trial of the tenant's canary is still running, promotes the canary or rolls it back, as the verdict
// says. Blocks on the store.
void FollowVerdict(Router& router, const RoutingTable& table, const Tenant& tenant,
                   const CanaryVerdict& verdict);

}  // namespace tandem::router

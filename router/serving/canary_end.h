#pragma once

#include "router/config/config.h"
#include "router/drafters/canary_monitor.h"
#include "router/serving/router.h"

namespace tandem::router {

// Ends the trial of the tenant's canary, one way or the other, if it is still on. Waits for the store.
void FollowVerdict(Router& router, const RoutingTable& table, const Tenant& tenant,
                   const CanaryVerdict& verdict);

}  // namespace tandem::router

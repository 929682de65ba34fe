#pragma once

#include "router/canary_monitor.h"
#include "router/config.h"
#include "router/router.h"

namespace tandem::router {

// Ends the trial of the tenant's canary, one way or the other, if it is still on. Waits for the store.
void FollowVerdict(Router& router, const RoutingTable& table, const Tenant& tenant,
                   const CanaryVerdict& verdict);

}  // namespace tandem::router

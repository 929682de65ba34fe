#pragma once

#include "absl/types/span.h"
#include "router/serving/router.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/registry.pb.h"

namespace tandem::router {

// The verifiers and drafters that the router uses, as RouterAdmin.ListServers has them. `registered` are
// those that registered. Each source is asked by itself, so a server that comes or goes meanwhile may be
// there without its registration.
v1::ListServersResponse ListServers(Router& router, absl::Span<const v1::ServerRegistration> registered);

}  // namespace tandem::router

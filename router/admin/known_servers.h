#pragma once

#include "absl/types/span.h"
#include "router/serving/router.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/registry.pb.h"

namespace tandem::router {

// The verifiers and drafters that the router uses, in the form of RouterAdmin.ListServers. `registered`: the
// registered servers. The sources are read one after the other, so a server that comes or goes meanwhile may
// be listed without its registration.
v1::ListServersResponse ListServers(Router& router, absl::Span<const v1::ServerRegistration> registered);

}  // namespace tandem::router

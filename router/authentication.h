#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/rpc/server.h"
#include "router/tenants.h"

namespace tandem::router {

// The tenant that a call's metadata authenticates, as an index into the table's tenants. Unauthenticated
// otherwise, with one message for every reason.
absl::StatusOr<size_t> AuthenticateCall(const Tenants& tenants, const CallMetadata& metadata);

}  // namespace tandem::router

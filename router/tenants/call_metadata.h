#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "common/config/secret.h"
#include "common/rpc/server.h"
#include "router/tenants/tenants.h"

namespace tandem::router {

// The `authorization` entry of a call's metadata. Several entries return an empty one, which is malformed,
// because it is unclear which was meant.
std::optional<Secret> AuthorizationOf(const CallMetadata& metadata);

// The tenant that a call's metadata authenticates, as an index into the table's tenants. Otherwise
// Unauthenticated, with the same message for every reason.
absl::StatusOr<size_t> AuthenticateCall(const Tenants& tenants, const CallMetadata& metadata);

}  // namespace tandem::router

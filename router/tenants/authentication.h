#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/server.h"
#include "router/tenants/tenants.h"

namespace tandem::router {

// What a call's metadata says of who calls. Several entries count as a malformed one, which is empty: there
// is no telling which was meant.
std::optional<std::string> AuthorizationOf(const CallMetadata& metadata);

// The tenant that this authenticates, as an index into the table's tenants. Unauthenticated otherwise, with
// one message for every reason.
absl::StatusOr<size_t> Authenticate(const Tenants& tenants, const std::optional<std::string>& authorization);

// The tenant that a call's metadata authenticates, as an index into the table's tenants. Unauthenticated
// otherwise, with one message for every reason.
absl::StatusOr<size_t> AuthenticateCall(const Tenants& tenants, const CallMetadata& metadata);

}  // namespace tandem::router

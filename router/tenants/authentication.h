#pragma once

#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/secret.h"
#include "router/tenants/tenants.h"

namespace tandem::router {

// The tenant that this entry authenticates, as an index into the table's tenants. Otherwise Unauthenticated,
// with the same message for every reason.
absl::StatusOr<size_t> Authenticate(const Tenants& tenants, std::optional<absl::string_view> authorization);
absl::StatusOr<size_t> Authenticate(const Tenants& tenants, const std::optional<Secret>& authorization);

}  // namespace tandem::router

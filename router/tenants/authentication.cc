#include "router/tenants/authentication.h"

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::router {

absl::StatusOr<size_t> Authenticate(const Tenants& tenants, std::optional<absl::string_view> authorization) {
  const std::optional<size_t> tenant = tenants.Authenticate(authorization);
  if (tenant.has_value()) return *tenant;
  return absl::UnauthenticatedError("expected a tenant's token as `authorization: Bearer <token>` metadata");
}

absl::StatusOr<size_t> Authenticate(const Tenants& tenants, const std::optional<Secret>& authorization) {
  return Authenticate(tenants, authorization.has_value() ? std::optional(authorization->Reveal())
                                                         : std::optional<absl::string_view>());
}

}  // namespace tandem::router

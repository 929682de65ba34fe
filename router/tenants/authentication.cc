#include "router/tenants/authentication.h"

#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::router {

std::optional<Secret> AuthorizationOf(const CallMetadata& metadata) {
  const auto [begin, end] = metadata.equal_range("authorization");
  if (begin == end) return std::nullopt;
  if (std::next(begin) != end) return Secret();
  return Secret({begin->second.data(), begin->second.size()});
}

absl::StatusOr<size_t> Authenticate(const Tenants& tenants, std::optional<absl::string_view> authorization) {
  const std::optional<size_t> tenant = tenants.Authenticate(authorization);
  if (tenant.has_value()) return *tenant;
  return absl::UnauthenticatedError("expected a tenant's token as `authorization: Bearer <token>` metadata");
}

absl::StatusOr<size_t> Authenticate(const Tenants& tenants, const std::optional<Secret>& authorization) {
  return Authenticate(tenants, authorization.has_value() ? std::optional(authorization->Reveal())
                                                         : std::optional<absl::string_view>());
}

absl::StatusOr<size_t> AuthenticateCall(const Tenants& tenants, const CallMetadata& metadata) {
  return Authenticate(tenants, AuthorizationOf(metadata));
}

}  // namespace tandem::router

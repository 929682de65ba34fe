#include "router/authentication.h"

#include <iterator>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::router {
namespace {

// Several entries count as a malformed one: there is no telling which was meant.
std::optional<absl::string_view> AuthorizationOf(const CallMetadata& metadata) {
  const auto [begin, end] = metadata.equal_range("authorization");
  if (begin == end) return std::nullopt;
  if (std::next(begin) != end) return absl::string_view();
  return absl::string_view(begin->second.data(), begin->second.size());
}

}  // namespace

absl::StatusOr<size_t> AuthenticateCall(const Tenants& tenants, const CallMetadata& metadata) {
  const std::optional<size_t> tenant = tenants.Authenticate(AuthorizationOf(metadata));
  if (tenant.has_value()) return *tenant;
  return absl::UnauthenticatedError("expected a tenant's token as `authorization: Bearer <token>` metadata");
}

}  // namespace tandem::router

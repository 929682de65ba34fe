#include "router/tenants/call_metadata.h"

#include <iterator>

#include "router/tenants/authentication.h"

namespace tandem::router {

std::optional<Secret> AuthorizationOf(const CallMetadata& metadata) {
  const auto [begin, end] = metadata.equal_range("authorization");
  if (begin == end) return std::nullopt;
  if (std::next(begin) != end) return Secret();
  return Secret({begin->second.data(), begin->second.size()});
}

absl::StatusOr<size_t> AuthenticateCall(const Tenants& tenants, const CallMetadata& metadata) {
  return Authenticate(tenants, AuthorizationOf(metadata));
}

}  // namespace tandem::router

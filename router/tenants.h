#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/config.h"

namespace tandem::router {

// Who is calling. Immutable, so safe to use from any thread.
class Tenants {
 public:
  // Keeps a reference to `table`.
  explicit Tenants(const RoutingTable& table) : table_(table) {}

  // The tenant of a call whose `authorization` metadata was given; nothing for callers that must be refused,
  // without saying why: an absent, malformed and unknown token look the same from outside. A call without the
  // metadata is the anonymous tenant's, if there is one.
  //
  // The presented token is compared with every tenant's in constant time (TokenDigest), so that response
  // times say nothing about configured tokens. One that several tenants have is nobody's.
  std::optional<size_t> Authenticate(std::optional<absl::string_view> authorization) const;

 private:
  const RoutingTable& table_;
};

}  // namespace tandem::router

#pragma once

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/config.h"

namespace tandem::router {

// What a tenant's policy leaves to choose from for a request that names no drafter.
struct DrafterCandidates {
  std::vector<size_t> drafters;  // Indices into the table's drafters; empty: plain decoding.
  // Whether one of them is to be picked by what is predicted of them, plain decoding included. Otherwise
  // there is at most one.
  bool choose = false;
  // Why, as in the metric label: "auto", "tenant" (its own drafter), "canary" (the one on trial), "off",
  // "draining" (what the policy names takes no new sessions), "absent" (it is not registered now) or "none"
  // (the tenant has no drafter).
  absl::string_view reason;
};

// Applies the tenant's drafter policy. Drafters that drain are left out. With policy CANARY the share is
// decided by a hash of the request id and the drafter on trial: the same on every router, and for every try
// of a request.
DrafterCandidates NarrowDrafters(const RoutingTable& table, const Tenant& tenant,
                                 absl::string_view request_id);

}  // namespace tandem::router

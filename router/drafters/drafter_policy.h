#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/config/config.h"

namespace tandem::router {

// What a tenant's policy leaves to choose from for a request that names no drafter.
struct DrafterCandidates {
  std::vector<size_t> drafters;  // Indices into the table's drafters; empty: plain decoding.
  std::vector<size_t> unfit;     // Likewise, what AUTO would have but that it cannot draft for the request.
  // Whether one of them is to be picked by what is predicted of them, plain decoding included. Otherwise
  // there is at most one.
  bool choose = false;
  // Why, as in the metric label: "auto", "tenant" (its own drafter), "canary" (the one on trial), "off",
  // "draining" (what the policy names takes no new sessions), "absent" (it is not registered now) or "none"
  // (the tenant has no drafter).
  absl::string_view reason;
};

// Whether a drafter can draft for a request; null: any can.
using DrafterFilter = std::function<bool(const Drafter& drafter)>;

// Applies the tenant's drafter policy. Drafters that drain are left out, and by AUTO those that cannot draft.
// With policy CANARY the share is decided by a hash of the request id and the drafter on trial: the same on
// every router, and for every try of a request.
DrafterCandidates NarrowDrafters(const RoutingTable& table, const Tenant& tenant,
                                 absl::string_view request_id, const DrafterFilter& can_draft = nullptr);

}  // namespace tandem::router

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/config/config.h"

namespace tandem::router {

// The drafters that a tenant's policy allows for a request that names none.
struct DrafterCandidates {
  std::vector<size_t> drafters;  // Indices into the table's drafters; empty: plain decoding.
  std::vector<size_t> unfit;     // Likewise, what AUTO would have but that it cannot draft for the request.
  // Whether DrafterChooser must choose one of them, or plain decoding. Otherwise there is at most one.
  bool choose = false;
  // Why, as in the metric label: "auto", "tenant" (its own drafter), "canary" (the one on trial), "off",
  // "draining" (what the policy names takes no new sessions), "absent" (it is not registered now) or "none"
  // (the tenant has no drafter).
  absl::string_view reason;
};

// Whether a drafter can draft for a request. Null: any can.
using DrafterFilter = std::function<bool(const Drafter& drafter)>;

// Applies the tenant's drafter policy. Leaves out drafters that drain and, with policy AUTO, those that
// cannot draft. With policy CANARY, a hash of the request id and of the drafter on trial decides which
// drafter a request gets: the result is the same on every router, and for every attempt of a request.
DrafterCandidates NarrowDrafters(const RoutingTable& table, const Tenant& tenant,
                                 absl::string_view request_id, const DrafterFilter& can_draft = nullptr);

}  // namespace tandem::router

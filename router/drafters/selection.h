#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"
#include "router/config/config.h"
#include "router/drafters/drafter_policy.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// The model a request runs on, as an index into the table's models: the one it names, or its tenant's
// default. NotFound for an unknown one; one the tenant may not use is indistinguishable from that.
absl::StatusOr<size_t> SelectModel(const RoutingTable& table, const Tenant& tenant, absl::string_view name);

// Whether the tenant's requests may name an adapter of that name.
bool MayUseAdapter(const Tenant& tenant, absl::string_view name);

// The adapter of a request for `model`, one of the table's: that which it names, or else its tenant's if the
// model is the tenant's default one; empty for none. NotFound for one that the tenant may not use, which is
// indistinguishable from one that nobody holds.
absl::StatusOr<std::string> SelectAdapter(const Tenant& tenant, size_t model,
                                          const v1::GenerateRequest& request);

struct DrafterSelection {
  std::optional<size_t> drafter;  // Index into the table's drafters; absent: plain decoding.
  // Why, as in the metric label: "request" or "tenant" (whose choice it was), "canary" (the tenant's drafter
  // on trial), "off" (speculation is off for the request or its tenant), "draining" (the drafter takes no new
  // sessions), "absent" (it is not registered now), "none" (neither named a drafter). For `candidates`, the
  // choice says why.
  absl::string_view reason;
  // Drafts along with whichever drafter that will be, unless it is the same: the one that the request names,
  // or else its tenant's. Index into the table's drafters.
  std::optional<size_t> partner;
  // Not empty: one of these, or plain decoding, is to be chosen once the prompt is tokenized
  // (DrafterChooser). Indices into the table's drafters.
  std::vector<size_t> candidates;
  std::vector<size_t> unfit;  // As in DrafterCandidates.
};

// The drafter of a request: its own choice, else its tenant's policy's (NarrowDrafters), which for AUTO
// leaves candidates to choose from. InvalidArgument for a drafter that is unknown or not allowed, or any
// under a tenant whose policy is OFF; FailedPrecondition when the request insists on speculation and that is
// off, or the drafter that it names is away. One that insists and has no drafter goes on: the verifier may
// draft by itself.
absl::StatusOr<DrafterSelection> SelectDrafter(const RoutingTable& table, const Tenant& tenant,
                                               const v1::SpeculationOptions& options,
                                               absl::string_view request_id = "",
                                               const DrafterFilter& can_draft = nullptr);

}  // namespace tandem::router

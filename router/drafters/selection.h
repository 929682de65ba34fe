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

// The model of a request, as an index into the table's models: the one it names, or its tenant's default.
// NotFound, with the same message, for an unknown model and for one that the tenant may not use.
absl::StatusOr<size_t> SelectModel(const RoutingTable& table, const Tenant& tenant, absl::string_view name);

// Whether the tenant's requests may name this adapter.
bool MayUseAdapter(const Tenant& tenant, absl::string_view name);

// The adapter of a request for `model`, one of the table's: the one it names, otherwise the tenant's if the
// model is the tenant's default one; empty for none. NotFound for an adapter that the tenant may not use,
// with the same message as for one that no verifier holds.
absl::StatusOr<std::string> SelectAdapter(const Tenant& tenant, size_t model,
                                          const v1::GenerateRequest& request);

struct DrafterSelection {
  std::optional<size_t> drafter;  // Index into the table's drafters; absent: plain decoding.
  // Why, as in the metric label: "request" or "tenant" (whose choice it was), "canary" (the tenant's drafter
  // on trial), "off" (speculation is off for the request or its tenant), "draining" (the drafter takes no new
  // sessions), "absent" (it is not registered now), "none" (neither named a drafter). For `candidates`, the
  // choice says why.
  absl::string_view reason;
  // The partner, which drafts at the same time as the drafter, whichever that will be: the one that the
  // request names, otherwise the tenant's. Ignored if it is the drafter itself. Index into the table's
  // drafters.
  std::optional<size_t> partner;
  // If not empty: DrafterChooser must choose one of these, or plain decoding, once the prompt is tokenized.
  // Indices into the table's drafters.
  std::vector<size_t> candidates;
  std::vector<size_t> unfit;  // As in DrafterCandidates.
};

// The drafter of a request: the one it names, otherwise the one of its tenant's policy (NarrowDrafters); with
// policy AUTO, candidates to choose from. InvalidArgument if the request names a drafter that is unknown or
// not allowed, or any if the policy is OFF. FailedPrecondition if the request insists on speculation and
// speculation is off, or the drafter that it names is away. A request that insists and has no drafter is no
// error, because the verifier may draft by itself.
absl::StatusOr<DrafterSelection> SelectDrafter(const RoutingTable& table, const Tenant& tenant,
                                               const v1::SpeculationOptions& options,
                                               absl::string_view request_id = "",
                                               const DrafterFilter& can_draft = nullptr);

}  // namespace tandem::router

#pragma once

#include <cstddef>
#include <string>

#include "router/drafters/selection.h"
#include "router/live/live_json.h"
#include "router/serving/router.h"
#include "router/state/routing_snapshot.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// What the live page says of a request that is about to be sent to a verifier: who asks, and why it gets the
// drafter it gets. Computes the prompt's features once more: for a worker, and for requests that are shown.
LiveStart DescribeStart(Router& router, const RoutingSnapshot& routing, const Tenant& tenant, size_t model,
                        const DrafterSelection& selection, const v1::VerifierGenerateRequest& prepared,
                        const std::string& request_id);

}  // namespace tandem::router

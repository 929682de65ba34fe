#pragma once

#include <cstddef>
#include <string>

#include "router/drafters/selection.h"
#include "router/live/live_json.h"
#include "router/serving/router.h"
#include "router/state/routing_snapshot.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// Describes a request for the live page before it goes to a verifier: its tenant, and why it gets its
// drafter. Computes the prompt's features again, so call it on a worker and only for requests that are shown.
LiveStart DescribeStart(Router& router, const RoutingSnapshot& routing, const Tenant& tenant, size_t model,
                        const DrafterSelection& selection, const v1::VerifierGenerateRequest& prepared,
                        const std::string& request_id);

}  // namespace tandem::router

#pragma once

#include <optional>

#include "router/generation/generation_facts.h"
#include "router/live/live_json.h"
#include "router/serving/preparation.h"
#include "router/serving/router.h"

namespace tandem::router {

// Describes a request for the live page before it goes to a verifier, if somebody looks at it: its tenant,
// and why it gets its drafter. Computes the prompt's features again, so call it on a worker. `found`: after
// Choose.
std::optional<LiveStart> DescribeIfShown(Router& router, const GenerationFacts& facts,
                                         const Preparation::Found& found);

}  // namespace tandem::router

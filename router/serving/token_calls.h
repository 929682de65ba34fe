#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// What Generation answers about tokens and models; errors as the protocol says. Tokens are charged to the
// tenant like those of requests that come to nothing.

// Tokens of one Detokenize: as many as a message has room for.
inline constexpr size_t kMaxDetokenized = size_t{1} << 20;

absl::Status Tokenize(Router& router, const RoutingSnapshot& routing, size_t tenant,
                      const v1::TokenizeRequest& request, v1::TokenizeResponse& response);
absl::Status Detokenize(Router& router, const RoutingSnapshot& routing, size_t tenant,
                        const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response);
absl::Status ListModels(Router& router, const RoutingSnapshot& routing, size_t tenant,
                        v1::ListModelsResponse& response);

// What a router knows of a model that it serves, with the adapters that the tenant may name.
v1::ModelInfo DescribeModel(Router& router, const Tenant& tenant, size_t model);

// A request that names an adapter of one of the tenant's models as its model, and no adapter, as OpenAI's
// clients do: becomes one for that model, with the adapter.
void TakeAdapterForModel(Router& router, const RoutingTable& table, const Tenant& tenant,
                         v1::GenerateRequest& request);

}  // namespace tandem::router

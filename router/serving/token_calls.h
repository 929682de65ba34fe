#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// The calls of Generation about tokens and models; the protocol defines the errors. The tenant is charged for
// the tokens as for those of a request without output.

// Most tokens of one Detokenize: as many as fit into a message.
inline constexpr size_t kMaxDetokenized = size_t{1} << 20;

absl::Status Tokenize(Router& router, const RoutingSnapshot& routing, const Tenant& tenant,
                      const v1::TokenizeRequest& request, v1::TokenizeResponse& response);
absl::Status Detokenize(Router& router, const RoutingSnapshot& routing, size_t tenant,
                        const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response);
absl::Status ListModels(Router& router, const RoutingSnapshot& routing, size_t tenant,
                        v1::ListModelsResponse& response);

// Most tokens that a prompt and its output may have together: the model's context, or the room that its
// verifiers have for keys and values, the smallest of them, if that is less.
uint32_t ContextLength(Router& router, size_t model);

// Describes a model that the router serves, with the adapters that the tenant may use.
v1::ModelInfo DescribeModel(Router& router, const Tenant& tenant, size_t model);

// If `request` has no adapter and names one in place of a model, as OpenAI's clients do: sets the model that
// the adapter belongs to, and the adapter.
void TakeAdapterForModel(Router& router, const RoutingTable& table, const Tenant& tenant,
                         v1::GenerateRequest& request);

}  // namespace tandem::router

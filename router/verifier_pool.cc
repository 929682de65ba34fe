#include "router/verifier_pool.h"

#include "common/rpc/channel.h"
#include "router/selection.h"

namespace tandem::router {

VerifierPool::VerifierPool(const RoutingTable& table) {
  for (const TargetModel& model : table.models) {
    std::vector<std::unique_ptr<Verifier>>& verifiers = by_model_.emplace_back();
    for (const std::string& endpoint : model.verifiers) {
      auto verifier = std::make_unique<Verifier>();
      verifier->endpoint = endpoint;
      verifier->channel = CreateChannel(endpoint);
      verifier->stub = v1::Verifier::NewStub(verifier->channel);
      verifiers.push_back(std::move(verifier));
    }
  }
}

std::vector<Verifier*> VerifierPool::Order(size_t model, absl::Span<const uint32_t> prompt, uint64_t salt) {
  std::vector<VerifierLoad> loads;
  for (const std::unique_ptr<Verifier>& verifier : by_model_[model]) {
    const grpc_connectivity_state state = verifier->channel->GetState(/*try_to_connect=*/true);
    loads.push_back({.endpoint = verifier->endpoint,
                     .healthy = state != GRPC_CHANNEL_TRANSIENT_FAILURE && state != GRPC_CHANNEL_SHUTDOWN,
                     .in_flight = verifier->in_flight.load(std::memory_order_relaxed)});
  }
  std::vector<Verifier*> order;
  for (size_t index : OrderVerifiers(loads, prompt, salt)) order.push_back(by_model_[model][index].get());
  return order;
}

}  // namespace tandem::router

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "grpcpp/channel.h"
#include "router/config.h"
#include "tandem/v1/verifier.grpc.pb.h"

namespace tandem::router {

// One verifier and the channel to it, which is kept for the router's lifetime.
struct Verifier {
  std::string endpoint;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Verifier::Stub> stub;
  std::atomic<uint32_t> in_flight{0};  // Requests of this router that run there.
};

// The verifiers of every model. Thread-safe.
class VerifierPool {
 public:
  explicit VerifierPool(const RoutingTable& table);

  // A model's verifiers in the order in which to try them for a prompt (OrderVerifiers). A verifier counts as
  // healthy unless its channel, which keeps trying by itself, has failed to connect. The pointers live as
  // long as the pool.
  std::vector<Verifier*> Order(size_t model, absl::Span<const uint32_t> prompt, uint64_t salt);

 private:
  std::vector<std::vector<std::unique_ptr<Verifier>>> by_model_;
};

}  // namespace tandem::router

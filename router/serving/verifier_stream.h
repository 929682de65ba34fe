#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/client_stream_reader.h"
#include "router/generation/generation_host.h"
#include "router/serving/request_trace.h"
#include "router/verifiers/verifier_pool.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// An attempt on a verifier over gRPC: the pool's place for it, and its stream. The stream's callbacks hold
// what serves them, and outlive this.
class VerifierStream final : public GenerationHost::Attempt {
 public:
  struct Options {
    absl::Time deadline = absl::InfiniteFuture();
    // Of the span below which the verifier's are. Read by Start, and lives until then.
    const RequestTrace* trace = nullptr;
    std::function<void(v1::GenerateResponse)> on_event;
    std::function<void(const absl::Status&)> on_done;
  };
  VerifierStream(std::unique_ptr<VerifierPool::Attempt> place, Options options);
  ~VerifierStream() override;

  const std::string& endpoint() const override { return place_->verifier().endpoint; }
  size_t index() const override { return place_->index(); }
  uint64_t arithmetic() const override { return place_->arithmetic(); }
  void Start(const v1::VerifierGenerateRequest& request) override;
  void Acknowledge() override { stream_->Acknowledge(); }
  void OnEvent() override { place_->OnEvent(); }
  void OnSuccess() override { place_->OnSuccess(); }
  void OnFailure() override { place_->OnFailure(); }
  void OnChanged() override { place_->OnChanged(); }

  const std::shared_ptr<Verifier>& verifier() const { return place_->shared_verifier(); }

 private:
  using Stream = ClientStreamReader<v1::VerifierGenerateRequest, v1::GenerateResponse>;

  std::unique_ptr<VerifierPool::Attempt> place_;
  Options options_;
  const std::shared_ptr<Stream> stream_;
};

}  // namespace tandem::router

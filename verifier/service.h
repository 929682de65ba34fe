#pragma once

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/verifier.grpc.pb.h"
#include "verifier/engine_loop.h"
#include "verifier/metrics.h"
#include "verifier/request_wire.h"

namespace tandem {

// The RPC shell of a verifier: checks a call, hands it to the engine thread as a session, and relays what
// comes back.
class VerifierService final : public v1::Verifier::CallbackService {
 public:
  // All outlive the service.
  VerifierService(const ServedTarget* target, EngineLoop* loop, VerifierMetrics* metrics)
      : target_(target), loop_(loop), metrics_(metrics) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) override;

  // From now on calls are refused with UNAVAILABLE.
  void StopAdmission() { draining_ = true; }

 private:
  absl::StatusOr<SessionRequest> MakeSession(const v1::VerifierGenerateRequest& request, absl::Time deadline);

  const ServedTarget* const target_;
  EngineLoop* const loop_;
  VerifierMetrics* const metrics_;
  std::atomic<bool> draining_{false};
};

}  // namespace tandem

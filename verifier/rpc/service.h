#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/grammar/constraint_compiler.h"
#include "common/tracing/span.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/verifier.grpc.pb.h"
#include "verifier/rpc/engine_loop.h"
#include "verifier/rpc/metrics.h"
#include "verifier/rpc/request_wire.h"

namespace tandem {

// The RPC shell of a verifier's model: checks a call, passes it to the engine thread as a session, and relays
// the results. Served directly, or behind a ModelsService.
class VerifierService final : public v1::Verifier::CallbackService {
 public:
  // All arguments outlive the service; the tracer also outlives its calls. Without a loop, calls are refused
  // with UNAVAILABLE until Serve provides one.
  VerifierService(const ServedTarget* target, EngineLoop* loop, VerifierMetrics* metrics,
                  const Tracer& tracer = Tracer::Off())
      : target_(target), loop_(loop), metrics_(metrics), tracer_(tracer) {}

  void Serve(EngineLoop* loop) { loop_ = loop; }
  // Sets the compiler of constraints. Call it before Serve. The compiler outlives the calls and is destroyed
  // before the service.
  void ServeConstraints(ConstraintCompiler* constraints) { constraints_ = constraints; }
  const EngineLoop* loop() const { return loop_; }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) override;

  grpc::ServerUnaryReactor* SwapDrafter(grpc::CallbackServerContext* context,
                                        const v1::SwapDrafterRequest* request,
                                        v1::SwapDrafterResponse* response) override;

  // Refuses calls with UNAVAILABLE from now on.
  void StopAdmission() { draining_ = true; }
  // Waits until no calls and callbacks are left; false if `timeout` has passed before. Call it after
  // StopAdmission, when no session runs: the remaining calls are those of clients that do not read their last
  // messages.
  bool AwaitNoCalls(absl::Duration timeout);

  // SwapDrafter without its RPC. `done` is called once, from any thread. An invalid request is returned as an
  // error instead.
  absl::Status Swap(const v1::SwapDrafterRequest& request, OnSwapped done);

  // AwaitNoCalls waits while the result exists.
  std::shared_ptr<void> Hold();

 private:
  // The binding of a drafter by its address; connects if there is no connection. InvalidArgument names
  // `field`.
  absl::StatusOr<DrafterBinding> BindingOf(const v1::DrafterTarget& target, absl::string_view field);
  // Unavailable while the model loads, and after shutdown has begun.
  absl::Status CheckServing() const;
  absl::StatusOr<DrafterSwap> MakeSwap(const v1::SwapDrafterRequest& request);
  absl::StatusOr<SessionRequest> MakeSession(const v1::VerifierGenerateRequest& request, absl::Time deadline,
                                             const TraceContext& trace);
  absl::StatusOr<std::optional<ConstraintSource>> MakeConstraint(
      const v1::VerifierGenerateRequest& request) const;
  // Starts the session once its constraint is compiled, or refuses it.
  void BeginConstrained(EngineLoop* loop, SessionId id, SessionRequest session, GenerateCall call,
                        absl::StatusOr<ConstraintCompiler::Compiled> constraint);

  const ServedTarget* const target_;
  std::atomic<EngineLoop*> loop_;
  ConstraintCompiler* constraints_ = nullptr;
  VerifierMetrics* const metrics_;
  const Tracer& tracer_;
  std::atomic<bool> draining_{false};
  struct Calls {
    absl::Mutex mutex;
    int held ABSL_GUARDED_BY(mutex) = 0;
  };
  // Shared with Hold's results: gRPC may release a call after the server and the service were destroyed.
  const std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
};

v1::SwapDrafterResponse SwapResultToProto(const DrafterSwapResult& result);

}  // namespace tandem

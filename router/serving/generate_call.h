#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/config/secret.h"
#include "grpcpp/alarm.h"
#include "router/generation/generation.h"
#include "router/generation/generation_host.h"
#include "router/serving/call_observers.h"
#include "router/serving/client_stream.h"
#include "router/serving/preparation.h"
#include "router/serving/router.h"
#include "router/serving/running_calls.h"
#include "router/verifiers/verifier_pool.h"
#include "router/verifiers/verifier_traits.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// One generation over gRPC and threads, from the arrival of its call (from Generation.Generate or over HTTP)
// to its end. Decides nothing: Preparation makes the verifier's request, Generation says what happens then,
// and this carries it out with the client's stream, the pool's verifiers, alarms and a worker.
//
// Threads: reactions and callbacks come from gRPC's threads, the client's stream and one worker; mutex_
// guards everything but preparation's work on the worker. No reaction runs inside an operation that this
// class starts, so it starts them with the mutex held.
//
// Ownership: shared by the client's side of the call (until OnDone), the worker that prepares it and the
// verifier's stream.
class GenerateCall final : public RunningCall,
                           private GenerationHost,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  using Request = Preparation::Request;

  // Creates a call that arrived with `head`. `client` gets nothing before Start and lives until OnDone.
  static std::shared_ptr<GenerateCall> Create(Router& router, const CallHead& head, ClientStream& client);
  // Serves the call. `read` returns the request or what is wrong with it. It is called before Start returns,
  // and only if the caller is authenticated.
  void Start(absl::FunctionRef<absl::StatusOr<Request>()> read);

  // Callbacks of the client's stream. The write in flight has succeeded (`ok`), or failed for good.
  void OnWriteDone(bool ok);
  // The client cancelled the call, or is gone. The call still finishes its stream.
  void OnCancel();
  // The last callback, after Finish: the stream is not used any more.
  void OnDone();

 private:
  GenerateCall(Router& router, const CallHead& head, ClientStream& client);

  // The stages up to the place in flight.
  absl::Status Begin(absl::FunctionRef<absl::StatusOr<Request>()> read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On a worker, once the call has its place, or once `placed` says why it gets none: the other stages.
  void Prepare(const absl::Status& placed);
  absl::Status TakePlace(const absl::Status& placed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Complete(Preparation::Found& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // RunningCall.
  const std::string& tenant() const override { return preparation_.facts().tenant->name; }
  std::shared_ptr<Verifier> Rebind(const std::string& from, const v1::DrafterTarget& to) override;
  void Abandon(const absl::Status& status) override;

  // GenerationHost, with the mutex held.
  absl::Time Now() override { return router_.clock().Now(); }
  absl::Duration Uptime() override;
  size_t num_verifiers() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return router_.verifiers().size(model());
  }
  bool MayServe() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return router_.verifiers().MayServe(model());
  }
  absl::Status NoneServes() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return router_.verifiers().NoneServes(model());
  }
  bool TakeRetry() override { return router_.verifiers().TakeRetry(); }
  absl::StatusOr<std::unique_ptr<Attempt>> BeginAttempt(int number,
                                                        const v1::VerifierGenerateRequest& request,
                                                        absl::Span<const size_t> tried,
                                                        const VerifierNeeds& needs) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StartWaiting() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopWaiting() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTimer(absl::Time when, int number) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelTimer() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetWriteTimer(absl::Duration after) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(const v1::GenerateResponse& event) override { client_.Write(event); }
  void GiveUpPlace(uint32_t num_sent) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void OnWriteTimer();
  size_t model() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return generation_.facts().model; }
  // A callback that does `event` with the generation, unless the call is gone by then.
  template <class Event>
  auto Later(Event event);

  Router& router_;
  ClientStream& client_;  // Until its Finish.
  const Router::Lease lease_;

  absl::Mutex mutex_;
  std::optional<Secret> authorization_ ABSL_GUARDED_BY(mutex_);  // Until Begin has checked it.
  std::shared_ptr<GenerateCall> self_ ABSL_GUARDED_BY(mutex_);   // From Start to OnDone.
  CallObservers observers_ ABSL_GUARDED_BY(mutex_);
  Generation generation_ ABSL_GUARDED_BY(mutex_);
  Preparation preparation_;                                           // As its comment says.
  std::unique_ptr<VerifierPool::Wait> wait_ ABSL_GUARDED_BY(mutex_);  // For a verifier that serves.
  std::unique_ptr<grpc::Alarm> timer_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> write_timer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router

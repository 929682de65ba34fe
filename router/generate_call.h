#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/client_stream_reader.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "router/admission.h"
#include "router/metrics.h"
#include "router/relay.h"
#include "router/request.h"
#include "router/router.h"
#include "router/selection.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// One Generation.Generate call, from its arrival to its one terminal status.
//
//   Start -- refused -------------------------------------------------------.
//     |                                                                     |
//     v                                                                     v
//   PREPARING --> RELAYING (attempt 1, 2, ... until one holds) ---------> ENDING --> FINISHED --> DONE
//   (worker)        |  verifier -> queue_ -> client                       queue_ is delivered
//                   '-- client cancels, is gone, or the deadline passes: queue_ is dropped, FINISHED at once
//
// Flow control runs through: a verifier is read no further than kMaxQueuedEvents ahead of the client, so a
// client that reads slowly holds back its verifier and not memory here. gRPC's Finish is called exactly once
// and never while a write is in flight. `status_` is decided once; whatever happens after that changes
// nothing.
//
// Reactions and callbacks come from gRPC's threads and one worker; mutex_ guards everything. gRPC runs no
// reaction inside the operations started here, so they are started with the mutex held.
//
// Lifetime: shared by gRPC's side of the call (until OnDone), the worker that prepares it and the verifier's
// stream.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  static constexpr size_t kMaxQueuedEvents = 8;

  // Serves a call; the result goes to gRPC.
  static grpc::ServerWriteReactor<v1::GenerateResponse>* Start(Router& router,
                                                               grpc::CallbackServerContext* context,
                                                               const v1::GenerateRequest& request);

 private:
  using VerifierStream = ClientStreamReader<v1::VerifierGenerateRequest, v1::GenerateResponse>;

  GenerateCall(Router& router, const grpc::CallbackServerContext& context);

  // Authenticates, admits and selects; what remains is work for Prepare.
  absl::Status Admit(const grpc::CallbackServerContext& context, const v1::GenerateRequest& request);
  // On a worker: validates, tokenizes and opens the first attempt.
  void Prepare(const v1::GenerateRequest& request);
  void StartAttempt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnVerifierEvent(int attempt, v1::GenerateResponse event);
  void OnVerifierDone(int attempt, const absl::Status& status);
  void RecordEvent(const v1::GenerateResponse& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Decides the terminal status, unless it is decided, and lets go of the verifier.
  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the next write, or finishes the call when nothing is left to write.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One line that finds the request again; never its prompt or output.
  void LogEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnClientGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Router& router_;
  const Router::Lease lease_;
  const absl::Time deadline_;  // InfiniteFuture without one.

  // Set by Start and Prepare, one after the other, and constant from then on.
  const Tenant* tenant_ = nullptr;
  size_t model_ = 0;
  std::string request_id_;
  DrafterSelection drafter_;

  absl::Mutex mutex_;
  std::shared_ptr<GenerateCall> self_ ABSL_GUARDED_BY(mutex_);
  Admission::Ticket ticket_ ABSL_GUARDED_BY(mutex_);
  RouterMetrics::Request record_ ABSL_GUARDED_BY(mutex_);
  v1::VerifierGenerateRequest prepared_ ABSL_GUARDED_BY(mutex_);
  std::vector<Verifier*> verifiers_ ABSL_GUARDED_BY(mutex_);  // In the order in which to try them.
  std::optional<Relay> relay_ ABSL_GUARDED_BY(mutex_);
  // Attempts begun; the current one, number attempts_, runs on verifiers_[attempts_ - 1].
  int attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<VerifierStream> stream_ ABSL_GUARDED_BY(mutex_);  // The current attempt's.
  // The front one is being written while writing_.
  std::deque<v1::GenerateResponse> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router

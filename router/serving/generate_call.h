#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/client_stream_reader.h"
#include "grpcpp/alarm.h"
#include "router/admission/admission.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/choice_feedback.h"
#include "router/drafters/feedback/feedback_sink.h"
#include "router/drafters/selection.h"
#include "router/live/live_call.h"
#include "router/models/parsed_output.h"
#include "router/serving/client_stream.h"
#include "router/serving/metrics.h"
#include "router/serving/relay.h"
#include "router/serving/request.h"
#include "router/serving/request_outcome.h"
#include "router/serving/request_trace.h"
#include "router/serving/router.h"
#include "router/serving/running_calls.h"
#include "router/spool/recorded_call.h"
#include "router/verifiers/failover.h"
#include "router/verifiers/verifier_pool.h"
#include "tandem/v1/generation.pb.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {

// One generation, from the arrival of its call to its one terminal status, whichever way the call came:
// Generation.Generate, or HTTP.
//
//   Start -- refused -------------------------------------------------------.
//     |                                                                     |
//     v                                                                     v
//   PREPARING --> RELAYING (attempt 1, 2, ... until one holds) ---------> ENDING --> FINISHED --> DONE
//   (worker)        |  verifier -> queue_ -> client                       queue_ is delivered
//                   '-- client cancels, is gone, or the deadline passes: queue_ is dropped, FINISHED at once
//
// A verifier that is lost half way, or stalls, is replaced: the next attempt is given prompt and output so
// far and goes on with the next token (DESIGN law 2), so that the client sees one stream: where and when,
// Failover says, within the router's retry budget and the call's deadline. While no verifier of the model
// serves, the call waits for one, up to VerifierPool::longest_wait() without a new token, and then tries them
// anew.
//
// The request's place among those in flight is free as soon as its status is decided, whether or not the
// client reads the rest; a client that takes nothing of it for the router's write_stall_timeout has its call
// cancelled.
//
// Flow control runs through: a verifier is read no further than kMaxQueuedEvents ahead of the client, so a
// client that reads slowly holds back its verifier and not memory here. ClientStream::Finish is called
// exactly once and never while a write is in flight. `status_` is decided once; whatever happens after that
// changes nothing.
//
// Reactions and callbacks come from gRPC's threads, the client's stream and one worker; mutex_ guards
// everything. No reaction runs inside the operations started here, so they are started with the mutex held.
//
// Lifetime: shared by the client's side of the call (until OnDone), the worker that prepares it and the
// verifier's stream.
class GenerateCall final : public RunningCall, public std::enable_shared_from_this<GenerateCall> {
 public:
  static constexpr size_t kMaxQueuedEvents = 8;

  using Request = std::shared_ptr<const v1::GenerateRequest>;

  // A call that has arrived with `head`. `client` is told nothing before Start and lives until OnDone.
  static std::shared_ptr<GenerateCall> Create(Router& router, const CallHead& head, ClientStream& client);
  // Serves it. `read` gives the request, or says what is wrong with it, and is called at once, but only for
  // callers who are known.
  void Start(absl::FunctionRef<absl::StatusOr<Request>()> read);

  // What becomes of the client's stream. The event that was being written was taken, or will never be.
  void OnWriteDone(bool ok);
  // The client cancelled the call, or is gone. Its stream is finished all the same.
  void OnCancel();
  // After Finish, last: the stream is over, and not used any more.
  void OnDone();

 private:
  using VerifierStream = ClientStreamReader<v1::VerifierGenerateRequest, v1::GenerateResponse>;

  GenerateCall(Router& router, const CallHead& head, ClientStream& client);

  // Authenticates and admits; what remains is work for Prepare.
  absl::Status Begin(absl::FunctionRef<absl::StatusOr<Request>()> read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Validates, selects and takes a place, or one in the queue for it.
  absl::Status Admit(const v1::GenerateRequest& request, size_t tenant, Admission::OnPlace on_place);
  // On a worker, once the call has its place in flight, or `placed` says why it gets none: validates,
  // tokenizes and opens the first attempt.
  void Prepare(const v1::GenerateRequest& request, const absl::Status& placed);
  // The tools that the constraint was made of, so that errors are about these.
  void KeepTools(const v1::GenerateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the worker did since `taken`: `choosing` is when the prompt was tokenized.
  void TracePreparation(absl::Time taken, absl::Time choosing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On a worker: the features of the prompt, and the drafter where that is left to them.
  void ChooseDrafter(const v1::VerifierGenerateRequest& prepared);
  // What the choice of drafters learns from the request.
  void Learn(const v1::GenerationFinished& finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the window policy learned is kept for the next request.
  void LearnPolicy(const v1::SpeculationStats& stats, absl::string_view state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the drafter did goes to the tenant's canary, if it has one.
  void ObserveCanary(const v1::SpeculationStats& stats) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddAlternates(size_t drafter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartAttempt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a verifier must have to run what is left of the request.
  VerifierNeeds Needs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the client how its output is computed, in the first chunk since that is known.
  void TellArithmetic(v1::GenerationChunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // No verifier takes the request, for the reason given: waits for one, or ends the call.
  void EndWithoutVerifier(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The current attempt failed: begins another one, now or after a pause, or ends the call.
  void Retry(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RetryAt(absl::Time when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRetryTime(int alarm);
  // Begins to wait for a verifier that serves, `reason` being what the call ends with if there is none in
  // time. False if the call may not wait, or not any longer.
  bool WaitForVerifier(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnVerifierServes();
  void OnWaitOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoVerifier(absl::string_view last) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether what happens to the attempt of this number still matters.
  bool IsCurrent(int attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.has_value() && attempt == attempts_ && attempt_ != nullptr;
  }
  const std::string& tenant() const override { return tenant_->name; }
  std::shared_ptr<Verifier> Rebind(const std::string& from, const v1::DrafterTarget& to) override;
  void Abandon(const absl::Status& status) override;
  void OnVerifierEvent(int attempt, v1::GenerateResponse event);
  void OnVerifierDone(int attempt, const absl::Status& status);
  void RecordEvent(const v1::GenerateResponse& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Takes what the request may use out of its tenant's quota; `tokenized` is what it has used.
  absl::Status ReserveTokens(uint64_t tokenized) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Decides the terminal status, unless it is decided, and lets go of the verifier.
  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the next write, or finishes the call when nothing is left to write.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the output scored by all drafters that could have drafted for it, if the request was sampled for
  // that.
  void OfferFeedback() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One line that finds the request again; never its prompt or output.
  void LogEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Ends the call if a write takes too long; looks again when the one that is under way would.
  void WatchWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnWriteWatch();
  void OnClientGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Router& router_;
  const std::optional<std::string> authorization_;
  const std::string peer_;
  ClientStream& client_;  // Until its Finish.
  const Router::Lease lease_;
  const std::shared_ptr<const RoutingSnapshot> routing_;
  const absl::Time deadline_;  // InfiniteFuture without one.

  // Set by Start and Prepare, one after the other, and constant from then on.
  const Tenant* tenant_ = nullptr;  // In routing_.
  size_t model_ = 0;
  std::string adapter_;  // Empty: none.
  std::string request_id_;
  DrafterSelection drafter_;
  PromptHandle prompt_;                                // Of requests that may be drafted.
  std::shared_ptr<ChoiceFeatures> feedback_features_;  // Of those that are to be scored.
  DrafterDecision decision_;
  PolicyKey policy_key_;  // Of what its window policy learns.

  absl::Mutex mutex_;
  std::shared_ptr<GenerateCall> self_ ABSL_GUARDED_BY(mutex_);
  Admission::Ticket ticket_ ABSL_GUARDED_BY(mutex_);
  // Of the tenant's quota, once that has been taken; and what of it is used before any output.
  std::optional<uint64_t> reserved_tokens_ ABSL_GUARDED_BY(mutex_);
  uint64_t used_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  RouterMetrics::Request record_ ABSL_GUARDED_BY(mutex_);
  RequestTrace trace_ ABSL_GUARDED_BY(mutex_);
  LiveCall live_ ABSL_GUARDED_BY(mutex_);
  std::optional<RecordedCall> recorded_ ABSL_GUARDED_BY(mutex_);  // Of a tenant that is recorded.
  v1::VerifierGenerateRequest prepared_ ABSL_GUARDED_BY(mutex_);
  std::optional<Relay> relay_ ABSL_GUARDED_BY(mutex_);
  std::optional<ParsedOutput> parsed_ ABSL_GUARDED_BY(mutex_);       // Of a chat whose output is parsed.
  v1::ChatPrompt tools_ ABSL_GUARDED_BY(mutex_);                     // Those its constraint was made of.
  std::optional<FeedbackRequest> feedback_ ABSL_GUARDED_BY(mutex_);  // When sampled, until the end.
  int attempts_ ABSL_GUARDED_BY(mutex_) = 0;  // Begun; the current one has this number.
  Failover failover_ ABSL_GUARDED_BY(mutex_);
  // How the verifier computes where the output began, once both are known.
  uint64_t arithmetic_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<VerifierPool::Attempt> attempt_ ABSL_GUARDED_BY(mutex_);  // The current one,
  std::shared_ptr<VerifierStream> stream_ ABSL_GUARDED_BY(mutex_);          // and its stream.
  std::unique_ptr<grpc::Alarm> retry_alarm_ ABSL_GUARDED_BY(mutex_);        // Between attempts.
  int alarms_ ABSL_GUARDED_BY(mutex_) = 0;  // Set or made void; the current one has this number.
  std::unique_ptr<VerifierPool::Wait> wait_ ABSL_GUARDED_BY(mutex_);  // While it waits for a verifier,
  absl::Status wait_reason_ ABSL_GUARDED_BY(mutex_);                  // and what it ends with if none comes.
  // The front one is being written while writing_.
  struct Queued {
    v1::GenerateResponse event;
    int attempt = 0;  // That it came from.
  };
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // By the steady clock, since it is a time span; the alarm is set while watching_.
  std::chrono::steady_clock::time_point write_began_ ABSL_GUARDED_BY(mutex_);
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // Keeps back Finish.
  std::unique_ptr<grpc::Alarm> write_alarm_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router

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
#include "common/config/secret.h"
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

// One generation, from the arrival of its call to its one terminal status. The call comes from
// Generation.Generate or over HTTP.
//
//   Start -- refused -------------------------------------------------------.
//     |                                                                     |
//     v                                                                     v
//   PREPARING --> RELAYING (attempt 1, 2, ... until one holds) ---------> ENDING --> FINISHED --> DONE
//   (worker)        |  verifier -> queue_ -> client                       queue_ is delivered
//                   '-- client cancels, is gone, or the deadline passes: queue_ is dropped, FINISHED at once
//
// If a verifier is lost or stalls, the call retries on another one. The next attempt gets the prompt and the
// output so far and continues with the next token (DESIGN law 2), so that the client sees one stream.
// Failover decides where and when, within the router's retry budget and the call's deadline. While no
// verifier of the model serves, the call waits for one, for at most VerifierPool::longest_wait() without a
// new token, and then tries all of them again.
//
// The call gives up its place in flight as soon as its status is decided, even if the client has not read the
// rest. If the client reads nothing for the router's write_stall_timeout, the router cancels the call.
//
// Flow control works end to end: the call reads at most kMaxQueuedEvents from the verifier ahead of the
// client, so a slow client slows its verifier and does not fill memory here. ClientStream::Finish is called
// exactly once and never while a write is in flight. `status_` is decided once; later events do not change
// it.
//
// Threads: reactions and callbacks come from gRPC's threads, the client's stream and one worker; mutex_
// guards everything. No reaction runs inside an operation that this class starts, so it starts them with the
// mutex held.
//
// Ownership: shared by the client's side of the call (until OnDone), the worker that prepares it and the
// verifier's stream.
class GenerateCall final : public RunningCall, public std::enable_shared_from_this<GenerateCall> {
 public:
  static constexpr size_t kMaxQueuedEvents = 8;

  using Request = std::shared_ptr<const v1::GenerateRequest>;

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
  using VerifierStream = ClientStreamReader<v1::VerifierGenerateRequest, v1::GenerateResponse>;

  GenerateCall(Router& router, const CallHead& head, ClientStream& client);

  // Authenticates and admits. Prepare does the rest.
  absl::Status Begin(absl::FunctionRef<absl::StatusOr<Request>()> read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Validates the request, selects a drafter and takes a place, or joins the queue for one.
  absl::Status Admit(const v1::GenerateRequest& request, size_t tenant, Admission::OnPlace on_place);
  // On a worker, once the call has its place, or once `placed` says why it gets none: validates, tokenizes
  // and starts the first attempt.
  void Prepare(const v1::GenerateRequest& request, const absl::Status& placed);
  // Keeps the tools that the constraint was built from, so that errors can name them.
  void KeepTools(const v1::GenerateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Traces what the worker did since `taken`. `choosing`: when the prompt was tokenized.
  void TracePreparation(absl::Time taken, absl::Time choosing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On a worker: computes the prompt's features and, if the drafter depends on them, chooses it.
  void ChooseDrafter(const v1::VerifierGenerateRequest& prepared);
  // Tells the choice of drafters how the request went.
  void Learn(const v1::GenerationFinished& finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Stores what the window policy learned, for the next request.
  void LearnPolicy(const v1::SpeculationStats& stats, absl::string_view state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts the request for the trial of the tenant's canary, if there is one.
  void ObserveCanary(const v1::SpeculationStats& stats) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddAlternates(size_t drafter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartAttempt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a verifier must have to run the rest of the request.
  VerifierNeeds Needs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds to the first chunk after it is known how the output is computed.
  void TellArithmetic(v1::GenerationChunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // No verifier takes the request, for `reason`: waits for one, or ends the call.
  void EndWithoutVerifier(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The current attempt failed: starts another one, now or after a pause, or ends the call.
  void Retry(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RetryAt(absl::Time when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRetryTime(int alarm);
  // Starts to wait for a verifier that serves. If none does in time, the call ends with `reason`. False if
  // the call may not wait, or may not wait any longer.
  bool WaitForVerifier(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnVerifierServes();
  void OnWaitOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoVerifier(absl::string_view last) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether this attempt is the current one, so that its events still count.
  bool IsCurrent(int attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.has_value() && attempt == attempts_ && attempt_ != nullptr;
  }
  const std::string& tenant() const override { return tenant_->name; }
  std::shared_ptr<Verifier> Rebind(const std::string& from, const v1::DrafterTarget& to) override;
  void Abandon(const absl::Status& status) override;
  void OnVerifierEvent(int attempt, v1::GenerateResponse event);
  void OnVerifierDone(int attempt, const absl::Status& status);
  void RecordEvent(const v1::GenerateResponse& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Reserves the tokens that the request may use from its tenant's quota; `tokenized`: those already used.
  absl::Status ReserveTokens(uint64_t tokenized) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Decides the terminal status, unless it is decided already, and releases the verifier.
  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the next write, or finishes the call when nothing is left to write.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If the request was sampled for feedback, lets every drafter that could have drafted for it score the
  // output.
  void OfferFeedback() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs one line by which the request can be found. Never logs the prompt or the output.
  void LogEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Ends the call if a write takes too long. Otherwise sets an alarm for when the write in flight would.
  void WatchWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnWriteWatch();
  void OnClientGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Router& router_;
  std::optional<Secret> authorization_ ABSL_GUARDED_BY(mutex_);  // Until Begin has checked it.
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
  std::shared_ptr<ChoiceFeatures> feedback_features_;  // Of requests to be scored.
  DrafterDecision decision_;
  PolicyKey policy_key_;  // Of what its window policy learns.

  absl::Mutex mutex_;
  std::shared_ptr<GenerateCall> self_ ABSL_GUARDED_BY(mutex_);
  Admission::Ticket ticket_ ABSL_GUARDED_BY(mutex_);
  // Tokens reserved from the tenant's quota, once they are; and how many of them are used before any output.
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
  // How the verifier that began the output computes, once both are known.
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
    int attempt = 0;  // The attempt it came from.
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

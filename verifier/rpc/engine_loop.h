#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/busy_time.h"
#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/rpc/server_stream.h"
#include "tandem/v1/generation.pb.h"
#include "verifier/rpc/drafter_links.h"
#include "verifier/rpc/drafter_names.h"
#include "verifier/rpc/metrics.h"
#include "verifier/rpc/session_trace.h"
#include "verifier/scheduler/drafter_pools.h"
#include "verifier/scheduler/scheduler.h"
#include "verifier/scheduler/warm_up.h"

namespace tandem {

using GenerateStream = ServerStream<v1::GenerateResponse>;

// The data of a call besides its session: its stream, and its names in logs, traces and metrics.
struct GenerateCall {
  std::shared_ptr<GenerateStream> stream;
  v1::GenerateResponse started;  // Sent when the session is admitted.
  bool with_logprobs = false;
  uint64_t arithmetic = 0;                    // SessionRequest::arithmetic until it was sent.
  VerifierMetrics::OriginSeries speculation;  // Of the drafters of the last round.
  VerifierMetrics::DraftSeries drafting;      // Of the drafter that rounds were made with,
  VerifierMetrics::DraftSeries wire;  // and of the one that is bound now: what goes there and comes back.
  std::array<uint32_t, kNumDraftSupplies> supplies = {};  // Rounds, by DraftSupply.
  CalibrationMetrics::Series calibration;
  std::string tenant;
  std::string request_id;
  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 0;
  RequestTimes times;
  SessionTrace trace;
};

// Which sessions to move to which drafter.
struct DrafterSwap {
  std::vector<std::string> request_ids;  // These,
  std::string tenant;                    // or if there are none, all of this tenant,
  std::string from;                      // as far as they are bound to this drafter; empty: to any.
  DrafterBinding to;
};
struct DrafterSwapResult {
  uint32_t swapped = 0;
  uint32_t refused = 0;
  uint32_t ended = 0;
  std::string refusal;  // Why the first of the refused ones was.
};
using OnSwapped = std::function<void(const absl::StatusOr<DrafterSwapResult>&)>;

// The thread that owns the engine. All events of sessions are posted to it. Between forward passes it passes
// them to the scheduler, and delivers the scheduler's output to streams, drafters and metrics. Messages that
// drafters wait for are delivered at once. The rest, on which no step depends, is delivered after the next
// forward pass has been started, or when none is due. It also makes the passes of a warm-up: all the time
// while there is no session, and otherwise in a tenth of it. The destructor cancels running sessions and
// stops the thread. Public methods are thread-safe.
class EngineLoop final : private SchedulerListener {
 public:
  struct Load {
    uint32_t running = 0;
    uint32_t waiting = 0;
    uint64_t kv_tokens_used = 0;
    std::string window_policy;                 // Of requests that name none.
    std::vector<std::string> random_drafters;  // DrafterAgreement.
  };

  // `metrics` and `clock` outlive the loop. `drafters`: options of the links to drafters. `round_time`: until
  // `warm_up`, of the same engine and pool, knows better; null: it is known already.
  EngineLoop(const Scheduler::Options& options, std::unique_ptr<Engine> engine,
             std::unique_ptr<BlockPool> pool, RoundTimeModel round_time, const Clock* clock,
             VerifierMetrics* metrics, DrafterLinks::Options drafters = {},
             const DrafterNames::Options& names = {}, std::unique_ptr<WarmUp> warm_up = nullptr);
  ~EngineLoop() override;

  // Finds the link or pool of an endpoint; connects if there is no connection.
  absl::Status BindEndpoint(const std::string& endpoint, DrafterBinding* binding);
  SessionId NewSession() { return next_session_.fetch_add(1); }
  void Begin(SessionId session, SessionRequest request, GenerateCall call);
  void Cancel(SessionId session, absl::Status reason);
  // See Scheduler::SwapDrafter. `done` is called once: on the engine thread when the last outcome is known,
  // or with UNAVAILABLE if the loop ends before.
  void SwapDrafter(DrafterSwap swap, OnSwapped done);
  // See Scheduler::SetWindowPolicy. An unknown name is logged and changes nothing.
  void SetWindowPolicy(std::string name, WindowPolicyOptions options);

  // Adds an adapter between two steps. `done` is called on the engine thread, or not at all if the loop ends
  // before.
  using OnAdapterAdded = std::function<void(absl::StatusOr<AdapterId>)>;
  void AddAdapter(std::shared_ptr<const LoraAdapter> adapter, OnAdapterAdded done);
  // Frees the adapter's memory as soon as nobody else has a handle. The caller must not give out new handles.
  void DropAdapter(AdapterHandle adapter);

  // Blocks until nothing runs or waits, or the deadline has passed. Shortly before the deadline, the
  // remaining sessions end with UNAVAILABLE, so that routers continue them elsewhere.
  void Drain(absl::Time deadline);
  // The clock of request deadlines.
  const Clock& clock() const { return *clock_; }
  // How long the engine thread has been in its current step.
  absl::Duration busy_time() const { return busy_time_.At(clock_->Now()); }
  Load load() const;
  // The round times that the warm-up measured; nullopt before its end.
  std::optional<RoundTimeModel> measured_round_time() const;
  // Blocks until there are such; false if the time has passed before.
  bool AwaitWarmUp(absl::Duration timeout) const;

 private:
  struct BeginEvent {
    SessionId session;
    SessionRequest request;
    GenerateCall call;
  };
  struct CancelEvent {
    SessionId session;
    absl::Status reason;
  };
  struct LinkUpEvent {
    LinkId link;
  };
  struct LinkDownEvent {
    LinkId link;
    absl::Status reason;
  };
  struct LinkGoneEvent {
    LinkId link;
    std::string endpoint;
  };
  struct LinkRoomEvent {};
  struct MembersEvent {
    PoolId pool;
    std::vector<LinkId> members;
  };
  struct PoolGoneEvent {
    PoolId pool;
  };
  struct DraftEvent {
    LinkId link;
    DraftResponse response;
    size_t bytes;
  };
  struct MalformedEvent {
    LinkId link;
    absl::Status reason;
  };
  // A swap whose outcomes are being counted. When the last holder releases it, `done` is called.
  class SwapCount {
   public:
    explicit SwapCount(OnSwapped done) : done_(std::move(done)) {}
    ~SwapCount();
    void Count(const absl::Status& outcome);
    void set_complete() { complete_ = true; }

   private:
    const OnSwapped done_;
    DrafterSwapResult result_;
    bool complete_ = false;  // Every session that is concerned has been asked.
  };
  struct SwapEvent {
    DrafterSwap swap;
    std::shared_ptr<SwapCount> count;
  };
  struct PolicyEvent {
    std::string name;
    WindowPolicyOptions options;
  };
  struct HandOverEvent {};
  struct AdapterEvent {
    std::shared_ptr<const LoraAdapter> adapter;
    OnAdapterAdded done;
  };
  struct DropEvent {
    AdapterHandle adapter;
  };
  using Event = std::variant<BeginEvent, CancelEvent, LinkUpEvent, LinkDownEvent, LinkGoneEvent,
                             LinkRoomEvent, MembersEvent, PoolGoneEvent, DraftEvent, MalformedEvent,
                             SwapEvent, PolicyEvent, HandOverEvent, AdapterEvent, DropEvent>;

  // Output of the scheduler that is not delivered yet.
  struct Started {};
  struct SwapEnded {
    absl::Status status;
  };
  struct Ended {
    absl::Status status;
    SessionSummary summary;
  };
  struct News {
    absl::Time at;
    SessionId session = 0;  // None of StepReport and of speed-ups.
    std::variant<Started, PromptPart, CommittedTokens, RoundReport, DrafterBinding, SwapEnded, Ended,
                 StepReport, ControlGroup::Estimate>
        what;
  };

  void Run();
  void Handle(Event event);
  template <class What>
  void Keep(SessionId session, What&& what);
  void Deliver();
  void TellStarted(GenerateCall& call, absl::Time at);
  void TellTokens(GenerateCall& call, CommittedTokens tokens, absl::Time at);
  void RecordRound(GenerateCall& call, const RoundReport& report, absl::Time at);
  void RecordDrafter(GenerateCall& call, const DrafterBinding& binding);
  void CountSwap(SessionId session, const absl::Status& outcome);
  void TellEnd(SessionId session, const Ended& ended, absl::Time at);
  void HandleSwap(SwapEvent& event);
  // False if there is no such session to swap.
  bool Swap(SessionId session, absl::string_view from, const DrafterBinding& to,
            const std::shared_ptr<SwapCount>& count);
  void MoveSessions();
  // When the warm-up's next pass is due.
  absl::Time NextWarmUp() const;
  void ContinueWarmUp();
  bool idle() const { return scheduler_.num_running() == 0 && scheduler_.num_waiting() == 0; }
  // Between steps: adds new adapters, and drops unused ones.
  void ChangeAdapters();
  // Logs one line by which the request can be found. Never logs the prompt or the output.
  static void LogEnd(const GenerateCall& call, const absl::Status& status, const SessionSummary& summary);
  // Ends every session with UNAVAILABLE.
  void HandOver();
  void WaitUntilIdle(absl::Time deadline);
  void PublishLoad();

  void OnStarted(SessionId session) override;
  void OnPromptPart(SessionId session, PromptPart part) override;
  void OnTokens(SessionId session, CommittedTokens tokens) override;
  void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) override;
  void OnDraftRequest(LinkId link, DraftRequest request) override;
  Backlog BacklogOf(LinkId link) override;
  void OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) override;
  void OnStep(const StepReport& report) override;
  void OnSpeedup(const ControlGroup::Estimate& gain) override;
  void OnRound(SessionId session, const RoundReport& report) override;
  void OnStaleNodes(LinkId link, uint32_t count) override;
  void OnDrafterChanged(SessionId session, const DrafterBinding& binding) override;
  void OnSwapEnded(SessionId session, const absl::Status& status) override;

  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<BlockPool> pool_;
  VerifierMetrics* const metrics_;
  const Clock* const clock_;
  BusyTime busy_time_;
  Scheduler scheduler_;
  std::unique_ptr<WarmUp> warm_up_;                // Engine thread only; null once it is done.
  absl::Time warm_up_due_ = absl::InfinitePast();  // Beside sessions.
  Mailbox<Event> inbox_;
  std::unique_ptr<DrafterLinks> links_;
  std::unique_ptr<DrafterNames> names_;
  DrafterPools pools_;  // Engine thread only.
  std::atomic<SessionId> next_session_{1};
  // Engine thread only.
  absl::flat_hash_map<SessionId, GenerateCall> calls_;  // Until their end was reported.
  std::vector<News> news_;
  // Oldest first: a new swap of a session ends the previous one.
  absl::flat_hash_map<SessionId, std::deque<std::shared_ptr<SwapCount>>> swaps_;
  std::vector<AdapterEvent> new_adapters_;
  std::vector<AdapterHandle> dropped_adapters_;  // Until nobody else has handles.
  absl::flat_hash_set<LinkId> down_links_;       // Their last stream ended, and they have not answered since.

  mutable absl::Mutex load_mutex_;
  Load load_ ABSL_GUARDED_BY(load_mutex_);
  std::optional<RoundTimeModel> measured_round_time_ ABSL_GUARDED_BY(load_mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(load_mutex_) = 0;  // Sessions handed to the loop,
  uint64_t ended_ ABSL_GUARDED_BY(load_mutex_) = 0;  // and those that have had their terminal status.
  std::thread thread_;
};

}  // namespace tandem

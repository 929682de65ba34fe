#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/drafting/source_host.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/speculation/control_group.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/round_time_model.h"
#include "common/speculation/rules/verification_rule.h"
#include "common/speculation/score_calibration.h"
#include "verifier/session/draft_peer.h"
#include "verifier/session/drafter_record.h"
#include "verifier/session/feature_step.h"
#include "verifier/session/feature_store.h"
#include "verifier/session/forced_spellings.h"
#include "verifier/session/session.h"

namespace tandem {

// What one engine step did, for metrics.
struct StepReport {
  uint32_t rows = 0;
  uint32_t prefill_rows = 0;
  uint32_t sessions = 0;
  uint32_t preemptions = 0;  // Sessions that gave up their keys and values to others before this step.
  double seconds = 0.0;
  double modelled_seconds = 0.0;     // By the round-time model as warm-up measured it.
  double hidden_mask_seconds = 0.0;  // That masks took while a device went on computing after them.
  bool plain = false;                // Of the control group: nothing was drafted.
};

// Receives the scheduler's output. Called on the thread that drives the scheduler, from within its methods.
// Must not call the scheduler.
class SchedulerListener {
 public:
  virtual ~SchedulerListener() = default;

  // The session was admitted and its prefill begins.
  virtual void OnStarted(SessionId session) = 0;
  // A part of the prompt was computed, for a session that wants the prompt's log probabilities. Before any
  // OnTokens.
  virtual void OnPromptPart(SessionId, PromptPart) {}
  // Tokens were committed.
  virtual void OnTokens(SessionId session, CommittedTokens tokens) = 0;
  // The session's one terminal event; the session is gone when this returns. OK: it ended as `summary` says.
  virtual void OnFinished(SessionId session, const absl::Status& status, const SessionSummary& summary) = 0;
  // A message for a drafter.
  virtual void OnDraftRequest(LinkId link, DraftRequest request) = 0;
  // Messages for a drafter that are not sent yet: the number of features messages, and the bytes of all
  // others.
  struct Backlog {
    uint64_t feature_messages = 0;
    uint64_t feature_bytes = 0;
    uint64_t other_bytes = 0;
  };
  virtual Backlog BacklogOf(LinkId) { return {}; }
  // A drafter broke the protocol. After the third time its link is quarantined: it drafts for nobody for a
  // while.
  virtual void OnProtocolViolation(LinkId link, absl::string_view what, bool quarantined) = 0;

  virtual void OnStep(const StepReport&) {}
  // What speculation was measured to gain, anew.
  virtual void OnSpeedup(const ControlGroup::Estimate&) {}
  virtual void OnRound(SessionId, const RoundReport&) {}
  // The session is bound to another drafter now, by SwapDrafter or because its drafter was lost.
  virtual void OnDrafterChanged(SessionId, const DrafterBinding&) {}
  // The outcome of a SwapDrafter: OK, the session is bound to the new drafter; CANCELLED, the session ended
  // before; any other status says why it keeps the old one. Called once for each SwapDrafter that returned
  // OK.
  virtual void OnSwapEnded(SessionId, const absl::Status&) {}
  // Stale growth: it came too late, below a node that the target did not choose.
  virtual void OnStaleNodes(LinkId, uint32_t) {}
};

// Plans every forward pass of the target and handles its results: admission, chunked prefill, verification
// rounds of many sessions in one batch, commits, deadlines (DESIGN sections 2 and 3).
//
//   Submit -> waiting -> (blocks for its tokens) -> prefill -> rounds -> finished
//               ^                                        |         |
//               '--------- preempted: no block left -----'---------'
//
// Cancel and the deadline end a session in any state.
//
// A session holds the blocks of its tokens, and grows block by block. When the pool is empty, the scheduler
// first evicts blocks of the prefix cache, then cuts trees, and then preempts the youngest session: its
// blocks are freed, and it returns to the head of the queue. When it is admitted again, it recomputes the
// tokens that the prefix cache has lost, and continues where it was (law 2). The oldest session is never
// preempted.
//
//   [ events -> Forward -> events -> Await -> events -> Conclude ]*   what the owner does, or Step for all
//                                                                     but the events
//
// Protocol logic: no I/O, no threads, time from an injected clock (law 4). The owner calls all methods on the
// thread that owns the engine.
class Scheduler {
 public:
  struct Options {
    uint32_t max_running = 64;
    uint32_t max_waiting = 256;
    // Most rows of prompts in one step. Bounds the delay of others' tokens by a long prompt.
    uint32_t prefill_chunk = 128;
    WindowLimits limits;
    std::string window_policy = "goodput";
    WindowPolicyOptions policy_options;
    // The longest time that a round waits for a drafter, whatever it might gain.
    absl::Duration max_draft_wait = absl::Milliseconds(100);
    // Back-off of retries at a drafter that had no room for a session: the first and the longest pause; it
    // doubles each time.
    absl::Duration first_draft_retry = absl::Seconds(1);
    absl::Duration longest_draft_retry = absl::Seconds(30);
    // How long a drafter that takes over may need to draft, or at least to answer.
    absl::Duration swap_timeout = absl::Seconds(2);
    // Most committed tokens in openings that a drafter has not answered, with constraints counted by size;
    // further sessions wait. A token takes up to 5 bytes, and a link queues at most 8 MiB.
    uint64_t max_opening_tokens = 700'000;
    uint64_t vocabulary_fingerprint = 0;
    // Identifies the target, for draft heads that were trained for one. 0: unknown.
    uint64_t target_fingerprint = 0;
    // Most memory for features, which draft heads read. If it cannot hold one state of every slot, there are
    // none.
    uint64_t max_feature_bytes = uint64_t{4} << 30;
    FeatureLimits feature_limits;
    // Drafts where no drafter has sent candidates.
    std::optional<SourceSpec> local_drafter;
    // Of all steps' time, what steps without drafts may lose that show what drafts gain (ControlGroup).
    double control_share = 0.0;
    // The rule for requests with a temperature above 0. At 0, all rules equal the seeded one.
    VerificationRuleKind verification_rule = VerificationRuleKind::kSeeded;
  };

  // All pointers outlive the scheduler. `pool` holds the engine's blocks.
  Scheduler(const Options& options, Engine* engine, BlockPool* pool, RoundTimeModel round_time,
            const Clock* clock, SchedulerListener* listener);
  ~Scheduler();

  // Events. Submit queues a session: RESOURCE_EXHAUSTED if the queue is full, INVALID_ARGUMENT if the request
  // can never run because it does not fit into the whole pool; after an error there are no other events of
  // the session. `session` must be new; a lower number counts as older.
  absl::Status Submit(SessionId session, SessionRequest request);
  // Ends the session with `reason`. Does nothing if it is gone.
  void Cancel(SessionId session, const absl::Status& reason);
  void OnLinkUp(LinkId link);
  void OnLinkDown(LinkId link, const absl::Status& reason);
  // The link, which is down, was replaced: nothing more comes from it, and its id is not used again.
  void OnLinkGone(LinkId link) { links_.erase(link); }
  void OnDraftResponse(LinkId link, const DraftResponse& response);
  // Features that were passed to OnDraftRequest have been sent: there may be room for more.
  void OnLinkRoom() { SendFeatures(); }
  // The drafter sent a message that could not be decoded.
  void OnMalformedResponse(LinkId link, absl::string_view what) { RecordViolation(link, what); }

  // Binds the session to the drafter `to`, make before break: opens the session at `to` while the old drafter
  // still drafts; `to` takes over with its first candidates, and then the old one is closed. If nothing
  // drafts at the moment, binds `to` at once, and the old drafter becomes the first alternate. OnSwapEnded
  // reports the outcome, possibly before this returns. NOT_FOUND if there is no such session;
  // FAILED_PRECONDITION if it has no drafter, or a drafter other than `from` (empty: any). Replaces a swap
  // that is in progress.
  absl::Status SwapDrafter(SessionId session, absl::string_view from, DrafterBinding to);
  // Whether the session's drafter drafts for it now.
  bool IsDrafting(SessionId session) const {
    const auto running = running_.find(session);
    return running != running_.end() && running->second->drafting();
  }

  // Sets the policy of requests that name none, including running ones, and the options of all policies
  // created from now on. InvalidArgument if there is no such policy.
  absl::Status SetWindowPolicy(absl::string_view name, const WindowPolicyOptions& options);

  // Expires deadlines, admits sessions, and starts one forward pass if any session has something to compute;
  // false if none has. After true, call Conclude, and before it pass in the events that arrived during the
  // pass: growth that a drafter sent meanwhile is below the nodes being verified, and the next round starts
  // from it (DESIGN section 3: drafting hides behind verification). A session that is cancelled in between
  // ends in Conclude.
  bool Forward();
  // Waits for the end of the pass. Do work on which no step depends before calling this: an engine with its
  // own device computes meanwhile.
  void Await();
  // Walks the trees, commits, and ends finished sessions. Calls Await if nobody has.
  void Conclude();
  void Step() {
    if (Forward()) Conclude();
  }
  // When to call Forward next if no event comes before: the past if there is work, the infinite future if
  // idle.
  absl::Time NextWake() const;

  uint32_t num_running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t num_waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  const RoundTimeModel& round_time() const { return round_time_; }
  // Between steps. What steps have corrected before is forgotten.
  void SetRoundTime(RoundTimeModel round_time) { round_time_ = std::move(round_time); }
  const std::string& window_policy() const { return window_policy_; }
  // Bytes of features that are computed and requested by drafters, but not sent.
  uint64_t WaitingFeatureBytes();
  // For tests and simulations: checks that all blocks are accounted for, between steps and within.
  absl::Status CheckBlocks() const;

 private:
  // The first quarantine of a drafter that broke the protocol three times; it doubles each time.
  static constexpr absl::Duration kFirstQuarantine = absl::Minutes(1);
  static constexpr absl::Duration kLongestQuarantine = absl::Hours(1);

  struct Link {
    bool up = false;
    uint32_t violations = 0;  // Since the last quarantine.
    absl::Time quarantined_until = absl::InfinitePast();
    absl::Duration next_quarantine = kFirstQuarantine;
    uint64_t num_feature_messages = 0;  // That were sent, ever.
  };

  // Gives the session the verifier's own sources. `prediction` may be none.
  void AddSources(Session& session, std::unique_ptr<DraftSource> prediction);

  // Admission and preemption (admission.cc). MayAdmit: whether starting the first waiting session may
  // succeed.
  bool MayAdmit() const;
  // Appends the session to the queue, then sorts by priority within its tenant: it takes the position of the
  // first of the tenant's sessions that it precedes, and each of these moves to the position of the next.
  // Positions of other tenants do not change.
  void Enqueue(std::unique_ptr<Session> session);
  void Admit();
  void ReserveRoots();
  void Preempt(Session& session);

  void ExpireDeadlines(absl::Time now);

  // Conversations with drafters (drafting.cc).
  // Why a session stops drafting with a peer.
  struct Loss {
    absl::Status reason;
    bool for_good = false;  // It is not tried again for this session.
    bool refused = false;   // One of the two refused to draft.
  };
  static Loss Quarantined();
  void OpenDraft(Session& session, DraftRole role);
  bool MayOpen(const Session& session, const DraftPeer& peer) const;
  void CloseDraft(DraftPeer& peer);
  void SuspendDraft(Session& session);
  void RetryDrafts(absl::Time now);
  void LoseAllOn(LinkId link, const Loss& loss);
  void RecordViolation(LinkId link, absl::string_view what);
  bool LinkUsable(LinkId link) const;
  bool IsQuarantined(LinkId link) const;
  DrafterRecord* RecordOf(const DrafterBinding& binding);

  // Which drafters a session has (drafter_swap.cc).
  Session* Find(SessionId id);
  void Bind(Session& session, DrafterBinding to);
  void LoseDraft(Session& session, DraftRole role, const Loss& loss);
  void ReplaceDrafter(Session& session);
  void TakeAlternate(Session& session, bool drop_current);
  void FinishSwap(Session& session);
  void GiveUpSwap(Session& session, const absl::Status& reason);
  void SettleSwaps(absl::Time now);

  // Features for draft heads (feature_sending.cc).
  void SendOpen(const DraftPeer& peer, OpenSession open);
  absl::Status KeepFeatures(const FeatureNeeds& needs);
  void StartFeatures(Session& session, DraftRole role, const FeatureNeeds& needs);
  void KeepAccepted(const Session& session, absl::Span<const KvCopy> copies);
  void SendCommit(const Session& session, DraftPeer& peer, Commit commit);
  void SendFeatures();
  bool SendChunk(const Session& session, DraftPeer& peer);
  // The peers that read features, of a session that goes on.
  static absl::InlinedVector<DraftPeer*, kNumDraftRoles> FeatureReaders(Session& session);

  void Finish(SessionId id, const absl::Status& status);

  // Decides what is worth drafting, verifying and waiting for (round_worth.cc).
  absl::StatusOr<std::unique_ptr<WindowPolicy>> MakePolicy(const SessionRequest& request,
                                                           absl::Span<const TokenId> output) const;
  RoundCosts CostsOf(const Session& session) const;
  uint32_t NumDecoding() const;
  uint32_t MeanContext() const;
  void ChooseTrees(absl::Span<Session* const> sessions, uint32_t max_nodes, uint32_t prompt_rows);
  void DecideWaits(absl::Time now);
  bool IsHeld(absl::Time now) const;
  // `seconds`: how long the round took; nullopt if unknown.
  void CountYield(Session& session, const RoundReport& report, std::optional<double> seconds);
  void ObserveYields();
  // Whether the next step, or the one in flight, belongs to the control group.
  bool IsPlainStep() const;

  // One forward pass: its rows, and their results.
  void PlanRounds(absl::Time now);
  void ChooseRounds(absl::Time now, uint32_t max_rounds);
  void ShareConstraintSteps();
  // Prompts (prefill.cc).
  void PlanPrefill(absl::Time now);
  void PlanPrefillOf(Session& session, uint32_t max_rows, absl::Time now);
  void TellPrompt(Session& session);
  absl::Status StartEngine();
  absl::Status ConcludeRounds(absl::Time now);
  void ConcludeRound(Session& session, absl::Time now);

  const Options options_;
  std::string window_policy_;
  WindowPolicyOptions policy_options_;
  Engine* const engine_;
  BlockPool* const pool_;
  RoundTimeModel round_time_;
  const Clock* const clock_;
  SchedulerListener* const listener_;
  const std::unique_ptr<const VerificationRule> rule_;
  std::unique_ptr<SourceHost> local_drafters_;  // None: rounds without a drafter's candidates are undrafted.
  ScoreCalibration local_calibration_;          // What their scores are worth,
  ScoreCalibration forced_calibration_;         // those of what constraints force,
  ForcedSpellings forced_spellings_;            // how the target spells it,
  ScoreCalibration prediction_calibration_;     // and those of what requests predict.

  std::deque<std::unique_ptr<Session>> waiting_;  // Without keys and values yet.
  bool short_of_memory_ = false;  // No session has ended since the first of them found too little.
  // By id, which is by age: sessions are planned oldest first.
  absl::btree_map<SessionId, std::unique_ptr<Session>> running_;
  SessionId highest_session_ = 0;  // Of all that were ever submitted.
  absl::flat_hash_map<LinkId, Link> links_;
  DrafterRecords records_;
  ControlGroup control_;
  bool plain_step_ = false;                 // The step in flight is of the control group.
  std::unique_ptr<FeatureStore> features_;  // None: the engine has none, or there is no memory for them.
  bool forget_prefixes_ = false;  // Blocks of the prefix cache lack states that are kept from now on.
  SessionId feature_turn_ = 0;    // The session that got features first in the last turn.

  // The step being planned; kept to reuse its memory.
  std::vector<StepRow> rows_;
  std::vector<Session*> prefills_;  // Sessions with prompt rows in the step,
  std::vector<Session*> rounds_;    // and those with a round.
  std::vector<float> logits_;       // [rows of rounds, vocab_size]
  std::vector<KvCopy> copies_;
  FeatureStep feature_step_;
  uint32_t num_prefill_rows_ = 0;
  uint32_t num_prompt_logit_rows_ = 0;  // Of these.
  uint32_t num_preemptions_ = 0;
  uint64_t num_rounds_ = 0;  // Since the start.
  // The step between Forward and Conclude.
  bool in_flight_ = false;
  bool awaited_ = false;
  bool timed_ = false;  // Whether the pass ended when somebody waited for it, and not before.
  absl::Status forwarded_;
  absl::Time forward_start_;
  absl::Duration forward_time_;
  absl::Duration hidden_mask_time_;
  double step_wait_seconds_ = 0.0;  // The longest that one of its rounds waited.
  uint32_t step_context_ = 0;
  std::vector<std::pair<SessionId, absl::Status>> cancelled_;
};

}  // namespace tandem

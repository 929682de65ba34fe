#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/engine/sequence_kv.h"
#include "common/speculation/acceptance_estimate.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/level_acceptance.h"
#include "common/speculation/merged_tree.h"
#include "common/speculation/node_choice.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/rules/verification_rule.h"
#include "common/speculation/target_sampler.h"
#include "verifier/session/draft_mirror.h"
#include "verifier/session/feature_stream.h"
#include "verifier/session/output_assembler.h"
#include "verifier/session/round_choices.h"
#include "verifier/session/round_report.h"
#include "verifier/session/session_constraint.h"
#include "verifier/session/session_types.h"

namespace tandem {

struct DrafterRecord;
class ScoreCalibration;

// Rounds over which the exposed draft time is averaged; acceptance is estimated from as many.
inline constexpr size_t kDraftSecondsHistory = 6;
// Rounds over which the breadth of verified trees is averaged.
inline constexpr size_t kBreadthHistory = 16;

// One running generation: its committed tokens and their keys and values, the mirrored tree, the target's
// sampler and the window. The scheduler plans its rows into a batch and passes back logits:
//
//   Start -> PlanPrefill rows -> [ wait for drafts -> PrepareRound -> PlanRound -> forward -> ConcludeRound
//     ^                            -> SettleKv ]*                                                    |
//     '-------------------------------------------- Preempt --------------------------------------------'
//
// A round verifies the root (the last committed token) and the selected nodes of the tree in one forward
// pass, and then walks: take the target's choice, and descend while it is a child (law 2). A rule that
// samples drafts, if set, replaces the walk.
class Session {
 public:
  // `record`: of the request's drafter; outlives the session; nullptr without a drafter.
  Session(SessionId id, SessionRequest request, std::unique_ptr<WindowPolicy> policy,
          const WindowLimits& limits, DrafterRecord* record, BlockPool* pool, int32_t vocab_size);

  SessionId id() const { return id_; }
  const SessionRequest& request() const { return request_; }
  const SequenceKv& kv() const { return kv_; }
  const SessionSummary& summary() const { return summary_; }
  bool finished() const { return finished_; }
  // The status of a finished session. Not OK if the constraint left nothing to choose.
  const absl::Status& end_status() const { return end_status_; }
  // Ends a session with max_tokens 0 in place of its first round's conclusion: its prompt has been described.
  void EndScored() { finished_ = true; }
  // Writes the current costs of rounds to the summary.
  void SummariseCosts(const RoundCosts& costs);

  // Takes the blocks for the tokens so far, including those that the prefix cache has. ResourceExhausted, and
  // then holds nothing, if the pool cannot give them now and keep `blocks_to_spare` free.
  absl::Status Start(uint32_t blocks_to_spare);
  // Gives all blocks back; Start continues with the same tokens. Call it between steps, and not while
  // drafting.
  void Preempt();
  // Reserves the root's slot, which every round needs. False if there is no block for it.
  bool ReserveRoot() { return kv_.Reserve(static_cast<uint32_t>(kv_.tokens().size())).ok(); }

  // Prefill: adds rows for at most `max_rows` uncomputed tokens before the root to `rows`; returns how many.
  // If the prompt's log probabilities are wanted, at most `max_logit_rows` of these rows get logits;
  // prompt_rows() is their range.
  uint32_t PlanPrefill(uint32_t max_rows, uint32_t max_logit_rows, std::vector<StepRow>& rows);
  struct RowRange {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  RowRange prompt_rows() const { return prompt_rows_; }
  // After the step, before the round's commit: the new parts of the prompt. Reads and overwrites the logits
  // of prompt_rows().
  std::vector<PromptPart> DescribePrompt(absl::Span<const StepRow> rows);
  bool prefilled() const { return planned_ + 1 >= kv_.tokens().size(); }
  // Before the end of prefill: tokens before the root that are neither computed nor planned.
  uint32_t num_unplanned() const { return static_cast<uint32_t>(kv_.tokens().size()) - 1 - planned_; }
  // The number of this session's last round among all rounds of the scheduler.
  uint64_t last_served() const { return last_served_; }
  void set_last_served(uint64_t round) { last_served_ = round; }

  // Drafting. `StartDraft` returns the message that opens (or reopens) the session at the drafter.
  OpenSession StartDraft(uint64_t vocabulary_fingerprint, const RoundCosts& costs);
  // SuspendDraft is called instead of StartDraft, or to end drafting, while there is nothing to draft,
  // because every commit would cost a message on both sides. At the start WantsDrafts tells whether there is
  // something to draft; later ConcludeRound tells when.
  bool WantsDrafts(const RoundCosts& costs);
  void SuspendDraft();
  bool draft_suspended() const { return draft_suspended_; }
  void StopDraft(absl::string_view reason, bool for_good);
  // After StopDraft: the drafter has no room now. Retries after `first`, with a pause that doubles up to
  // `longest`.
  void PostponeDraft(absl::Time now, absl::Duration first, absl::Duration longest);
  // The time of the next retry; nullopt while it drafts, or if a lack of room is not the reason that it does
  // not.
  std::optional<absl::Time> draft_retry_at() const { return draft_retry_at_; }
  void RetryDraftAt(absl::Time at) { draft_retry_at_ = at; }
  void OnDraftOpened(const SessionOpened& opened);
  DraftMirror::GrowReport OnGrow(const Grow& grow, absl::Time received);
  // Counts a resync that the drafter requests; returns how many there were in a row without growth.
  uint32_t CountResync() { return ++resyncs_in_a_row_; }
  bool drafting() const { return drafting_; }
  bool draft_opened() const { return draft_opened_; }
  // Whether the drafter has drafted anything since it was opened.
  bool draft_grown() const { return draft_grown_; }
  size_t num_committed() const { return kv_.tokens().size(); }
  // The size of its opening on a link, in tokens of up to kMostTokenBytes.
  static constexpr size_t kMostTokenBytes = 5;
  size_t opening_tokens() const {
    const size_t constraint = request_.wire_constraint == nullptr ? 0 : request_.wire_constraint->size();
    return num_committed() + (constraint + kMostTokenBytes - 1) / kMostTokenBytes;
  }
  bool can_draft() const { return request_.drafter.has_value() && !draft_refused_; }
  uint32_t draft_epoch() const { return mirror_.epoch(); }
  // The session's id at drafters: its own id, with the number of rebinds in the highest byte, so that one
  // process behind two drafters can distinguish the old from the new.
  SessionId draft_id() const { return DraftId(generation_); }
  static SessionId IdOfDraft(SessionId draft_id) { return draft_id & kIdMask; }

  // Another drafter (drafter_swap.cc). Rebind, while nothing drafts: `to` may from now on.
  void Rebind(DrafterBinding to, DrafterRecord* record);
  std::vector<DrafterBinding>& alternates() { return request_.alternates; }
  // Counts a switch to an alternate; returns how many there were in a row without growth.
  uint32_t CountRebind() { return ++rebinds_in_a_row_; }
  void ForgetRebinds() { rebinds_in_a_row_ = 0; }

  // A drafter that will take over; until then it drafts at the same time as the old one.
  struct Standby {
    DrafterBinding binding;
    DrafterRecord* record = nullptr;
    DraftMirror mirror;
    SessionId draft_id = 0;
    absl::Time deadline;
    DraftBudget budget;  // As last sent.
    uint32_t resyncs = 0;
    FeatureStream features;
    bool opened = false;
    bool grown = false;  // Has sent candidates that were not stale.

    bool Ready() const { return grown || (opened && (budget.depth == 0 || mirror.exhausted())); }
  };
  Standby* standby() { return standby_.get(); }
  const Standby* standby() const { return standby_.get(); }
  // Only while drafting. Returns the message that opens the session there; ReopenStandby after a resync.
  OpenSession OpenStandby(DrafterBinding to, DrafterRecord* record, uint64_t vocabulary_fingerprint,
                          absl::Time deadline);
  OpenSession ReopenStandby(uint64_t vocabulary_fingerprint);
  void DropStandby() { standby_.reset(); }
  // Makes the standby the drafter. Sends no messages.
  void PromoteStandby();

  // A second drafter, whose tree is merged with the first one's (draft_partner.cc). Only while drafting.
  struct Partner {
    DrafterBinding binding;
    DrafterRecord* record = nullptr;
    DraftMirror mirror;
    SessionId draft_id = 0;
    FeatureStream features;
    uint32_t resyncs = 0;  // In a row, without growth in between.
    uint32_t rounds = 0;   // With its candidates, of late,
    double added = 0.0;    // and the accepted tokens that it alone had guessed in them.
  };
  Partner* partner() { return partner_.get(); }
  // Returns the message that opens the session there; ReopenPartner after a resync.
  OpenSession OpenPartner(DrafterRecord* record, uint64_t vocabulary_fingerprint);
  OpenSession ReopenPartner(uint64_t vocabulary_fingerprint);
  // Sends no messages. `for_good`: the request has no partner from now on.
  void DropPartner(bool for_good);
  // Whether the partner is worth its cost, as far as is known.
  bool partner_adds() const;
  // A drafter that may read features: the drafter itself, while it drafts, the standby and the partner
  // (feature_sending.cc).
  struct FeatureReader {
    FeatureStream* stream = nullptr;
    LinkId link = 0;
    SessionId draft_id = 0;
    uint32_t epoch = 0;
  };
  FeatureReader DrafterReader();
  FeatureReader StandbyReader();  // There is one.
  FeatureReader PartnerReader();  // There is one.
  std::vector<FeatureReader> FeatureReaders();
  FeatureStream& features() { return features_; }
  DrafterRecord* record() const { return record_; }
  bool Holds(const DrafterRecord* record) const;
  const WindowPolicy& policy() const { return *policy_; }
  // Takes effect at the next commit.
  void set_policy(std::unique_ptr<WindowPolicy> policy) { policy_ = std::move(policy); }
  // Prompt and output so far.
  absl::Span<const TokenId> tokens() const { return kv_.tokens(); }

  // Verifies by a rule that needs sampled drafts. Call it before Start; `rule` outlives the session.
  void SampleDrafts(const VerificationRule* rule) { sampling_rule_ = rule; }
  // If true, the drafter must be trusted.
  bool samples_drafts() const { return sampling_rule_ != nullptr; }

  // Lets the engine make the choices. Call it before Start. Not with sampled drafts or log probabilities,
  // which need logits.
  void ChooseInEngine() { chooses_in_engine_ = true; }
  bool chooses_in_engine() const { return chooses_in_engine_; }

  // Sets a source that guesses without a drafter. If the policy weighs candidates by their worth, it guesses
  // in addition to the drafter, otherwise only if the drafter has sent nothing. Call it before Start.
  // `calibration`: of its scores, over all sessions; `clock` times its guesses. Both outlive the session.
  void SetLocalDrafter(std::unique_ptr<DraftSource> source, ScoreCalibration* calibration,
                       const Clock* clock) {
    local_drafter_ = std::move(source);
    local_calibration_ = calibration;
    local_clock_ = clock;
  }
  // Also drafts the forced tokens of the constraint. Call it before Start.
  void DraftForced(ScoreCalibration* calibration, const Clock* clock) {
    forced_calibration_ = calibration;
    local_clock_ = clock;
  }
  // Also drafts the request's prediction. Call it before Start.
  void DraftPredicted(ScoreCalibration* calibration, const Clock* clock) {
    prediction_calibration_ = calibration;
    local_clock_ = clock;
  }
  // The local proposals for the next round, which cost no waiting: the number of nodes that are likely enough
  // for a row, and how many of them are expected to be accepted. Each local source is asked once per round.
  struct LocalGuess {
    uint32_t nodes = 0;
    double expected_accepted = 0.0;
  };
  LocalGuess GuessLocally();

  // Between rounds: whether there is no candidate for the next round, but the drafter may send some. Then use
  // WaitFor to set how long the round waits if no other session has work, and how long the others' step is
  // held for it (at most as long), for a tree of `depth` levels or as many nodes as the budget has.
  bool LacksDrafts() const;
  void WaitFor(absl::Time now, absl::Duration alone, absl::Duration held, uint32_t depth);
  // Whether the next round can start now; and until when it waits for the drafter.
  bool ReadyForRound(absl::Time now) const;
  absl::Time wait_until() const { return wait_until_; }
  // Until when the others wait as well; the past if they do not.
  absl::Time hold_until(absl::Time now) const {
    return ReadyForRound(now) ? absl::InfinitePast() : hold_until_;
  }
  // Expected accepted tokens of the next round if its tree has `depth` levels, and the probability that the
  // first level is right.
  double ExpectedAccepted(uint32_t depth) const;
  double FirstLevelAcceptance() const;
  const DraftBudget& budget() const { return budget_; }

  // Selects the nodes to verify in the next round: the best by calibrated path score, at most `max_nodes`.
  // KeepNodes reduces them to those at `indices` (increasing; with a node its parent).
  void PrepareRound(uint32_t max_nodes);
  absl::Span<const TreeNode> selected() const { return selected_; }
  ChoiceSession Choice() const;
  void KeepNodes(absl::Span<const uint32_t> indices);
  // Adds the rows of the root and of the nodes that PrepareRound selected: rows[first_row()],
  // rows[first_row() + 1], ..., num_rows() in all. They have choices, or the caller sets where their logits
  // go.
  void PlanRound(absl::Time now, std::vector<StepRow>& rows);
  uint32_t first_row() const { return first_row_; }
  uint32_t num_rows() const { return 1 + static_cast<uint32_t>(selected_.size()); }
  // The accepted nodes of the last concluded round, from the root's child down. Node i is rows[first_row() +
  // 1 + i].
  absl::Span<const uint32_t> accepted() const { return accepted_; }
  // Tokens that are computed, or planned in the next step.
  uint32_t num_planned() const { return planned_; }

  struct RoundResult {
    CommittedTokens committed;
    RoundReport report;
    std::optional<Commit> commit;          // For the drafter, when it is drafting,
    std::optional<Commit> standby_commit;  // for the one that is to take over,
    std::optional<Commit> partner_commit;  // and for the one that drafts along.
    bool suspend_draft = false;            // No commit: nothing has been drafted for a while.
    bool resume_draft = false;             // There is something to draft again.
  };
  // Walks the tree with the rows' logits or choices, commits, and chooses the next window. Adds to `copies`
  // the copies that the engine must make before the next step.
  RoundResult ConcludeRound(absl::Time now, absl::Span<const StepRow> rows, const RoundCosts& costs,
                            std::vector<KvCopy>* copies);
  // The tree that the last concluded round verified, and which nodes were accepted.
  std::vector<TracedNode> TraceTree() const;
  // The candidates of that round that the constraint forbade, if their parent was verified.
  std::vector<TracedNode> TraceMasked() const;
  // The growth that the drafter sent since the last call; empty unless the request asks for traces.
  std::vector<GrowthTrace> TakeGrowthTrace() { return std::exchange(growth_trace_, {}); }
  // The time of this round, including waiting: since the previous call, which must have been after the
  // previous round; otherwise nullopt.
  std::optional<double> TakeRoundSeconds(absl::Time now, uint32_t committed);
  // How long the round in flight waited for drafts.
  double round_wait_seconds() const { return round_wait_seconds_; }
  // Whether drafting was expected to pay when the window of the last concluded round was chosen.
  bool round_was_drafted() const { return round_drafts_pay_; }
  // The same for drafting far ahead.
  bool round_was_ahead() const { return round_ahead_pays_; }
  // After the step and the round's copies: releases the tree's slots and the blocks without committed tokens,
  // and publishes computed blocks to the prefix cache.
  void SettleKv();

  // The paper's a_q as verification sees it: exposed draft time per level, over the last rounds.
  double draft_seconds_per_level() const { return draft_seconds_per_level_.value(); }
  // Verified nodes per level, over the last drafted rounds; 0 before the first.
  double verified_per_level() const { return verified_per_level_.value(); }
  const WindowLimits& limits() const { return limits_; }

 private:
  static constexpr int kGenerationShift = 56;
  static constexpr SessionId kIdMask = (SessionId{1} << kGenerationShift) - 1;

  // The least probability at which a local candidate, with all nodes above it, is used: where it replaces a
  // drafter, and where it competes with one and the selection over the batch decides which nodes are worth a
  // row.
  static constexpr float kLeastLocalScore = 0.3f;
  static constexpr float kLeastMergedScore = 0.05f;

  SessionId DraftId(uint32_t generation) const {
    return id_ | SessionId{generation & 0xff} << kGenerationShift;
  }
  OpenSession MakeOpen(uint32_t epoch, const std::string& draft_model, uint64_t vocabulary_fingerprint,
                       const DraftBudget& budget) const;
  Commit MakeCommit(DraftMirror& mirror, const TokenIds& tokens) const;
  void ResetDrafterState();
  uint32_t OutputLength() const;
  bool wants_prompt_logits() const {
    return request_.num_prompt_logprobs >= 0 && num_described_ < request_.prompt.size();
  }
  // Among rows for the tokens from planned_ to `end`, of which the first has index `first_row`, selects those
  // that give logits. Returns where the rows must end so that at most `most` do.
  uint32_t PlanPromptLogits(uint32_t first_row, uint32_t most, uint32_t end);
  std::vector<TreeNode> SelectDrafted(const DraftMirror& mirror, DrafterRecord& record,
                                      uint32_t max_nodes) const;
  void ObservePartner(const OriginOutcome& guessed);
  const std::vector<ProposedNode>& LocalProposal();
  const std::vector<ProposedNode>& ForcedProposal();
  const std::vector<ProposedNode>& PredictedProposal();
  ProposalLimits OwnLimits() const;
  void CountGuess(DraftOrigin origin, absl::Time start);
  // Gives the local source the next tokens that it has not seen. Their number is bounded, because indexing a
  // whole long prompt at once (0.4 us per token) would delay every session's next step.
  void ReadLocally();
  std::vector<TreeNode> LikelyNodes(absl::Span<const ProposedNode> proposal, ScoreCalibration* calibration,
                                    float least_path_score) const;
  std::vector<TreeNode> LocalNodes(float least_path_score);
  std::vector<TreeNode> ForcedNodes(float least_path_score);
  std::vector<TreeNode> PredictedNodes(float least_path_score);
  // All of the above.
  void AddOwnNodes(float least_path_score, MergedTree* tree);
  void DropForbidden(DraftOrigin origin, std::vector<TreeNode>* drafted);
  // Removes nodes that the sampler bans at their position, with all nodes below, and returns how many.
  uint32_t DropBanned(std::vector<TreeNode>* nodes) const;
  bool MergesOrigins() const;
  std::array<OriginOutcome, kNumDraftOrigins> OutcomesOfRound() const;
  void CountRound(const RoundReport& report, const std::array<OriginOutcome, kNumDraftOrigins>& outcomes);
  OriginSummary& SummaryOf(DraftOrigin origin, const std::string& drafter);
  uint32_t DepthWanted(const RoundCosts& costs);
  void GiveSlots();
  void MaskAhead();
  // Appends the target's choice to the output. An error if the constraint forbids `token`; then it allowed no
  // token.
  // `before`: those that the round has committed so far.
  absl::Status TakeChoice(TokenId token, absl::Span<const CommittedToken> before);
  void Walk(absl::Span<const StepRow> rows, RoundResult& result, std::vector<KvCopy>* copies);
  std::optional<DraftSupply> SupplyOfRound() const;
  void FillShares(RoundReport& report, const std::array<OriginOutcome, kNumDraftOrigins>& outcomes) const;
  void ObserveRound(RoundReport& report, const TokenIds& committed,
                    const std::array<OriginOutcome, kNumDraftOrigins>& outcomes);
  void ObserveScores(DraftOrigin origin, ScoreCalibration* calibration, std::vector<JudgedNode>* judged);
  void ExpectGrowth(absl::Time now);

  const SessionId id_;
  SessionRequest request_;
  const WindowLimits limits_;
  std::unique_ptr<WindowPolicy> policy_;
  DrafterRecord* record_;
  DrafterRecord* round_record_ = nullptr;  // Of the drafter of the nodes being verified.
  const int32_t vocab_size_;
  const AdapterId adapter_;
  TargetSampler sampler_;
  SequenceKv kv_;
  uint32_t planned_ = 0;  // Tokens that are computed or planned in the coming step.
  uint64_t last_served_ = 0;
  uint32_t num_banned_ = 0;  // Candidates that the sampler bans, of all rounds.
  bool finished_ = false;
  absl::Status end_status_;
  SessionSummary summary_;

  DraftMirror mirror_;
  FeatureStream features_;
  uint32_t generation_ = 0;       // How often another drafter was bound,
  uint32_t last_generation_ = 0;  // the standby included, and those that never took over.
  uint32_t rebinds_in_a_row_ = 0;
  std::unique_ptr<Standby> standby_;  // Only while drafting.
  std::unique_ptr<Partner> partner_;  // Only while drafting.
  DrafterRecord* round_partner_record_ = nullptr;
  LevelAcceptance acceptance_;
  bool drafting_ = false;         // Open was sent and nothing ended it.
  uint32_t waits_in_vain_ = 0;    // Rounds in a row that waited for growth and got none.
  bool draft_opened_ = false;     // The drafter answered,
  bool draft_grown_ = false;      // and has drafted.
  bool draft_refused_ = false;    // For good.
  bool draft_suspended_ = false;  // For as long as there is nothing to draft.
  uint32_t rounds_without_budget_ = 0;
  std::optional<absl::Time> draft_retry_at_;
  absl::Duration draft_retry_delay_;  // The last one; zero once nodes came.
  uint32_t resyncs_in_a_row_ = 0;
  uint32_t commit_no_ = 0;
  uint64_t prefix_hash_;
  DraftBudget budget_;
  std::vector<GrowthTrace> growth_trace_;
  RecentMean draft_seconds_per_level_;
  RecentMean verified_per_level_;
  absl::Time wait_since_ = absl::InfinitePast();
  absl::Time wait_until_ = absl::InfinitePast();
  absl::Time hold_until_ = absl::InfinitePast();
  uint32_t awaited_depth_ = 0;
  // Commits that left no tree, and when they were sent. The growth that answers them shows how long drafting
  // takes.
  std::deque<std::pair<uint32_t, absl::Time>> awaited_commits_;
  std::optional<absl::Time> last_round_;
  // Whether drafting was expected to pay when this round's window was chosen, and the next one's.
  bool round_drafts_pay_ = true;
  bool drafts_pay_ = true;
  bool round_ahead_pays_ = true;
  bool ahead_pays_ = true;

  // If the prompt's log probabilities are wanted: the rows of the next step that give some, the number of
  // tokens described, and those that were not reported yet.
  RowRange prompt_rows_;
  uint32_t num_described_ = 0;
  PromptPart prompt_part_;

  std::unique_ptr<DraftSource> local_drafter_;  // May be none.
  size_t num_read_locally_ = 0;                 // Tokens that it has been given.
  ScoreCalibration* local_calibration_ = nullptr;
  const Clock* local_clock_ = nullptr;
  std::optional<std::vector<ProposedNode>> local_proposal_;  // For the next round.
  ScoreCalibration* forced_calibration_ = nullptr;           // None: forced tokens are not drafted.
  std::optional<std::vector<ProposedNode>> forced_proposal_;
  ScoreCalibration* prediction_calibration_ = nullptr;  // None: predictions are not drafted.
  std::optional<std::vector<ProposedNode>> predicted_proposal_;
  std::array<double, kNumDraftOrigins> guess_seconds_ = {};  // That these took.
  const VerificationRule* sampling_rule_ = nullptr;          // None: the seeded rule.
  bool chooses_in_engine_ = false;

  // The round in flight.
  RoundDrafters round_drafters_;
  bool drafts_wanted_ = false;   // The window had room,
  bool drafts_offered_ = false;  // and the drafter's candidates were there.
  uint32_t first_row_ = 0;
  std::vector<TreeNode> selected_;
  std::vector<Guesses> guesses_;                               // Of each selected node.
  std::array<uint32_t, kNumDraftOrigins> offered_ = {};        // Nodes credited to each, before KeepNodes.
  uint32_t num_masked_ = 0;                                    // Candidates that may not come.
  std::vector<std::pair<DraftOrigin, ForbiddenNode>> masked_;  // Where trees are traced.
  std::vector<DrawGroup> draws_;  // As of when it was planned: the mirror may have been opened again since.
  std::vector<SlotId> slots_;     // Of each selected node.
  std::vector<SlotId> tails_;     // Their contexts beyond the committed prefix, one after the other.
  std::vector<uint32_t> tail_ends_;
  RoundChoices choices_;  // With chooses_in_engine_.
  double round_wait_seconds_ = 0.0;
  bool round_waited_ = false;
  std::vector<uint32_t> accepted_;  // Places in selected_ of the accepted nodes, from the root's child down.
  // Whether the target's choice at the walk's end is known. It is not if the output ended with an accepted
  // node.
  bool walked_to_the_end_ = false;
};

}  // namespace tandem

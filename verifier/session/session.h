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

// Rounds over which the exposed draft time is averaged, as many as acceptance is estimated from.
inline constexpr size_t kDraftSecondsHistory = 6;
// And over which the breadth of what is verified is averaged.
inline constexpr size_t kBreadthHistory = 16;

// One running generation: its committed tokens and their keys and values, the mirrored tree, the target's
// sampler and the window. The scheduler plans its rows into a batch and hands back logits:
//
//   Start -> PlanPrefill rows -> [ wait for drafts -> PrepareRound -> PlanRound -> forward -> ConcludeRound
//     ^                            -> SettleKv ]*                                                    |
//     '-------------------------------------------- Preempt --------------------------------------------'
//
// A round verifies the root (the last committed token) and the chosen nodes of the tree in one forward pass,
// then walks: take the target's choice, descend while it is a child (law 2). A rule that samples drafts takes
// the place of the walk where it is set.
class Session {
 public:
  // `record` is that of the request's drafter, and outlives the session; nullptr if there is none.
  Session(SessionId id, SessionRequest request, std::unique_ptr<WindowPolicy> policy,
          const WindowLimits& limits, DrafterRecord* record, BlockPool* pool, int32_t vocab_size);

  SessionId id() const { return id_; }
  const SessionRequest& request() const { return request_; }
  const SequenceKv& kv() const { return kv_; }
  const SessionSummary& summary() const { return summary_; }
  bool finished() const { return finished_; }
  // Of a session that is finished: what it ends with. Not OK when the constraint left nothing to choose.
  const absl::Status& end_status() const { return end_status_; }
  // Writes what rounds cost now to the summary.
  void SummariseCosts(const RoundCosts& costs);

  // Takes the blocks that the tokens up to now need, and what the prefix cache has of them.
  // ResourceExhausted, holding nothing, if the pool cannot give them now and have `blocks_to_spare` left.
  absl::Status Start(uint32_t blocks_to_spare);
  // Gives every block back; Start goes on from the same tokens. Between steps, and not while drafting.
  void Preempt();
  // Whether the root has a block, or could be given one: what a round cannot do without.
  bool ReserveRoot() { return kv_.Reserve(static_cast<uint32_t>(kv_.tokens().size())).ok(); }

  // Prefill: rows for at most `max_rows` uncomputed tokens before the root are added to `rows`; returns how
  // many. Of a prompt whose log probabilities are wanted at most `max_logit_rows` are to have logits, and
  // stand in prompt_rows() of these.
  uint32_t PlanPrefill(uint32_t max_rows, uint32_t max_logit_rows, std::vector<StepRow>& rows);
  struct RowRange {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  RowRange prompt_rows() const { return prompt_rows_; }
  // After the step, before what the round commits: what there is to tell of the prompt. Reads and overwrites
  // the logits of prompt_rows().
  std::vector<PromptPart> DescribePrompt(absl::Span<const StepRow> rows);
  bool prefilled() const { return planned_ + 1 >= kv_.tokens().size(); }
  // Before it is prefilled: tokens in front of the root that are neither computed nor planned.
  uint32_t num_unplanned() const { return static_cast<uint32_t>(kv_.tokens().size()) - 1 - planned_; }
  // The number of this session's last round among all rounds of the scheduler.
  uint64_t last_served() const { return last_served_; }
  void set_last_served(uint64_t round) { last_served_ = round; }

  // Drafting. `StartDraft` returns the message that opens (or reopens) the session at the drafter.
  OpenSession StartDraft(uint64_t vocabulary_fingerprint, const RoundCosts& costs);
  // Instead of StartDraft, or to end it, while there is nothing to draft: every commit would cost a message
  // on both sides. Whether that is so at the start; then ConcludeRound tells when to start.
  bool WantsDrafts(const RoundCosts& costs);
  void SuspendDraft();
  bool draft_suspended() const { return draft_suspended_; }
  void StopDraft(absl::string_view reason, bool for_good);
  // After StopDraft: the drafter has no room now. It is asked again after `first`, and if that is in vain,
  // after twice as long each time, up to `longest`.
  void PostponeDraft(absl::Time now, absl::Duration first, absl::Duration longest);
  // When to ask again; nothing while it drafts, or when it is not for a lack of room that it does not.
  std::optional<absl::Time> draft_retry_at() const { return draft_retry_at_; }
  void RetryDraftAt(absl::Time at) { draft_retry_at_ = at; }
  void OnDraftOpened(const SessionOpened& opened);
  DraftMirror::GrowReport OnGrow(const Grow& grow, absl::Time received);
  // The drafter asks to be opened again: how many times in a row, without growth in between.
  uint32_t CountResync() { return ++resyncs_in_a_row_; }
  bool drafting() const { return drafting_; }
  bool draft_opened() const { return draft_opened_; }
  // Whether it has drafted anything since it was opened.
  bool draft_grown() const { return draft_grown_; }
  size_t num_committed() const { return kv_.tokens().size(); }
  // What its opening takes of a link, in tokens of up to kMostTokenBytes.
  static constexpr size_t kMostTokenBytes = 5;
  size_t opening_tokens() const {
    const size_t constraint = request_.wire_constraint == nullptr ? 0 : request_.wire_constraint->size();
    return num_committed() + (constraint + kMostTokenBytes - 1) / kMostTokenBytes;
  }
  bool can_draft() const { return request_.drafter.has_value() && !draft_refused_; }
  uint32_t draft_epoch() const { return mirror_.epoch(); }
  // What drafters know the session by: its id, and in the highest byte how often it was bound to another
  // drafter, so that two that are one process tell old and new apart.
  SessionId draft_id() const { return DraftId(generation_); }
  static SessionId IdOfDraft(SessionId draft_id) { return draft_id & kIdMask; }

  // Another drafter (drafter_swap.cc). Rebind, while nothing drafts: `to` may from now on.
  void Rebind(DrafterBinding to, DrafterRecord* record);
  std::vector<DrafterBinding>& alternates() { return request_.alternates; }
  // How often in a row, without growth in between, it went over to an alternate.
  uint32_t CountRebind() { return ++rebinds_in_a_row_; }
  void ForgetRebinds() { rebinds_in_a_row_ = 0; }

  // A drafter that is to take over, and drafts along until it has something to offer.
  struct Standby {
    DrafterBinding binding;
    DrafterRecord* record = nullptr;
    DraftMirror mirror;
    SessionId draft_id = 0;
    absl::Time deadline;
    DraftBudget budget;  // As it was last told.
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
  // The standby is the drafter from now on; nobody is told here.
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
  // Nobody is told here. `for_good`: the request has none from now on.
  void DropPartner(bool for_good);
  // Whether it is worth its trouble, as far as that is known.
  bool partner_adds() const;
  // Those that may read features: the drafter, while it drafts, and those beside it (feature_sending.cc).
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
  // From the next commit on.
  void set_policy(std::unique_ptr<WindowPolicy> policy) { policy_ = std::move(policy); }
  // Prompt and output so far.
  absl::Span<const TokenId> tokens() const { return kv_.tokens(); }

  // Verifies by a rule that needs drafts to be drawn from distributions that are told. Before Start; `rule`
  // outlives the session.
  void SampleDrafts(const VerificationRule* rule) { sampling_rule_ = rule; }
  // Its drafter must be trusted then.
  bool samples_drafts() const { return sampling_rule_ != nullptr; }

  // Lets its rounds ask the engine for the choices. Before Start; not with a rule that samples drafts, nor
  // for log probabilities, all of which need logits.
  void ChooseInEngine() { chooses_in_engine_ = true; }
  bool chooses_in_engine() const { return chooses_in_engine_; }

  // A source that guesses without a drafter: beside one where the policy weighs candidates by their worth,
  // else where the drafter has sent none. Before Start. `calibration` is what its scores have been worth to
  // all sessions; `clock` times its guesses. Both outlive this session.
  void SetLocalDrafter(std::unique_ptr<DraftSource> source, ScoreCalibration* calibration,
                       const Clock* clock) {
    local_drafter_ = std::move(source);
    local_calibration_ = calibration;
    local_clock_ = clock;
  }
  // Lets it draft what its constraint leaves no choice about, in the same rounds. Before Start.
  void DraftForced(ScoreCalibration* calibration, const Clock* clock) {
    forced_calibration_ = calibration;
    local_clock_ = clock;
  }
  // And what its request predicts. Before Start.
  void DraftPredicted(ScoreCalibration* calibration, const Clock* clock) {
    prediction_calibration_ = calibration;
    local_clock_ = clock;
  }
  // What these propose for the next round, at no wait: nodes that are likely enough for a row, and how many
  // of them are expected to be accepted. Each is asked once for every round.
  struct LocalGuess {
    uint32_t nodes = 0;
    double expected_accepted = 0.0;
  };
  LocalGuess GuessLocally();

  // Between rounds: whether there is no candidate for the next one, but the drafter may send some. Then
  // WaitFor says how long the round waits if nobody else has anything to do, and how long the others' step is
  // held for it (no longer); for a tree of `depth` levels, or as many nodes as the budget has.
  bool LacksDrafts() const;
  void WaitFor(absl::Time now, absl::Duration alone, absl::Duration held, uint32_t depth);
  // Whether the next round can start now, and if not, until when it waits for the drafter.
  bool ReadyForRound(absl::Time now) const;
  absl::Time wait_until() const { return wait_until_; }
  // Until when the others wait as well; the past when they do not.
  absl::Time hold_until(absl::Time now) const {
    return ReadyForRound(now) ? absl::InfinitePast() : hold_until_;
  }
  // Expected accepted tokens of the next round if its tree has `depth` levels, and the probability that the
  // first level is right.
  double ExpectedAccepted(uint32_t depth) const;
  double FirstLevelAcceptance() const;
  const DraftBudget& budget() const { return budget_; }

  // Chooses what to verify in the coming round: the best nodes by calibrated path score, at most `max_nodes`.
  // KeepNodes reduces them to those at `indices` (increasing, parents with their children).
  void PrepareRound(uint32_t max_nodes);
  absl::Span<const TreeNode> selected() const { return selected_; }
  ChoiceSession Choice() const;
  void KeepNodes(absl::Span<const uint32_t> indices);
  // Adds the rows of the root and of the nodes that PrepareRound chose, without their logits' places or with
  // their choices: those are rows[first_row()], rows[first_row() + 1], ... num_rows() in all.
  void PlanRound(absl::Time now, std::vector<StepRow>& rows);
  uint32_t first_row() const { return first_row_; }
  uint32_t num_rows() const { return 1 + static_cast<uint32_t>(selected_.size()); }
  // Of the round that was concluded last: which of its nodes were accepted, from the root's child down. Node
  // i is rows[first_row() + 1 + i].
  absl::Span<const uint32_t> accepted() const { return accepted_; }
  // Tokens that are computed, or planned in the coming step.
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
  // Walks the tree over the rows' logits or choices, commits, and chooses the next window. Adds to `copies`
  // what has to be copied before the next step.
  RoundResult ConcludeRound(absl::Time now, absl::Span<const StepRow> rows, const RoundCosts& costs,
                            std::vector<KvCopy>* copies);
  // The tree that the last concluded round verified, with what was accepted of it.
  std::vector<TracedNode> TraceTree() const;
  // What the constraint forbade of that round's candidates, as far as its parent was verified.
  std::vector<TracedNode> TraceMasked() const;
  // What the drafter sent since the last call; empty unless the request asks for traces.
  std::vector<GrowthTrace> TakeGrowthTrace() { return std::exchange(growth_trace_, {}); }
  // Seconds since the round before was concluded, if this has been asked after it as well: what this round
  // took, waiting included.
  std::optional<double> TakeRoundSeconds(absl::Time now, uint32_t committed);
  // How long the round in flight waited for drafts.
  double round_wait_seconds() const { return round_wait_seconds_; }
  // Whether the window of the round that was just concluded was chosen while its drafter was thought to pay.
  bool round_was_drafted() const { return round_drafts_pay_; }
  // Likewise, drafting far ahead.
  bool round_was_ahead() const { return round_ahead_pays_; }
  // After the step, and the round's copies if there was one: releases the tree's slots and the blocks that
  // nothing was committed to, and publishes what was computed to the prefix cache.
  void SettleKv();

  // a_q of the paper as verification sees it: draft time per level that was waited for, over the last rounds.
  double draft_seconds_per_level() const { return draft_seconds_per_level_.value(); }
  // Nodes that the last drafted rounds verified, for each level; 0 before the first.
  double verified_per_level() const { return verified_per_level_.value(); }
  const WindowLimits& limits() const { return limits_; }

 private:
  static constexpr int kGenerationShift = 56;
  static constexpr SessionId kIdMask = (SessionId{1} << kGenerationShift) - 1;

  // As likely as this a local candidate must be to be right, all nodes above it included: where it stands in
  // for a drafter, and where it competes with one and the choice over the batch says what is worth a row.
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
  // Of rows for the tokens from planned_ to `end`, the first of them at place `first_row`, chooses those that
  // give logits; returns where the rows have to end so that there are at most `most`.
  uint32_t PlanPromptLogits(uint32_t first_row, uint32_t most, uint32_t end);
  std::vector<TreeNode> SelectDrafted(const DraftMirror& mirror, DrafterRecord& record,
                                      uint32_t max_nodes) const;
  void ObservePartner(const OriginOutcome& guessed);
  const std::vector<ProposedNode>& LocalProposal();
  const std::vector<ProposedNode>& ForcedProposal();
  const std::vector<ProposedNode>& PredictedProposal();
  ProposalLimits OwnLimits() const;
  void CountGuess(DraftOrigin origin, absl::Time start);
  // Gives the local source the next tokens that it has not seen, a bounded number: to index the whole of a
  // long prompt at once (0.4 us a token) would keep every session's next step waiting.
  void ReadLocally();
  std::vector<TreeNode> LikelyNodes(absl::Span<const ProposedNode> proposal, ScoreCalibration* calibration,
                                    float least_path_score) const;
  std::vector<TreeNode> LocalNodes(float least_path_score);
  std::vector<TreeNode> ForcedNodes(float least_path_score);
  std::vector<TreeNode> PredictedNodes(float least_path_score);
  // All of the above.
  void AddOwnNodes(float least_path_score, MergedTree* tree);
  void DropForbidden(DraftOrigin origin, std::vector<TreeNode>* drafted);
  // Takes out what the sampler bans at its place, with all below it, and returns how many.
  uint32_t DropBanned(std::vector<TreeNode>* nodes) const;
  bool MergesOrigins() const;
  std::array<OriginOutcome, kNumDraftOrigins> OutcomesOfRound() const;
  void CountRound(const RoundReport& report, const std::array<OriginOutcome, kNumDraftOrigins>& outcomes);
  OriginSummary& SummaryOf(DraftOrigin origin, const std::string& drafter);
  uint32_t DepthWanted(const RoundCosts& costs);
  void GiveSlots();
  // The output goes on with `token`, unless that may not come: then no token had a chance.
  absl::Status TakeChoice(TokenId token, uint32_t position);
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
  DrafterRecord* round_record_ = nullptr;  // Of the drafter that drafted what is being verified.
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
  // Commits that left no tree, and when they were sent: what growth after them tells how long it takes.
  std::deque<std::pair<uint32_t, absl::Time>> awaited_commits_;
  std::optional<absl::Time> last_round_;
  // Whether the drafter was thought to pay when this round's window was chosen, and the next one's.
  bool round_drafts_pay_ = true;
  bool drafts_pay_ = true;
  bool round_ahead_pays_ = true;
  bool ahead_pays_ = true;

  // Where the prompt's log probabilities are wanted: rows of the coming step that give some, how many tokens
  // are described, and those of them that have not been told.
  RowRange prompt_rows_;
  uint32_t num_described_ = 0;
  PromptPart prompt_part_;

  std::unique_ptr<DraftSource> local_drafter_;  // May be none.
  size_t num_read_locally_ = 0;                 // Tokens that it has been given.
  ScoreCalibration* local_calibration_ = nullptr;
  const Clock* local_clock_ = nullptr;
  std::optional<std::vector<ProposedNode>> local_proposal_;  // For the next round.
  ScoreCalibration* forced_calibration_ = nullptr;           // None: what is forced is not drafted.
  std::optional<std::vector<ProposedNode>> forced_proposal_;
  ScoreCalibration* prediction_calibration_ = nullptr;  // None: what is predicted is not drafted.
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
  // Whether the target's choice is known at the walk's end: not when the output ended with an accepted node.
  bool walked_to_the_end_ = false;
};

}  // namespace tandem

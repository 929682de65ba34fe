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
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/engine/sequence_kv.h"
#include "common/speculation/acceptance_estimate.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/merged_tree.h"
#include "common/speculation/node_choice.h"
#include "common/speculation/policies/window_policy.h"
#include "common/speculation/round_tree.h"
#include "common/speculation/rules/verification_rule.h"
#include "common/speculation/target_sampler.h"
#include "verifier/session/draft_peer.h"
#include "verifier/session/output_assembler.h"
#include "verifier/session/own_source.h"
#include "verifier/session/round_choices.h"
#include "verifier/session/round_report.h"
#include "verifier/session/session_constraint.h"
#include "verifier/session/session_types.h"

namespace tandem {

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
  // The drafter and the partner of the request are bound by Bind.
  Session(SessionId id, SessionRequest request, std::unique_ptr<WindowPolicy> policy,
          const WindowLimits& limits, BlockPool* pool, int32_t vocab_size);

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

  // Drafters. A drafter is bound in a role until it is dropped or another takes the role, whether the session
  // is open there or not. Bind as the drafter takes the place of the one before, which must not be drafting.
  void Bind(DraftRole role, DrafterBinding to, DrafterRecord* record, absl::Time now);
  void Drop(DraftRole role) { peer_ptr(role).reset(); }
  // The peer in the role `from` becomes the drafter. Sends no messages.
  void Promote(DraftRole from);
  // nullptr: none is bound.
  DraftPeer* peer(DraftRole role) { return peer_ptr(role).get(); }
  const DraftPeer* peer(DraftRole role) const { return peers_[static_cast<size_t>(role)].get(); }
  // The peer in the role if the session is open there, otherwise nullptr.
  DraftPeer* open_peer(DraftRole role) { return IsOpen(role) ? peer(role) : nullptr; }
  const DraftPeer* open_peer(DraftRole role) const { return IsOpen(role) ? peer(role) : nullptr; }
  // The role of the peer with the draft id; nullopt for one that the session is no longer bound to.
  std::optional<DraftRole> RoleOf(SessionId draft_id) const;
  bool Holds(const DrafterRecord* record) const;
  // The session that a draft id belongs to. A draft id is the session's id, with the number of the peer in
  // the highest byte, so that one process behind two drafters can distinguish the two.
  static SessionId IdOfDraft(SessionId draft_id) { return draft_id & kIdMask; }
  // Drafters to take in the place of one that is lost.
  std::vector<DrafterBinding>& alternates() { return request_.alternates; }
  // Counts a switch to an alternate; returns how many there were in a row without growth.
  uint32_t CountRebind() { return ++rebinds_in_a_row_; }
  void ForgetRebinds() { rebinds_in_a_row_ = 0; }

  // Drafting: whether the drafter drafts.
  bool drafting() const { return IsOpen(DraftRole::kDrafter); }
  // Whether there is something to draft. Asked before the drafter is opened, because otherwise every commit
  // would cost a message on both sides; later ConcludeRound tells.
  bool WantsDrafts(const RoundCosts& costs);
  // Returns the message that opens, or reopens, the session at the peer.
  OpenSession OpenAt(DraftRole role, uint64_t vocabulary_fingerprint, const RoundCosts& costs);
  DraftPeer::Outcome OnDraftResponse(DraftRole role, const DraftResponse& response, absl::Time received);
  // The drafter does not draft any more; it has been closed.
  void LoseDrafter(absl::string_view reason);
  // The size of its opening on a link, in tokens of up to kMostTokenBytes.
  static constexpr size_t kMostTokenBytes = 5;
  size_t opening_tokens() const {
    const size_t constraint = request_.wire_constraint == nullptr ? 0 : request_.wire_constraint->size();
    return kv_.tokens().size() + (constraint + kMostTokenBytes - 1) / kMostTokenBytes;
  }

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

  // Adds one of the verifier's own sources, in the order of their origins. If the policy weighs candidates by
  // their worth, they guess in addition to the drafter, otherwise only if it has sent nothing. Call it before
  // Start.
  void AddSource(OwnSource source) { own_sources_.push_back(std::move(source)); }
  // The local proposals for the next round, which cost no waiting: the number of nodes that are likely enough
  // for a row, and how many of them are expected to be accepted.
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
  absl::Time wait_until() const { return wait_.until; }
  // Until when the others wait as well; the past if they do not.
  absl::Time hold_until(absl::Time now) const {
    return ReadyForRound(now) ? absl::InfinitePast() : wait_.hold_until;
  }

  // Selects the nodes to verify in the next round: the best by calibrated path score, at most `max_nodes`.
  // KeepNodes reduces them to those at `indices` (increasing; with a node its parent).
  void PrepareRound(uint32_t max_nodes);
  const RoundTree& tree() const { return tree_; }
  // Valid until the tree changes.
  ChoiceSession Choice() const;
  void KeepNodes(absl::Span<const uint32_t> indices) { tree_.Keep(indices); }
  // Adds the rows of the root and of the nodes that PrepareRound selected: rows[first_row()],
  // rows[first_row() + 1], ..., num_rows() in all. They have choices, or the caller sets where their logits
  // go.
  void PlanRound(absl::Time now, std::vector<StepRow>& rows);
  uint32_t first_row() const { return first_row_; }
  uint32_t num_rows() const { return 1 + tree_.size(); }
  // The accepted nodes of the last concluded round, from the root's child down. Node i is rows[first_row() +
  // 1 + i].
  absl::Span<const uint32_t> accepted() const { return accepted_; }
  // Tokens that are computed, or planned in the next step.
  uint32_t num_planned() const { return planned_; }

  struct RoundResult {
    CommittedTokens committed;
    RoundReport report;
    std::array<std::optional<Commit>, kNumDraftRoles> commits;  // By DraftRole, for open peers.
    bool suspend_draft = false;  // There are no commits: nothing has been drafted for a while.
    bool resume_draft = false;   // There is something to draft again.
  };
  // Walks the tree with the rows' logits or choices, commits, and chooses the next window. Adds to `copies`
  // the copies that the engine must make before the next step.
  RoundResult ConcludeRound(absl::Time now, absl::Span<const StepRow> rows, const RoundCosts& costs,
                            std::vector<KvCopy>* copies);
  // The candidates of the last concluded round that the constraint forbade, below nodes of its tree.
  std::vector<RoundNode> TraceMasked() const;
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

  // Verified nodes per level, over the last drafted rounds; 0 before the first.
  double verified_per_level() const { return verified_per_level_.value(); }
  const WindowLimits& limits() const { return limits_; }

 private:
  static constexpr int kPeerShift = 56;
  static constexpr SessionId kIdMask = (SessionId{1} << kPeerShift) - 1;

  // The least probability at which a local candidate, with all nodes above it, is used: where it replaces a
  // drafter, and where it competes with one and the selection over the batch decides which nodes are worth a
  // row.
  static constexpr float kLeastLocalScore = 0.3f;
  static constexpr float kLeastMergedScore = 0.05f;

  // How long the next round waits for drafts. By default it does not.
  struct RoundWait {
    absl::Time since = absl::InfinitePast();
    absl::Time until = absl::InfinitePast();
    absl::Time hold_until = absl::InfinitePast();
    uint32_t depth = 0;  // Levels waited for.
  };

  std::unique_ptr<DraftPeer>& peer_ptr(DraftRole role) { return peers_[static_cast<size_t>(role)]; }
  bool IsOpen(DraftRole role) const { return peer(role) != nullptr && peer(role)->drafting(); }
  // An id that no peer of the session has.
  SessionId NewDraftId();
  // Another peer is the drafter now.
  void OnNewDrafter();
  // Whether candidates of the round that is being concluded came from the peer that has the role now.
  bool WasInRound(DraftRole role) const {
    return peer(role) != nullptr && peer(role)->draft_id() == round_peers_[static_cast<size_t>(role)];
  }
  uint32_t OutputLength() const;
  bool wants_prompt_logits() const {
    return request_.num_prompt_logprobs >= 0 && num_described_ < request_.prompt.size();
  }
  // Among rows for the tokens from planned_ to `end`, of which the first has index `first_row`, selects those
  // that give logits. Returns where the rows must end so that at most `most` do.
  uint32_t PlanPromptLogits(uint32_t first_row, uint32_t most, uint32_t end);
  // The best candidates of the peer in the role, without those that may not come.
  RoundTree SelectDrafted(DraftRole role, uint32_t max_nodes);
  void ObserveDrafter(RoundReport& report, const TokenIds& committed, const OriginOutcome& drafted);
  void ObservePartner(const OriginOutcome& drafted);
  // Gives the own sources the next tokens.
  void ReadLocally();
  void AddOwnNodes(float least_path_score, MergedTree* tree);
  void DropForbidden(RoundTree* drafted);
  // Removes nodes that the sampler bans at their position, with all nodes below, and returns how many.
  uint32_t DropBanned(RoundTree* tree) const;
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

  const SessionId id_;
  SessionRequest request_;
  const WindowLimits limits_;
  std::unique_ptr<WindowPolicy> policy_;
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

  std::array<std::unique_ptr<DraftPeer>, kNumDraftRoles> peers_;  // By DraftRole.
  uint32_t num_peers_ = 0;  // That there have been, those that never took over included.
  uint32_t rebinds_in_a_row_ = 0;
  uint32_t rounds_without_budget_ = 0;
  uint32_t commit_no_ = 0;
  uint64_t prefix_hash_;
  std::vector<GrowthTrace> growth_trace_;
  RecentMean verified_per_level_;
  RoundWait wait_;
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

  std::vector<OwnSource> own_sources_;
  const VerificationRule* sampling_rule_ = nullptr;  // None: the seeded rule.
  bool chooses_in_engine_ = false;

  // The round in flight.
  RoundDrafters round_drafters_;
  std::array<std::optional<SessionId>, kNumDraftRoles> round_peers_;  // By DraftRole: their draft ids.
  bool drafts_wanted_ = false;                                        // The window had room,
  bool drafts_offered_ = false;  // and the drafter's candidates were there.
  uint32_t first_row_ = 0;
  RoundTree tree_;
  std::array<uint32_t, kNumDraftOrigins> offered_ = {};  // Nodes credited to each, before KeepNodes.
  uint32_t num_masked_ = 0;                              // The drafters' candidates that may not come.
  std::vector<ForbiddenNode> masked_;                    // Where trees are traced.
  std::vector<DrawGroup> draws_;  // As of when it was planned: the mirror may have been opened again since.
  std::vector<SlotId> slots_;     // Of each node.
  std::vector<SlotId> tails_;     // Their contexts beyond the committed prefix, one after the other.
  std::vector<uint32_t> tail_ends_;
  RoundChoices choices_;  // With chooses_in_engine_.
  double round_wait_seconds_ = 0.0;
  bool round_waited_ = false;
  std::vector<uint32_t> accepted_;  // Indices of the accepted nodes, from the root's child down.
  // Whether the target's choice at the walk's end is known. It is not if the output ended with an accepted
  // node.
  bool walked_to_the_end_ = false;
};

}  // namespace tandem

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/node_index.h"
#include "common/base/philox.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"
#include "common/engine/block_pool.h"
#include "common/engine/engine.h"
#include "common/engine/sequence_kv.h"
#include "common/grammar/constraint_cursor.h"
#include "common/speculation/candidate_tree.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/node_table.h"
#include "common/speculation/target_sampler.h"
#include "drafter/drafting/draft_model.h"
#include "drafter/drafting/feature_buffer.h"

namespace tandem {

// The fate of sent nodes, and other totals since the start. Once every session is closed, sent == accepted +
// pruned + stale.
struct DraftCounters {
  uint64_t sent_nodes = 0;
  uint64_t accepted_nodes = 0;  // Their tokens were committed.
  uint64_t pruned_nodes = 0;    // Off the committed path.
  // Neither: salvaged under new ids because they crossed a commit, or dropped with their session or epoch.
  uint64_t stale_nodes = 0;
  uint64_t parked_sessions = 0;       // Times a session gave its keys and values up for a lack of room.
  uint64_t prefill_tokens = 0;        // Committed tokens that went through a draft model.
  uint64_t ignored_commits = 0;       // Repeated, of an old epoch, or of a session that waits for an Open.
  uint64_t ignored_features = 0;      // Messages; likewise, or of a session that is parked.
  uint64_t feature_bytes = 0;         // That came, of all others.
  uint64_t constrained_sessions = 0;  // Openings whose constraint has come to be heeded.
  uint64_t masked_rows = 0;           // Distributions of a model that a constraint was put on.
  double mask_seconds = 0.0;          // That this took.
  uint64_t forbidden_candidates = 0;  // Of sources, and of before the constraint was there.
};

// The rows of one forward pass, filled by the participating sessions, and the memory that they point into.
class StepBatch {
 public:
  void Clear();
  void Add(TokenId token, const RowContext& context, float* logits, const FeatureRequest* features = nullptr,
           const InputState* state = nullptr);
  // Memory that does not move until Clear: `size` slots of a context's tail; room for logits; a request for
  // the normed state, or for the state after the last of that many layers, with room for it; and a state of
  // `size` numbers, which the caller writes, to read.
  absl::Span<SlotId> NewTail(size_t size);
  float* NewLogits(size_t size);
  const FeatureRequest* NewStateRequest(int32_t hidden_size);
  const FeatureRequest* NewOutputRequest(uint32_t num_layers, int32_t hidden_size);
  absl::Span<float> NewInput(size_t size, bool own, const InputState** input);

  absl::Span<const StepRow> rows() const { return rows_; }

 private:
  std::vector<StepRow> rows_;
  // The buffers of inner vectors do not move when the outer ones grow, and are reused from step to step.
  std::vector<std::vector<SlotId>> tails_;
  size_t num_tails_ = 0;
  std::vector<std::vector<float>> logits_;
  size_t num_logits_ = 0;
  struct State {
    FeatureRequest request;
    uint32_t layer = 0;
    InputState input;
    std::vector<float> values;
  };
  State& NewState(size_t size);
  std::deque<State> states_;  // Kept likewise; stay in place when there are more.
  size_t num_states_ = 0;
};

// One session of a drafter: its tree, grown best-first below the last committed token, and its keys and
// values (DESIGN section 3).
//
//          Open                       rows computed up to the root
//   new ----------> waiting for root ------------------------------> growing
//                      ^                                                |
//                      |  commit whose root has no keys and values yet  |
//                      '------------------------------------------------'
//                         a commit that does not fit: lost, until the next Open
//
// A session that is parked for lack of memory holds no keys and values and computes nothing, but follows
// commits. Its tokens in the prefix cache need not be recomputed.
//
// Growth: a node begins as a candidate, a child that a forwarded node's distribution suggests. The best
// candidates become nodes: they get an id, are sent, and wait to be forwarded, which gives their children.
// The best candidate is the one most likely to be on the committed path: it has the highest product of
// calibrated scores from the root down (DraftModel::calibration; every commit calibrates with the children of
// the nodes along its tokens). The same product is the probability that a round ends at a node that it does
// not verify, so growth beyond the verified nodes goes where the next root will be
// (DraftBudget::ahead_nodes). After each commit the model's sources propose trees below the root. Their nodes
// are candidates as soon as their parents are nodes, and wait to be forwarded like others, unless there is no
// engine.
//
// Sampled drafts, for a verifier whose rule uses draft distributions: a node's children are drawn from the
// model's distribution below it, without replacement, and the distribution is sent with the first of them.
// The draws are a function of the drafter's draw seed, the request's seed and the text above, so that a node
// that is forwarded again gets the same children. Neither the fate of a child nor its score depends on the
// token that was drawn, except below it; otherwise the verifier's rule would not be exact. Sources are not
// used then.
//
// Window: the draft model sees all of the sequence while that fits, otherwise the most recent part. The
// window moves only when it is full, and then to three quarters of the context.
//
// Draft heads: a head (HeadConfig) reads the target's hidden states, which OnFeatures brings, as well as the
// tokens. Row j of its sequence has the token at j + 1, so its window starts at position 1 or later. It
// computes as far as states have arrived. Nodes read the output states of the nodes above them instead. After
// a commit, the rows of accepted nodes are recomputed from the target's states; until these arrive, the tree
// grows from the old rows. The head's prefix cache contains only rows computed from the target's states.
// States are dropped once they are used: a session that has lost keys and values, or whose window must move,
// asks for an Open, after which the verifier sends the states again.
//
// Medusa and DFlash heads give the candidates of every level of the tree in one row, the root's: no node is
// forwarded, and all nodes of a level have the same children, except where these also depend on the node's
// own token (DSpark). After a commit, the row's candidates for later
// positions stay valid, whatever was committed, until the next row replaces them. Medusa heads read only the
// states behind the last token but one, so their window is the last token.
//
// Bridges: if the draft model's token ids differ from the target's (VocabularyBridge), the session uses the
// target's ids everywhere, also for sampling, noise, constraints and its prefix cache. It translates ids on
// the way into the engine, and logits on the way out.
//
// Constraints (Constrain): the distribution below a node is masked, like the target's, before tokens are
// guessed or drawn from it, so that both choose alike. The constraint arrives some time after Open, because
// it must be compiled; until then, or if it never arrives, the session drafts without it.
//
// Protocol logic without I/O. Used only by the thread that owns the engine.
class DraftSession {
 public:
  // `vocabulary_fingerprint`: of the session's tokens; BridgeFor must accept it. `expand_width`: most nodes
  // forwarded in a step; small trees forward fewer. `draw_seed`: of sampled drafts. All pointers outlive the
  // session.
  DraftSession(const DraftModel* model, uint64_t cache_salt, uint64_t vocabulary_fingerprint,
               uint32_t expand_width, uint64_t draw_seed, DraftCounters* counters);
  ~DraftSession();
  DraftSession(const DraftSession&) = delete;
  DraftSession& operator=(const DraftSession&) = delete;

  // Opens or reopens (resync) the session: drops the tree, and keeps the keys and values of the common
  // prefix. The message must be checked, and name this session's model, salt and vocabulary. Parks the
  // session if there is no room now; ResourceExhausted if the pool is too small for the window.
  absl::Status Open(const OpenSession& open);

  // Applies a commit. Ignores old and repeated ones. Aborted: the session does not match the verifier any
  // more and does nothing until the next Open; tell the verifier why. After any other error it cannot
  // continue.
  absl::Status OnCommit(const Commit& commit);

  // Sets the compiled constraint of the request, in its initial state: from now on only allowed tokens are
  // drafted. Forbidden nodes that are already in the tree stay, and the verifier drops them. Does nothing if
  // the constraint does not allow the output so far. `clock`, which times masks, outlives the session.
  void Constrain(std::unique_ptr<ConstraintState> state, const Clock* clock);

  // Takes the target's states, for a draft head. Ignores old and repeated ones. Errors as in OnCommit.
  absl::Status OnFeatures(const Features& features);
  // The features that a draft head needs, as of the last Open; nullopt for other models.
  std::optional<FeatureNeeds> feature_needs() const;

  // Park frees all keys and values; Unpark takes them back, and returns whether there was room. Call them
  // between steps.
  void Park();
  bool Unpark();
  bool parked() const { return parked_; }
  // Whether it does nothing until the next Open.
  bool lost() const { return lost_; }
  // Whether it has nothing to draft until the verifier's next message. The memory of such a session is taken
  // first.
  bool idle() const { return lost_ || limits_.nodes == 0; }
  void ListBlocks(std::vector<BlockId>* held) const { kv_.ListBlocks(held); }

  // How many rows a step could add now: committed tokens without keys and values, or nodes.
  uint32_t NumRowsWanted() const;
  // Whether these rows are a prompt's, not just those of a commit.
  bool NeedsPrefill() const;

  // Whether the verifier has no candidate yet for its next round: the round may be waiting for one.
  bool OwesFirstNodes() const { return !root_ready_ || tree_.empty(); }
  // The best value among the nodes that wait to be forwarded: the probability that children of it will be
  // needed. 1 without a tree.
  float BestValue() const;

  // Adds up to `max_rows` rows; the caller runs the batch and calls OnStep before anything else.
  void AddRows(uint32_t max_rows, StepBatch* batch);
  // Reads the logits of this session's rows. Internal if they are not finite; then the session cannot
  // continue.
  absl::Status OnStep();

  // Replaces `growth` by the nodes to send, in order, in messages without step_seconds. Its memory takes the
  // next ones.
  void TakeGrowth(std::vector<Grow>* growth);
  // The report of used features, if one is due.
  std::optional<FeaturesUsed> TakeFeaturesUsed();

  uint64_t cache_salt() const { return cache_salt_; }
  uint64_t vocabulary_fingerprint() const { return vocabulary_fingerprint_; }
  uint32_t epoch() const { return epoch_; }
  // Whether Grow carries predictions: the verifier asked for them, and there is a stop head.
  bool predicts_acceptance() const { return predicts_; }
  // Nodes that wait to be forwarded.
  uint32_t num_waiting() const { return static_cast<uint32_t>(waiting_.size()); }

 private:
  // Sampled drafts are drawn from this many most likely tokens: at least as many as a node may have children.
  static constexpr size_t kSampledTokens = 32;
  static constexpr uint32_t kNotProposed = kRootNode - 1;
  // The drawn children of a node.
  struct Draws {
    DraftDistribution distribution;
    TokenProbabilities children;  // In the order of the draws, with their scores.
    bool sent = false;
  };
  struct NodeState {
    std::optional<SlotId> slot;  // Present when it waits to be forwarded or has been.
    bool forwarded = false;      // Its keys and values are in `slot`, if any, and its children are known.
    float value = 1.0f;          // Probability of being on the committed path.
    uint32_t num_children = 0;
    uint32_t proposed = kNotProposed;  // Which node of the proposal it is.
    uint32_t draw = 0;                 // Which of its parent's draws it is.
    std::vector<float> output;         // Of a draft head: its row's output state, once forwarded.
    std::unique_ptr<Draws> draws;      // Of its children; once forwarded, where drafts are sampled.
  };
  struct Candidate {
    NodeId parent = 0;
    TokenId token = 0;
    float score = 0.0f;         // The engine's, 0 if it has none.
    float source_score = 0.0f;  // The sources'.
    float value = 0.0f;         // As NodeState's.
    uint32_t draw = 0;          // Which of its parent's draws it is; these become nodes in order.

    float merged_score() const { return CombineScores(score, source_score); }
  };
  // The limits from the budget; depth and nodes are 0 while drafting pauses.
  struct Limits {
    uint32_t depth = 0;
    uint32_t nodes = 0;
    uint32_t branching = 1;  // Keeps its last value in a pause.
    // Nodes that a step forwards. They are chosen before their children are known, so small trees forward
    // few.
    uint32_t step_nodes = 1;
    // Once there are `verified` nodes, further ones are drafted ahead, with these limits instead of the two
    // above.
    uint32_t verified = UINT32_MAX;
    uint32_t ahead_branching = 1;
    uint32_t ahead_step_nodes = 1;
    TreeShape shape = TreeShape::kBestFirst;
  };

  bool has_engine() const { return model_->engine != nullptr; }
  int32_t vocab_size() const { return VocabularySize(*model_, bridge_); }
  TokenId ToDraft(TokenId token) const { return bridge_ == nullptr ? token : bridge_->ToDraft(token); }
  bool is_head() const { return is_head_; }
  // Medusa and DFlash: the tree grows from the root's row alone.
  bool gives_levels() const { return gives_levels_; }
  // Medusa: nothing of the text is kept.
  bool is_medusa() const { return is_medusa_; }

  // Open and commit (draft_session.cc).
  absl::Status OpenWindow(absl::Span<const TokenId> tokens);
  void SetBudget(const DraftBudget& budget);
  bool WindowIsFull(size_t length) const;
  absl::Status StartWindow(absl::Span<const TokenId> tokens);
  uint32_t NumBlocksOfWindow() const;
  absl::Status ReserveWindow();
  absl::Status CheckCommit(const Commit& commit) const;
  std::vector<NodeId> MatchPath(absl::Span<const TokenId> tokens) const;
  absl::Status AppendCommitted(absl::Span<const TokenId> tokens, absl::Span<const NodeId> path);
  void RerootAt(NodeId new_root);
  void SalvageBelow(NodeId new_root);
  void Forget(NodeId id, uint64_t* fate);
  void DropTree(uint64_t* fate);
  void LoseTreeKv();

  // For draft heads (head_drafting.cc).
  absl::Status OpenHeadWindow(const OpenSession& open);
  absl::Status StartHeadWindow(absl::Span<const TokenId> before, absl::Span<const TokenId> window);
  absl::Status SkipToFeatures();
  uint32_t FeatureWindow() const;  // Rows.
  uint32_t NextFeature() const;
  uint32_t NumWithFeatures() const;
  absl::Status AppendToHead(absl::Span<const TokenId> tokens, absl::Span<const NodeId> path);
  const InputState* ReadTarget(uint32_t position, StepBatch* batch);
  const InputState* ReadOutputAbove(NodeId parent, StepBatch* batch) const;
  const FeatureRequest* AskForOutput(StepBatch* batch) const;
  void TakeRootOutput();
  void WaitBelow(NodeId parent);

  // For Medusa and DFlash heads (level_drafting.cc).
  absl::Status AppendToMedusa(absl::Span<const TokenId> tokens);
  absl::Status AppendToBlockHead(absl::Span<const TokenId> tokens);
  void DropLevels(size_t num_tokens);
  absl::Status TakeLevels();
  void OfferFromLevels();
  void OfferLevelBelow(NodeId parent, uint32_t depth);
  TokenProbabilities LevelBelow(NodeId parent, uint32_t depth);
  // DSpark: guesses depend on the token before them.
  bool reads_token_before() const;

  // Under a constraint (constrained_drafting.cc).
  void AwaitConstraint(const OpenSession& open);
  void FollowConstraint(absl::Span<const TokenId> committed);
  bool MoveBelow(NodeId parent);
  bool MayCome(NodeId parent, TokenId token);
  bool MaskBelow(NodeId parent, absl::Span<float> logits);
  void LeaveExpensiveConstraint();

  // Growth (tree_growth.cc).
  static bool IsWorse(const Candidate& a, const Candidate& b);
  uint32_t NumUncomputed() const;
  uint32_t NumComputable() const;
  bool ComputesRoot() const;
  uint32_t& NumChildren(NodeId parent);
  bool CanForward(const TreeNode& node) const;
  void Wait(const TreeNode& node);
  TreeNode AddNode(NodeId parent, TokenId token, float score, uint32_t draw);
  float ValueOf(NodeId id) const { return id == 0 ? 1.0f : states_.at(id).value; }
  // What the value of a node's children depends on beside their scores.
  struct Above {
    float value = 1.0f;
    uint32_t depth = 1;  // The children's.
  };
  Above AboveChildrenOf(NodeId parent) const;
  float ValueBelow(const Above& above, float score) const;
  float ValueBelow(NodeId parent, float score) const { return ValueBelow(AboveChildrenOf(parent), score); }
  void ObserveScores(absl::Span<const TokenId> tokens, absl::Span<const NodeId> path);
  void RescoreCandidates();
  void RebuildQueues();
  void Promote();
  void PromoteBest();
  void PromoteLayers();
  void PromoteOne(const Candidate& candidate);
  bool IsLayerFull(uint32_t depth) const;
  bool DraftsAhead() const { return tree_.size() >= limits_.verified; }
  uint32_t Branching() const { return DraftsAhead() ? limits_.ahead_branching : limits_.branching; }
  uint32_t StepNodes() const { return DraftsAhead() ? limits_.ahead_step_nodes : limits_.step_nodes; }
  void TakeHeldBack();
  void ReleaseHeldBack();
  void ProposeFromSources();
  void OfferProposed(NodeId parent, uint32_t proposed);
  void OfferBelow(const TreeNode& node);
  void OfferChildren(NodeId parent, absl::Span<const TokenProbability> children, float Candidate::*score_of);
  bool MayGather() const;
  void SendGathered(std::optional<NodeId> new_root);
  void PutIntoMessages(bool exhausted);
  void FlushGrowth();
  void AddNodeRow(NodeId id, StepBatch* batch);
  absl::Status AddCandidates(NodeId parent, float* logits);
  std::unique_ptr<Draws>& DrawsBelow(NodeId parent);
  std::unique_ptr<Draws> DrawChildren(NodeId parent, absl::Span<const TokenProbability> most_likely) const;
  void AddDistribution(NodeId parent, Grow* grow);
  absl::Status NothingToGuess() const;

  const DraftModel* model_;
  const uint64_t cache_salt_;
  const uint64_t vocabulary_fingerprint_;
  const VocabularyBridge* const bridge_;  // Null: the ids are the draft model's.
  const bool is_head_;
  const bool gives_levels_;
  const bool is_medusa_;
  // The salt of the prefix cache. It depends on the vocabulary, in which the same ids may be other text.
  const uint64_t kv_salt_;
  const uint32_t expand_width_;
  const uint64_t draw_seed_;
  DraftCounters* counters_;

  uint32_t epoch_ = 0;
  uint32_t commit_no_ = 0;
  uint32_t committed_len_ = 0;
  uint64_t prefix_hash_ = 0;
  bool lost_ = false;
  bool parked_ = false;
  bool sampled_ = false;
  bool predicts_ = false;
  PhiloxKey draw_key_ = {};
  float temperature_ = 0.0f;
  Limits limits_;

  std::optional<TargetSampler> sampler_;  // Has the committed tokens; guesses what the target's will choose.
  std::vector<std::unique_ptr<DraftSource>> sources_;
  std::vector<ProposedNode> proposal_;  // Of the sources, below the root as of the last commit.
  SequenceKv kv_;                       // Its tokens are the window; unused without an engine.
  uint32_t window_start_ = 0;
  // Of a draft head: states that are not used yet; the hash of the text before the window, on which its rows
  // depend too; and the result of the root's row.
  std::optional<FeatureBuffer> features_;
  uint32_t told_features_ = 0;    // What the verifier knows to be used: positions before this one.
  bool missed_features_ = false;  // Some came while it was parked.
  uint64_t text_before_window_ = 0;
  std::vector<float> root_output_;
  // Of Medusa and DFlash heads: the candidates below nodes of depth 0, 1, ...: guesses or, for sampled
  // drafts, the tokens to draw from.
  std::vector<TokenProbabilities> levels_;
  std::vector<std::vector<float>> level_logits_;  // What they were made of; under a constraint, and DSpark.
  bool root_ready_ = false;                       // The root has been forwarded: its children are known.
  CandidateTree tree_;
  NodeTable<NodeState> states_;
  uint32_t root_children_ = 0;
  std::unique_ptr<Draws> root_draws_;
  NodeId next_id_ = 1;
  std::vector<Candidate> candidates_;  // A heap, best first.
  std::vector<Candidate> held_back_;   // Outside the budget as it is now.
  bool released_ = false;              // What the verified tree had no room for, since the last commit.
  std::vector<NodeId> waiting_;        // By value, best first; parents before children.

  bool awaits_constraint_ = false;                // Open has brought one,
  TokenIds output_;                               // and this is the output so far, while it is compiled.
  std::unique_ptr<ConstraintCursor> constraint_;  // Its output is that of the last commit.
  uint64_t constraint_steps_ = 0;                 // That it has taken when that was looked at last.
  const Clock* mask_clock_ = nullptr;
  std::vector<uint32_t> mask_;

  // Rows of the step in flight.
  uint32_t computed_after_step_ = 0;
  float* root_logits_ = nullptr;
  const FeatureRequest* root_request_ = nullptr;  // A draft head's.
  absl::Status bad_features_;
  struct NodeRow {
    NodeId id = 0;
    float* logits = nullptr;
    const FeatureRequest* state = nullptr;  // A draft head's, or for the stop head, if it has a say.
  };
  std::vector<NodeRow> node_rows_;

  std::vector<TreeNode> announced_;          // Not yet in a message.
  std::vector<NodePrediction> predictions_;  // Likewise.
  bool said_exhausted_ = false;              // Since the last commit.
  std::vector<Grow> growth_;
};

}  // namespace tandem

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/drafting/source_host.h"
#include "common/engine/block_pool.h"
#include "common/speculation/candidate_tree.h"
#include "common/speculation/draft_messages.h"
#include "common/speculation/target_sampler.h"
#include "common/testing/fake_constraint.h"
#include "common/testing/fake_engine.h"
#include "common/testing/renamed_engine.h"
#include "drafter/drafting/draft_core.h"
#include "drafter/testing/fake_stop_head.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Shared by the drafter's tests: a drafter on a fake engine, and a verifier's side that checks every message.
namespace tandem::testing_peer {

inline constexpr uint64_t kFingerprint = 0xfeed;
inline constexpr uint64_t kDraftFingerprint = 0xd4af;  // Of a bridged model itself.
inline constexpr LinkId kLink = 7;

// A target of FakeEngine's 64 tokens and 8 ids of padding, and the ids of these tokens in a draft model with
// 80 ids.
inline constexpr int32_t kPaddedWidth = 72;
inline constexpr int32_t kDraftWidth = 80;
inline TokenIds DraftIds() {
  TokenIds ids;
  for (TokenId token = 0; token < 64; ++token) ids.push_back((token * 37 + 5) % kDraftWidth);
  return ids;
}
// The draft model's stand-in for tokens that it does not have: the target's token 9.
inline constexpr TokenId kStandIn = 9;
inline std::shared_ptr<const VocabularyBridge> SomeBridge() {
  TokenIds ids = DraftIds();
  const TokenId stand_in = ids[kStandIn];
  ids.resize(kPaddedWidth, VocabularyBridge::kNone);
  return std::make_shared<const VocabularyBridge>(
      VocabularyBridge::FromMap(std::move(ids), kDraftWidth, stand_in).value());
}

inline uint32_t NodeLimit(const DraftBudget& budget) {
  if (budget.depth == 0) return 0;
  const uint64_t levels = budget.depth + budget.lookahead;
  uint64_t limit = uint64_t{budget.nodes} * levels / budget.depth;
  if (budget.shape == TreeShape::kChain) limit = std::min(limit, levels);
  // Drafting ahead replaces the levels beyond the verified ones.
  if (budget.shape != TreeShape::kEagle2 && budget.ahead_nodes > 0)
    limit = std::max(limit, std::min<uint64_t>(limit, budget.nodes) + budget.ahead_nodes);
  if (budget.shape == TreeShape::kEagle2) limit += budget.branching * levels;
  return static_cast<uint32_t>(std::min<uint64_t>(limit, kMaxTreeNodes));
}

// The drafter's guesses after `context` at temperature 0, from logits computed without a cache.
inline TokenProbabilities GreedyGuesses(const FakeEngine& engine, const TokenIds& context, size_t count) {
  std::vector<float> logits = engine.ReferenceLogits(context);
  const TargetSampler sampler({.temperature = 0.0f}, engine.config().vocab_size, {});
  return sampler.Guess(absl::MakeSpan(logits), static_cast<uint32_t>(context.size()), count);
}

// A drafter with a model, named "draft", of an engine, of a source, or of both. With both, the engine alone
// is another model, named "plain". Bridged, the model calls tokens by DraftIds, and says the same.
struct Drafter {
  explicit Drafter(const DraftCore::Options& core_options = {}, FakeEngine::Options engine_options = {},
                   bool prefix_cache = true, const char* source_spec = nullptr, bool with_engine = true,
                   bool bridged = false)
      : engine(engine_options),
        renamed(&engine, DraftIds(), kDraftWidth),
        pool({.num_blocks = engine_options.num_blocks, .prefix_cache = prefix_cache}),
        source(ParseSourceSpec(source_spec != nullptr ? source_spec : "ngram").value()),
        has_source(source_spec != nullptr),
        core(core_options, Models(with_engine, bridged, static_cast<uint32_t>(engine_options.max_context)),
             &clock) {}

  std::vector<DraftModel> Models(bool with_engine, bool bridged, uint32_t context_length) {
    DraftModel model{.name = "draft",
                     .engine = with_engine ? &engine : nullptr,
                     .pool = with_engine ? &pool : nullptr,
                     .vocabulary_fingerprint = kFingerprint,
                     .context_length = context_length,
                     .stop_head = &stop_head};
    if (bridged && with_engine) {
      model.engine = &renamed;
      model.vocabulary_fingerprint = kDraftFingerprint;
      model.other_vocabularies = {{.fingerprint = kFingerprint, .bridge = SomeBridge()}};
    }
    std::vector<DraftModel> models = {model};
    if (!has_source) return models;
    models[0].sources = {&source};
    model.name = "plain";
    if (with_engine) models.push_back(model);
    return models;
  }

  // Runs until there is nothing to do; the number of steps.
  int RunDry(int max_steps = 10000) {
    int steps = 0;
    while (core.HasWork()) {
      if (++steps > max_steps) {
        ADD_FAILURE() << "still at work after " << max_steps << " steps";
        break;
      }
      core.Step();
    }
    return steps;
  }

  ManualClock clock;
  FakeEngine engine;
  RenamedEngine renamed;
  BlockPool pool;
  FakeStopHead stop_head;
  SourceHost source;
  const bool has_source;
  DraftCore core;
};

// A verifier's side of one session. Responses wait in `inbox` until they are delivered, so that messages can
// cross.
class Peer {
 public:
  Peer(Drafter* drafter, SessionId session, LinkId link = kLink)
      : drafter_(drafter), session_(session), link_(link) {}

  OpenSession MakeOpen(TokenIds tokens, const DraftBudget& budget) {
    return {.epoch = epoch_ + 1,
            .draft_model = "draft",
            .vocabulary_fingerprint = kFingerprint,
            .commit_no = commit_no_,
            .tokens = tokens,
            .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
            .sampling = sampling_,
            .prompt_length = static_cast<uint32_t>(
                constraint_.has_value() && prompt_length_ > 0 ? prompt_length_ : tokens.size()),
            .budget = budget,
            .predict_acceptance = predict_acceptance_,
            .constraint = constraint_.has_value() ? std::make_shared<const std::string>("fake") : nullptr};
  }

  // From the next Open on there is a constraint, which the drafter gets by GiveConstraint.
  void Constrain() { constraint_.emplace(FakeConstraint::Options{}); }
  // From now on the drafter sends only allowed tokens, with scores of the masked distribution.
  void GiveConstraint() {
    heeded_ = true;
    drafter_->core.OnConstraint(link_, session_, epoch_, std::make_unique<FakeConstraint>(*constraint_));
  }
  const std::optional<FakeConstraint::Options>& constraint() const { return constraint_; }
  // Stops checking scores.
  void SkipScores() { check_scores_ = false; }
  void set_sampling(const SamplingParameters& sampling) { sampling_ = sampling; }
  // The output, followed by `path`.
  TokenIds OutputWith(const TokenIds& path) const {
    TokenIds output(tokens_.begin() + static_cast<ptrdiff_t>(prompt_length_), tokens_.end());
    output.insert(output.end(), path.begin(), path.end());
    return output;
  }

  // From the next Open on.
  void PredictAcceptance() { predict_acceptance_ = true; }

  void Open(TokenIds tokens, const DraftBudget& budget) {
    OpenSession open = MakeOpen(tokens, budget);
    prompt_length_ = open.prompt_length;
    heeded_ = false;
    ++epoch_;
    tokens_ = std::move(tokens);
    budget_ = budget;
    tree_.Clear();
    predictions_.clear();
    windows_.clear();
    window_start_ = 0;
    MoveWindow();
    // After a resync the drafter may keep its old window, which this side does not track.
    if (epoch_ > 1 && window_start_ > 0) check_scores_ = false;
    next_id_ = 1;
    exhausted_ = false;
    Send(std::move(open));
  }

  Commit MakeCommit(const TokenIds& accepted_and_bonus) {
    Commit commit{
        .epoch = epoch_,
        .commit_no = commit_no_ + 1,
        .tokens = accepted_and_bonus,
        .committed_len = static_cast<uint32_t>(tokens_.size() + accepted_and_bonus.size()),
        .prefix_hash = ExtendPrefixHash(ExtendPrefixHash(kEmptyPrefixHash, tokens_), accepted_and_bonus),
        .budget = budget_};
    NodeId at = 0;
    for (TokenId token : accepted_and_bonus) {
      const TreeNode* node = tree_.FindChild(at, token);
      if (node == nullptr) return commit;
      at = node->id;
    }
    commit.new_root = at;
    return commit;
  }

  // Commits, naming the new root if the mirror has it.
  Commit CommitTokens(const TokenIds& accepted_and_bonus) {
    Commit commit = MakeCommit(accepted_and_bonus);
    if (commit.new_root.has_value()) {
      tree_.Reroot(*commit.new_root);
    } else {
      tree_.Clear();
    }
    ++commit_no_;
    tokens_.insert(tokens_.end(), accepted_and_bonus.begin(), accepted_and_bonus.end());
    MoveWindow();
    exhausted_ = false;
    Send(commit);
    return commit;
  }

  void Close() { Send(CloseSession{}); }
  template <class Event>
  void Send(Event event) {
    drafter_->core.OnRequest(link_, {session_, std::move(event)});
  }

  // Takes this session's responses from a batch.
  void Collect(const std::vector<std::pair<LinkId, DraftResponse>>& responses) {
    for (const auto& [link, response] : responses) {
      if (link == link_ && response.session == session_) inbox_.push_back(response);
    }
  }

  // Delivers up to `count` messages.
  void Deliver(size_t count = SIZE_MAX) {
    for (; count > 0 && !inbox_.empty(); --count) {
      const DraftResponse response = std::move(inbox_.front());
      inbox_.pop_front();
      if (const auto* grow = std::get_if<Grow>(&response.event)) {
        OnGrow(*grow);
      } else if (const auto* opened = std::get_if<SessionOpened>(&response.event)) {
        if (opened->epoch != epoch_) continue;
        opened_ = true;
        EXPECT_TRUE(!opened->predicts_acceptance || predict_acceptance_);
        predicts_ = opened->predicts_acceptance;
      } else if (const auto* resync = std::get_if<ResyncNeeded>(&response.event)) {
        if (resync->epoch == epoch_) resync_reason_ = resync->reason;
      } else {
        refusal_ = std::get<SessionRefused>(response.event).status;
      }
    }
  }

  // Runs the drafter dry and delivers all its messages.
  void RunDryAndDeliver() {
    drafter_->RunDry();
    Collect(drafter_->core.TakeResponses());
    Deliver();
  }

  const TokenIds& tokens() const { return tokens_; }
  const CandidateTree& tree() const { return tree_; }
  const std::deque<DraftResponse>& inbox() const { return inbox_; }
  uint32_t epoch() const { return epoch_; }
  uint32_t commit_no() const { return commit_no_; }
  bool opened() const { return opened_; }
  bool predicts() const { return predicts_; }
  // By node; each has been checked.
  const std::map<NodeId, float>& predictions() const { return predictions_; }
  bool exhausted() const { return exhausted_; }
  const std::optional<absl::Status>& refusal() const { return refusal_; }
  std::string TakeResyncReason() { return std::exchange(resync_reason_, ""); }
  DraftBudget& budget() { return budget_; }
  uint64_t num_nodes() const { return num_nodes_; }

 private:
  // The drafter's rule: if a window leaves the tree too little room, it restarts with three quarters of the
  // context.
  void MoveWindow() {
    const size_t context = static_cast<size_t>(drafter_->engine.config().max_context);
    const size_t levels = budget_.depth == 0 ? 0 : std::min(budget_.depth + budget_.lookahead, kMaxTreeDepth);
    if (tokens_.size() - window_start_ + std::min(levels, context / 4) > context) {
      window_start_ = tokens_.size() - (context - context / 4);
    }
    windows_.push_back({commit_no_, window_start_});
  }

  void OnGrow(const Grow& grow) {
    ASSERT_TRUE(grow.exhausted || !grow.parents.empty() || !grow.predictions.empty());
    ASSERT_LE(grow.parents.size(), kMaxGrowNodes);
    ASSERT_EQ(grow.parents.size(), grow.tokens.size());
    ASSERT_EQ(grow.parents.size(), grow.scores.size());
    if (grow.epoch != epoch_) return;
    // Nodes that were collected when a commit came, and were not sent, have ids too.
    ASSERT_GE(grow.first_id, next_id_);
    ASSERT_LE(grow.seen_commit, commit_no_);
    next_id_ = grow.first_id + static_cast<NodeId>(grow.parents.size());
    num_nodes_ += grow.parents.size();
    if (grow.seen_commit == commit_no_) {
      ASSERT_EQ(grow.prefix_hash, ExtendPrefixHash(kEmptyPrefixHash, tokens_));
      ASSERT_FALSE(exhausted_) << "growth after the drafter said that there would be none";
      exhausted_ = grow.exhausted;
    }
    for (size_t i = 0; i < grow.parents.size(); ++i) {
      const NodeId id = grow.first_id + static_cast<NodeId>(i);
      ASSERT_LT(grow.parents[i], id);
      const bool stale_root = grow.parents[i] == 0 && grow.seen_commit != commit_no_;
      if (stale_root || !tree_.IsKnownParent(grow.parents[i])) {
        // Only growth that crossed a commit may have an unknown parent.
        ASSERT_NE(grow.seen_commit, commit_no_) << "node " << id << " below unknown " << grow.parents[i];
        continue;
      }
      ASSERT_EQ(tree_.FindChild(grow.parents[i], grow.tokens[i]), nullptr) << "the same child twice";
      const TreeNode node = tree_.Add(id, grow.parents[i], grow.tokens[i], grow.scores[i]);
      if (grow.seen_commit == commit_no_) {
        ASSERT_LE(node.depth, budget_.depth + budget_.lookahead);
        ASSERT_LE(tree_.size(), NodeLimit(budget_));
      }
      if (check_scores_ && !drafter_->has_source) CheckScore(grow, node);
    }
    ASSERT_TRUE(grow.predictions.empty() || predict_acceptance_);
    for (const NodePrediction& prediction : grow.predictions) CheckPrediction(prediction);
  }

  // It is the stop head's, of the state behind exactly the tokens on the node's path.
  void CheckPrediction(const NodePrediction& prediction) {
    ASSERT_LT(prediction.node, next_id_);
    if (tree_.Find(prediction.node) == nullptr) return;  // Crossed a commit.
    predictions_[prediction.node] = prediction.acceptance;
    if (!check_scores_ || window_start_ > 0) return;
    TokenIds context = tokens_;
    for (NodeId id : tree_.Path(prediction.node)) context.push_back(tree_.Find(id)->token);
    ASSERT_EQ(prediction.acceptance,
              drafter_->stop_head.Acceptance(drafter_->engine.ReferenceState(context)));
  }

  // The score is the draft model's probability, given exactly the tokens on the node's path. Nodes that are
  // sent again after commits that moved the window keep the score they had in the old one.
  void CheckScore(const Grow& grow, const TreeNode& node) {
    const auto window = std::find_if(windows_.begin(), windows_.end(),
                                     [&](const Window& w) { return w.commit_no == grow.seen_commit; });
    ASSERT_NE(window, windows_.end());
    // Starts of windows that moved with earlier commits.
    std::set<size_t> starts;
    for (auto at = window;; --at) {
      starts.insert(at->start);
      if (at == windows_.begin() || starts.size() == 4) break;
    }
    for (size_t start : starts) {
      if (Score(start, node) == node.score) return;
    }
    FAIL() << "node " << node.id << " of commit " << grow.seen_commit << " has the score " << node.score
           << ", expected " << Score(window->start, node);
  }

  float Score(size_t window_start, const TreeNode& node) const {
    TokenIds context(tokens_.begin() + static_cast<ptrdiff_t>(window_start), tokens_.end());
    for (NodeId id : tree_.Path(node.id)) context.push_back(tree_.Find(id)->token);
    context.pop_back();
    std::vector<float> logits = drafter_->engine.ReferenceLogits(context);
    if (heeded_) {
      TokenIds path;
      for (NodeId id : tree_.Path(node.parent)) path.push_back(tree_.Find(id)->token);
      FakeConstraint::Mask(*constraint_, OutputWith(path), absl::MakeSpan(logits));
    }
    const int32_t vocab_size = drafter_->engine.config().vocab_size;
    const TargetSampler sampler({.temperature = 0.0f}, vocab_size, {});
    const auto all = sampler.Guess(absl::MakeSpan(logits), static_cast<uint32_t>(context.size()),
                                   static_cast<size_t>(vocab_size));
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.token == node.token; });
    return same == all.end() ? 0.0f : same->probability;
  }

  struct Window {
    uint32_t commit_no;
    size_t start;
  };

  SamplingParameters sampling_{.temperature = 0.0f};
  size_t prompt_length_ = 0;
  std::optional<FakeConstraint::Options> constraint_;
  bool heeded_ = false;
  Drafter* drafter_;
  const SessionId session_;
  const LinkId link_;
  uint32_t epoch_ = 0;
  uint32_t commit_no_ = 0;
  TokenIds tokens_;
  DraftBudget budget_;
  CandidateTree tree_;
  std::vector<Window> windows_;
  size_t window_start_ = 0;
  bool check_scores_ = true;
  NodeId next_id_ = 1;
  uint64_t num_nodes_ = 0;
  bool opened_ = false;
  bool predict_acceptance_ = false;
  bool predicts_ = false;
  std::map<NodeId, float> predictions_;
  bool exhausted_ = false;
  std::optional<absl::Status> refusal_;
  std::string resync_reason_;
  std::deque<DraftResponse> inbox_;
};

inline TokenIds Prompt(int length, int first = 3) {
  TokenIds tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((first + 7 * i) % 64);
  return tokens;
}

// Token, score and parent (an index, or -1 for the root) of every node in the order in which they are made.
struct ReferenceNode {
  int parent;
  TokenId token;
  float score;

  friend bool operator==(const ReferenceNode&, const ReferenceNode&) = default;
  friend std::ostream& operator<<(std::ostream& out, const ReferenceNode& node) {
    return out << node.token << " (" << node.score << ") below " << node.parent;
  }
};

// A naive implementation of best-first growth: no cache, no heap, every context spelled out. A step forwards
// an eighth of `nodes`, from 1 to `expand_width` of them.
inline std::vector<ReferenceNode> BestFirst(const FakeEngine& engine, const TokenIds& prompt, uint32_t depth,
                                            uint32_t nodes, uint32_t branching, uint32_t expand_width) {
  const size_t width = std::clamp(nodes / 8, 1u, expand_width);
  struct Item {
    ReferenceNode node;
    TokenIds context;
    uint32_t depth;
    float path_score;
  };
  std::vector<ReferenceNode> made;
  std::vector<std::pair<int, Item>> waiting;
  std::vector<Item> candidates;
  const auto expand = [&](int index, const TokenIds& context, uint32_t above, float path_score) {
    for (const TokenProbability& token : GreedyGuesses(engine, context, branching)) {
      Item item{{index, token.token, token.probability}, context, above + 1, path_score * token.probability};
      item.context.push_back(token.token);
      candidates.push_back(item);
    }
  };
  expand(-1, prompt, 0, 1.0f);
  while (made.size() < nodes && !(candidates.empty() && waiting.empty())) {
    while (made.size() < nodes && !candidates.empty()) {
      const auto best =
          std::max_element(candidates.begin(), candidates.end(),
                           [](const Item& a, const Item& b) { return a.path_score < b.path_score; });
      if (std::count_if(waiting.begin(), waiting.end(), [&](const auto& w) {
            return w.second.path_score >= best->path_score;
          }) >= static_cast<ptrdiff_t>(width)) {
        break;
      }
      made.push_back(best->node);
      if (best->depth < depth) waiting.emplace_back(static_cast<int>(made.size()) - 1, *best);
      candidates.erase(best);
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](const auto& a, const auto& b) { return a.second.path_score > b.second.path_score; });
    for (size_t i = 0; i < width && !waiting.empty(); ++i) {
      expand(waiting[0].first, waiting[0].second.context, waiting[0].second.depth,
             waiting[0].second.path_score);
      waiting.erase(waiting.begin());
    }
  }
  return made;
}

inline std::vector<ReferenceNode> Nodes(const Peer& peer) {
  std::vector<ReferenceNode> nodes;
  std::map<NodeId, int> index = {{0, -1}};
  for (const TreeNode& node : peer.tree().nodes()) {
    index[node.id] = static_cast<int>(nodes.size());
    nodes.push_back({index.at(node.parent), node.token, node.score});
  }
  return nodes;
}

// How many tokens a round would accept among the nodes if their scores were right: the sum of their path
// scores.
inline float Worth(const std::vector<ReferenceNode>& nodes) {
  std::vector<float> path_scores;
  float worth = 0.0f;
  for (const ReferenceNode& node : nodes) {
    path_scores.push_back(node.score *
                          (node.parent < 0 ? 1.0f : path_scores[static_cast<size_t>(node.parent)]));
    worth += path_scores.back();
  }
  return worth;
}

// The paths of nodes, sorted: the set of nodes, whatever the order in which they were made.
inline std::vector<TokenIds> Paths(const std::vector<ReferenceNode>& nodes) {
  std::vector<TokenIds> paths;
  for (const ReferenceNode& node : nodes) {
    TokenIds path = node.parent < 0 ? TokenIds() : paths[static_cast<size_t>(node.parent)];
    path.push_back(node.token);
    paths.push_back(std::move(path));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace tandem::testing_peer

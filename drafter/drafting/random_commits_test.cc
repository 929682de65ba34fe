// Many sessions, messages that cross, and commits of every kind, drawn by a seed. The peer checks each node
// it is sent against the fake model, so that any mistake with keys and values shows as a wrong score.

#include <array>
#include <iterator>
#include <random>

#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using testing_peer::Drafter;
using testing_peer::kLink;
using testing_peer::NodeLimit;
using testing_peer::Peer;

class RandomCommitsTest : public ::testing::TestWithParam<int> {
 protected:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  // The last one goes without an engine.
  static constexpr const char* kSources[] = {
      nullptr, nullptr, nullptr, "ngram:min=1", "suffix:min=1", "trie:nodes=300", "suffix:min=1,tokens=64"};

  static constexpr int kFirstBridged = 100;  // The seeds from here on.

  TokenId DrawToken() { return static_cast<TokenId>(Draw(64)); }

  // Some way down the peer's tree, then a child that is there, or perhaps not.
  TokenIds DrawCommit(const Peer& peer) {
    TokenIds tokens;
    NodeId at = 0;
    while (Draw(4) != 0) {
      std::vector<const TreeNode*> children;
      for (const TreeNode& node : peer.tree().nodes()) {
        if (node.parent == at) children.push_back(&node);
      }
      if (children.empty()) break;
      const TreeNode* child = children[Draw(static_cast<uint32_t>(children.size()))];
      tokens.push_back(child->token);
      at = child->id;
    }
    if (tokens.empty() || Draw(3) == 0) tokens.push_back(DrawToken());
    // Sometimes the bonus token is what the drafter has found, but not yet delivered.
    if (Draw(2) == 0 && !peer.inbox().empty()) {
      const auto* grow = std::get_if<Grow>(&peer.inbox().front().event);
      if (grow != nullptr && grow->epoch == peer.epoch() && !grow->parents.empty()) {
        if (grow->parents[0] == 0) return {grow->tokens[0]};
        tokens.clear();
        for (NodeId id : peer.tree().Path(grow->parents[0])) tokens.push_back(peer.tree().Find(id)->token);
        tokens.push_back(grow->tokens[0]);
      }
    }
    return tokens;
  }

  DraftBudget DrawBudget() {
    return {.depth = 1 + Draw(6),
            .nodes = 1 + Draw(24),
            .branching = 1 + Draw(4),
            .lookahead = Draw(5),
            .shape = shape_,
            .ahead_nodes = Draw(2) == 0 ? 0 : Draw(60),
            .ahead_branching = Draw(6)};
  }

  TokenIds DrawPrompt() {
    TokenIds prompt(1 + Draw(60));
    // From few tokens, so that prompts share prefixes.
    for (TokenId& token : prompt) token = static_cast<TokenId>(Draw(8) == 0 ? 1 : 2);
    return prompt;
  }

  // A message that the drafter cannot apply, then the Open it asks for.
  void Derail(Peer* peer) {
    Commit commit = peer->MakeCommit({DrawToken()});
    if (Draw(2) == 0) {
      commit.commit_no += 1 + Draw(3);
    } else {
      commit.prefix_hash ^= 1;
    }
    peer->Send(commit);
    peer->Collect(drafter_->core.TakeResponses());
    peer->Deliver();
    EXPECT_NE(peer->TakeResyncReason(), "");
    TokenIds tokens = peer->tokens();
    if (Draw(2) == 0) tokens.resize(1 + Draw(static_cast<uint32_t>(tokens.size())));
    if (Draw(2) == 0) tokens.push_back(DrawToken());
    peer->Open(tokens, peer->budget());
  }

  std::mt19937_64 random_{static_cast<uint64_t>(GetParam())};
  std::unique_ptr<Drafter> drafter_;
  TreeShape shape_ = TreeShape::kBestFirst;
};

TEST_P(RandomCommitsTest, EveryScoreIsTheModels) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  const bool small_context = Draw(3) == 0;
  const bool small_pool = Draw(3) == 0;
  const bool change_budgets = Draw(2) == 0;
  shape_ = std::array{TreeShape::kBestFirst, TreeShape::kChain, TreeShape::kEagle2}[Draw(3)];
  drafter_ = std::make_unique<Drafter>(
      DraftCore::Options{.expand_width = 1 + Draw(5), .max_step_rows = 8 + Draw(60)},
      FakeEngine::Options{.max_context = small_context ? 40 : 4096, .num_blocks = small_pool ? 40u : 1000u},
      /*prefix_cache=*/Draw(4) != 0, kSources[static_cast<size_t>(GetParam()) % std::size(kSources)],
      /*with_engine=*/GetParam() % 7 != 6, /*bridged=*/GetParam() >= kFirstBridged);
  std::vector<Peer> peers;
  for (SessionId id = 0; id < 4; ++id) peers.emplace_back(drafter_.get(), id);
  for (Peer& peer : peers) peer.Open(DrawPrompt(), DrawBudget());

  for (int event = 0; event < 400; ++event) {
    for (uint32_t steps = Draw(4); steps > 0; --steps) drafter_->core.Step();
    const auto responses = drafter_->core.TakeResponses();
    for (Peer& peer : peers) peer.Collect(responses);
    Peer& peer = peers[Draw(4)];
    peer.Deliver(Draw(4));
    ASSERT_FALSE(HasFatalFailure()) << "event " << event;
    if (peer.refusal().has_value()) continue;  // The small pool ran out.
    const uint32_t kind = Draw(20);
    if (kind == 0) {
      Derail(&peer);
    } else if (kind < 10) {
      if (change_budgets && Draw(3) == 0) peer.budget() = DrawBudget();
      const Commit commit = peer.CommitTokens(DrawCommit(peer));
      if (Draw(5) == 0) peer.Send(commit);  // Once more.
    }
  }

  // The end of every round: the drafter has said that it is done, or its nodes are as many as there may be.
  drafter_->RunDry();
  const auto responses = drafter_->core.TakeResponses();
  for (Peer& peer : peers) {
    peer.Collect(responses);
    peer.Deliver();
    ASSERT_FALSE(HasFatalFailure());
    if (peer.refusal().has_value()) {
      EXPECT_TRUE(small_pool) << *peer.refusal();
      continue;
    }
    if (!small_pool && !small_context && !change_budgets) {
      EXPECT_TRUE(peer.exhausted() || peer.tree().size() == NodeLimit(peer.budget()))
          << peer.tree().size() << " nodes";
    }
    peer.Close();
  }
  EXPECT_EQ(drafter_->core.stats().num_sessions, 0u);
  EXPECT_EQ(drafter_->pool.num_held(), 0u);
  EXPECT_EQ(drafter_->pool.num_free() + drafter_->pool.num_cached(), drafter_->pool.num_blocks());
  const DraftCounters counters = drafter_->core.stats().counters;
  EXPECT_GT(counters.accepted_nodes, 0u);
  EXPECT_EQ(counters.sent_nodes, counters.accepted_nodes + counters.pruned_nodes + counters.stale_nodes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCommitsTest, ::testing::Range(0, 140));

}  // namespace
}  // namespace tandem

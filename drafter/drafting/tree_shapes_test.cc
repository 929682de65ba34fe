// Chains and EAGLE-2 trees against references without caches, heaps or messages.

#include <algorithm>
#include <set>

#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using testing_peer::Drafter;
using testing_peer::GreedyGuesses;
using testing_peer::Peer;
using testing_peer::Prompt;

struct Guess {
  TokenIds path;
  float path_score = 1.0f;
};

bool IsBetter(const Guess& a, const Guess& b) {
  return a.path_score > b.path_score;
}

// The best `num_nodes` paths of a tree whose levels are expanded `width` nodes at a time.
std::set<TokenIds> Eagle2(const FakeEngine& engine, const TokenIds& prompt, uint32_t depth, size_t width,
                          size_t num_nodes) {
  std::vector<Guess> all;
  std::vector<Guess> level = {{}};
  for (uint32_t i = 0; i < depth; ++i) {
    std::vector<Guess> next;
    for (const Guess& guess : level) {
      TokenIds context = prompt;
      context.insert(context.end(), guess.path.begin(), guess.path.end());
      for (const TokenProbability& token : GreedyGuesses(engine, context, width)) {
        next.push_back({guess.path, guess.path_score * token.probability});
        next.back().path.push_back(token.token);
      }
    }
    all.insert(all.end(), next.begin(), next.end());
    std::stable_sort(next.begin(), next.end(), IsBetter);
    next.resize(std::min(next.size(), width));
    level = std::move(next);
  }
  std::stable_sort(all.begin(), all.end(), IsBetter);
  std::set<TokenIds> best;
  for (size_t i = 0; i < std::min(num_nodes, all.size()); ++i) best.insert(all[i].path);
  return best;
}

std::set<TokenIds> BestPaths(const CandidateTree& tree, size_t num_nodes) {
  std::vector<Guess> all;
  for (const TreeNode& node : tree.nodes()) {
    Guess guess{.path_score = node.path_score};
    for (NodeId id : tree.Path(node.id)) guess.path.push_back(tree.Find(id)->token);
    all.push_back(guess);
  }
  std::stable_sort(all.begin(), all.end(), IsBetter);
  std::set<TokenIds> best;
  for (size_t i = 0; i < std::min(num_nodes, all.size()); ++i) best.insert(all[i].path);
  return best;
}

TEST(TreeShapesTest, Eagle2HoldsTheBestOfItsLevels) {
  for (uint32_t expand_width : {1u, 4u}) {
    for (uint32_t width : {1u, 2u, 4u}) {
      for (uint32_t nodes : {6u, 20u, 64u, 100u}) {
        Drafter drafter({.expand_width = expand_width});
        Peer peer(&drafter, 1);
        peer.Open(Prompt(20), {.depth = 5, .nodes = nodes, .branching = width, .shape = TreeShape::kEagle2});
        peer.RunDryAndDeliver();
        EXPECT_TRUE(peer.exhausted());
        EXPECT_EQ(BestPaths(peer.tree(), nodes), Eagle2(drafter.engine, Prompt(20), 5, width, nodes))
            << expand_width << " " << width << " " << nodes;
      }
    }
  }
}

TEST(TreeShapesTest, Eagle2GoesOnAfterACommit) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(20),
            {.depth = 3, .nodes = 12, .branching = 3, .lookahead = 2, .shape = TreeShape::kEagle2});
  for (int round = 0; round < 20; ++round) {
    peer.RunDryAndDeliver();
    ASSERT_FALSE(peer.tree().empty());
    EXPECT_TRUE(peer.exhausted());
    const TreeNode& node = peer.tree().nodes()[static_cast<size_t>(round) % peer.tree().size()];
    TokenIds tokens;
    for (NodeId id : peer.tree().Path(node.id)) tokens.push_back(peer.tree().Find(id)->token);
    if (round % 3 == 0) tokens.push_back(63);
    peer.CommitTokens(tokens);
  }
}

TEST(TreeShapesTest, AChainHasOneNodeForEachLevel) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(20),
            {.depth = 4, .nodes = 30, .branching = 4, .lookahead = 2, .shape = TreeShape::kChain});
  peer.RunDryAndDeliver();
  EXPECT_TRUE(peer.exhausted());
  ASSERT_EQ(peer.tree().size(), 6u);
  TokenIds context = Prompt(20);
  for (uint32_t i = 0; i < 6; ++i) {
    const TreeNode& node = peer.tree().nodes()[i];
    EXPECT_EQ(node.depth, i + 1);
    EXPECT_EQ(node.token, GreedyGuesses(drafter.engine, context, 1)[0].token);
    context.push_back(node.token);
  }
}

}  // namespace
}  // namespace tandem

// How trees grow, shrink and grow again; draft_core_test.cc has the protocol and the scheduler.

#include <map>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing_peer::BestFirst;
using testing_peer::Drafter;
using testing_peer::Nodes;
using testing_peer::Paths;
using testing_peer::Peer;
using testing_peer::Prompt;
using testing_peer::ReferenceNode;
using testing_peer::Worth;

TEST(TreeGrowthTest, GrowsBestFirst) {
  for (uint32_t width : {1u, 3u, 4u}) {
    for (DraftBudget budget : {DraftBudget{.depth = 4, .nodes = 20, .branching = 3},
                               DraftBudget{.depth = 5, .nodes = 40, .branching = 4},
                               DraftBudget{.depth = 6, .nodes = 6, .branching = 1},
                               DraftBudget{.depth = 2, .nodes = 64, .branching = 4}}) {
      Drafter drafter({.expand_width = width});
      Peer peer(&drafter, 1);
      peer.Open(Prompt(21), budget);
      peer.RunDryAndDeliver();
      EXPECT_TRUE(peer.opened());
      EXPECT_TRUE(peer.exhausted());
      EXPECT_EQ(Nodes(peer),
                BestFirst(drafter.engine, Prompt(21), budget.depth, budget.nodes, budget.branching, width))
          << "width " << width;
    }
  }
}

TEST(TreeGrowthTest, EveryStepSendsWhatItFound) {
  Drafter drafter({.expand_width = 1});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(5), {.depth = 4, .nodes = 4, .branching = 1});
  for (uint32_t sent = 1; sent <= 4; ++sent) {
    EXPECT_TRUE(drafter.core.HasWork());
    drafter.core.Step();
    peer.Collect(drafter.core.TakeResponses());
    peer.Deliver();
    EXPECT_EQ(peer.tree().size(), sent);
    EXPECT_EQ(peer.exhausted(), sent == 4);
  }
  // The last node's children are not wanted, so it is not forwarded.
  EXPECT_FALSE(drafter.core.HasWork());
}

TEST(TreeGrowthTest, PredictionsComeWithWhatFollowsTheirNodes) {
  for (const uint32_t width : {1u, 8u}) {
    Drafter drafter({.expand_width = width});
    Peer peer(&drafter, 1);
    peer.PredictAcceptance();
    peer.Open(Prompt(5), {.depth = 4, .nodes = 12, .branching = 2});
    peer.RunDryAndDeliver();
    EXPECT_TRUE(peer.predicts());
    // Every node that has children has been forwarded.
    uint32_t parents = 0;
    for (const TreeNode& node : peer.tree().nodes()) {
      if (node.parent == 0) continue;
      EXPECT_TRUE(peer.predictions().contains(node.parent)) << "width " << width;
      ++parents;
    }
    EXPECT_GT(parents, 3u);
    // What is salvaged keeps its predictions, and what grows below has its own.
    const TokenId best = peer.tree().nodes()[0].token;
    peer.CommitTokens({best});
    peer.RunDryAndDeliver();
    EXPECT_GT(peer.predictions().size(), 4u);
  }
}

TEST(TreeGrowthTest, NobodyPredictsUnasked) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(5), {.depth = 4, .nodes = 12, .branching = 2});
  peer.RunDryAndDeliver();
  EXPECT_FALSE(peer.predicts());
  EXPECT_TRUE(peer.predictions().empty());
}

TEST(TreeGrowthTest, LookaheadAddsLevelsAndNodesInProportion) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(5), {.depth = 4, .nodes = 6, .branching = 1, .lookahead = 2});
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 6u);  // A chain: six levels, and room for nine nodes.
  EXPECT_EQ(peer.tree().nodes().back().depth, 6u);
  Peer wide(&drafter, 2);
  wide.Open(Prompt(5), {.depth = 4, .nodes = 6, .branching = 8, .lookahead = 2});
  wide.RunDryAndDeliver();
  EXPECT_EQ(wide.tree().size(), 9u);
  EXPECT_TRUE(wide.exhausted());
}

// What is drafted ahead stands beside what will be verified: there a round ends.
TEST(TreeGrowthTest, WhatIsDraftedAheadStandsBesideAChain) {
  for (const uint32_t width : {1u, 4u}) {
    Drafter drafter({.expand_width = width});
    Peer peer(&drafter, 1);
    peer.Open(Prompt(5), {.depth = 4,
                          .nodes = 4,
                          .branching = 4,
                          .lookahead = 4,
                          .shape = TreeShape::kChain,
                          .ahead_nodes = 40,
                          .ahead_branching = 3});
    peer.RunDryAndDeliver();
    EXPECT_TRUE(peer.exhausted());
    EXPECT_EQ(peer.tree().size(), 44u);
    std::map<NodeId, uint32_t> children;
    for (const TreeNode& node : peer.tree().nodes()) {
      // The chain comes first: its verifier may be waiting.
      if (node.id <= 4) {
        EXPECT_EQ(node.parent, node.id - 1);
      }
      EXPECT_LE(node.depth, 8u);
      ++children[node.parent];
    }
    uint32_t beside_the_chain = 0;
    for (const auto& [parent, count] : children) {
      EXPECT_LE(count, 3u) << "node " << parent;
      if (parent < 4) beside_the_chain += count - 1;
    }
    // Some of the chain's nodes are sure enough to have none.
    EXPECT_GE(beside_the_chain, 3u);
  }
}

// A round may wait for what it is to verify; what is drafted ahead has time, and comes in few messages.
TEST(TreeGrowthTest, WhatIsDraftedAheadIsGathered) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(5), {.depth = 4,
                        .nodes = 4,
                        .branching = 1,
                        .lookahead = 4,
                        .shape = TreeShape::kChain,
                        .ahead_nodes = 60,
                        .ahead_branching = 4});
  uint32_t sent = 0;
  uint32_t late_messages = 0;
  while (drafter.core.HasWork()) {
    drafter.core.Step();
    for (const auto& [link, response] : drafter.core.TakeResponses()) {
      const auto* const grow = std::get_if<Grow>(&response.event);
      if (grow == nullptr || grow->tokens.empty()) continue;
      if (sent >= 4) {
        ++late_messages;
        EXPECT_TRUE(grow->tokens.size() >= 16 || grow->exhausted) << grow->tokens.size() << " nodes";
      }
      sent += static_cast<uint32_t>(grow->tokens.size());
    }
    if (sent < 4) {
      EXPECT_GT(sent, 0u) << "every level of the chain is sent at once";
    }
  }
  EXPECT_EQ(sent, 64u);
  EXPECT_LE(late_messages, 4u);
}

// A commit that comes before a message is full finds what has been gathered all the same.
TEST(TreeGrowthTest, ACommitFindsWhatHasBeenGathered) {
  for (uint32_t steps = 5; steps < 10; ++steps) {
    Drafter drafter;
    Peer peer(&drafter, 1);
    const DraftBudget budget{.depth = 2,
                             .nodes = 2,
                             .branching = 1,
                             .lookahead = 6,
                             .shape = TreeShape::kChain,
                             .ahead_nodes = 60,
                             .ahead_branching = 4};
    peer.Open(Prompt(5), budget);
    for (uint32_t i = 0; i < steps; ++i) drafter.core.Step();
    peer.Collect(drafter.core.TakeResponses());
    peer.Deliver();
    const std::vector<TreeNode> before(peer.tree().nodes().begin(), peer.tree().nodes().end());
    ASSERT_GE(before.size(), 2u);
    // What lies below the chain's first node stays, whether it had been told before the commit or not.
    peer.CommitTokens({before[0].token});
    peer.RunDryAndDeliver();
    EXPECT_TRUE(peer.exhausted());
    EXPECT_EQ(peer.tree().size(), 62u) << steps << " steps";
  }
}

TEST(TreeGrowthTest, WhatIsDraftedAheadOfATreeIsBestFirst) {
  Drafter drafter({.expand_width = 1});
  Peer peer(&drafter, 1);
  peer.Open(
      Prompt(21),
      {.depth = 4, .nodes = 6, .branching = 4, .lookahead = 1, .ahead_nodes = 30, .ahead_branching = 4});
  peer.RunDryAndDeliver();
  EXPECT_TRUE(peer.exhausted());
  // But for steps of two nodes, which take the second best before what the best brings.
  const std::vector<ReferenceNode> best = BestFirst(drafter.engine, Prompt(21), 5, 36, 4, 1);
  EXPECT_EQ(Nodes(peer).size(), best.size());
  EXPECT_LE(Worth(Nodes(peer)), Worth(best) * 1.0001f);
  EXPECT_GT(Worth(Nodes(peer)), Worth(best) * 0.99f);
}

TEST(TreeGrowthTest, LayersHaveABreadthOfTheirOwn) {
  std::vector<size_t> sizes;
  for (const uint32_t ahead_nodes : {0u, 40u}) {
    Drafter drafter;
    Peer peer(&drafter, 1);
    peer.Open(Prompt(5), {.depth = 3,
                          .nodes = 6,
                          .branching = 2,
                          .lookahead = 3,
                          .shape = TreeShape::kEagle2,
                          .ahead_nodes = ahead_nodes,
                          .ahead_branching = 8});
    peer.RunDryAndDeliver();
    sizes.push_back(peer.tree().size());
  }
  EXPECT_EQ(sizes[0], sizes[1]);
}

TEST(TreeGrowthTest, ABudgetWithoutBoundsIsBounded) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(5), {.depth = UINT32_MAX,
                        .nodes = UINT32_MAX,
                        .branching = UINT32_MAX,
                        .lookahead = UINT32_MAX,
                        .ahead_nodes = UINT32_MAX,
                        .ahead_branching = UINT32_MAX});
  drafter.RunDry();
  uint32_t sent = 0;
  for (const auto& [link, response] : drafter.core.TakeResponses()) {
    const auto* grow = std::get_if<Grow>(&response.event);
    if (grow != nullptr) sent += static_cast<uint32_t>(grow->tokens.size());
  }
  EXPECT_EQ(sent, kMaxTreeNodes);
}

TEST(TreeGrowthTest, AVerifierThatNeverCommitsCostsNothingFurther) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(50), {.depth = 4, .nodes = 12, .branching = 3, .lookahead = 4});
  peer.RunDryAndDeliver();
  const uint64_t rows = drafter.engine.num_rows();
  for (int i = 0; i < 10; ++i) drafter.core.Step();
  EXPECT_EQ(drafter.engine.num_rows(), rows);
  EXPECT_THAT(drafter.core.TakeResponses(), IsEmpty());
}

TEST(TreeGrowthTest, AHitKeepsTheSubtreeAndItsKeysAndValues) {
  Drafter drafter({.expand_width = 1});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(30), {.depth = 4, .nodes = 4, .branching = 1, .lookahead = 4});
  peer.RunDryAndDeliver();
  ASSERT_EQ(peer.tree().size(), 8u);
  const uint64_t rows = drafter.engine.num_rows();
  TokenIds tokens;
  for (const TreeNode& node : peer.tree().nodes().first(3)) tokens.push_back(node.token);
  EXPECT_TRUE(peer.CommitTokens(tokens).new_root.has_value());
  EXPECT_EQ(peer.tree().size(), 5u);
  peer.RunDryAndDeliver();
  // Three more nodes, each found by forwarding one: nothing is computed twice.
  EXPECT_EQ(peer.tree().size(), 8u);
  EXPECT_EQ(drafter.engine.num_rows(), rows + 3);
  EXPECT_EQ(drafter.core.stats().counters.accepted_nodes, 3u);
  EXPECT_TRUE(peer.exhausted());
}

TEST(TreeGrowthTest, AMissStartsFreshAndEqualsABrandNewSession) {
  Drafter drafter;
  const DraftBudget budget{.depth = 4, .nodes = 12, .branching = 3};
  Peer peer(&drafter, 1);
  peer.Open(Prompt(30), budget);
  peer.RunDryAndDeliver();
  // Two tokens along the tree, then one that no candidate guessed.
  const TreeNode first = peer.tree().nodes()[0];
  const TreeNode* second = nullptr;
  for (const TreeNode& node : peer.tree().nodes()) {
    if (node.parent == first.id) second = &node;
  }
  ASSERT_NE(second, nullptr);
  const NodeId second_id = second->id;
  const TokenId second_token = second->token;
  TokenId miss = 0;
  while (peer.tree().FindChild(second_id, miss) != nullptr) ++miss;
  const uint64_t prefilled = drafter.core.stats().counters.prefill_tokens;
  EXPECT_FALSE(peer.CommitTokens({first.token, second_token, miss}).new_root.has_value());
  peer.RunDryAndDeliver();
  EXPECT_LE(drafter.core.stats().counters.prefill_tokens - prefilled, 2u);

  Drafter other;
  Peer fresh(&other, 1);
  fresh.Open(peer.tokens(), budget);
  fresh.RunDryAndDeliver();
  // The commit has told the first one what its scores are worth, which may change the order and no more.
  EXPECT_EQ(Paths(Nodes(peer)), Paths(Nodes(fresh)));
  EXPECT_TRUE(peer.exhausted());
}

TEST(TreeGrowthTest, NodesThatCrossedACommitAreSentAgain) {
  Drafter drafter({.expand_width = 1});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(30), {.depth = 3, .nodes = 3, .branching = 1, .lookahead = 3});
  drafter.RunDry();
  peer.Collect(drafter.core.TakeResponses());
  ASSERT_THAT(peer.inbox(), SizeIs(7));  // Opened, and six nodes.
  peer.Deliver(2);
  const TreeNode known = peer.tree().nodes()[0];
  const auto& crossing = std::get<Grow>(peer.inbox()[0].event);
  const uint64_t rows = drafter.engine.num_rows();
  // The bonus token is a node of the drafter's that has not arrived.
  EXPECT_FALSE(peer.CommitTokens({known.token, crossing.tokens[0]}).new_root.has_value());
  peer.Collect(drafter.core.TakeResponses());
  peer.Deliver();
  EXPECT_EQ(peer.tree().size(), 4u) << "what the drafter had is there again without a step";
  EXPECT_EQ(drafter.engine.num_rows(), rows);
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 6u);
  EXPECT_EQ(drafter.engine.num_rows(), rows + 2);
  EXPECT_EQ(drafter.core.stats().counters.stale_nodes, 4u);
}

TEST(TreeGrowthTest, ADepthOfZeroPausesAndABudgetResumes) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(40), {});
  peer.RunDryAndDeliver();
  EXPECT_TRUE(peer.opened());
  EXPECT_TRUE(peer.tree().empty());
  EXPECT_EQ(drafter.core.stats().counters.prefill_tokens, 40u);
  peer.CommitTokens({5});
  EXPECT_FALSE(drafter.core.HasWork());
  peer.budget() = {.depth = 3, .nodes = 5, .branching = 2};
  peer.CommitTokens({6, 7});
  peer.RunDryAndDeliver();
  EXPECT_EQ(Nodes(peer), BestFirst(drafter.engine, peer.tokens(), 3, 5, 2, 4));
  peer.budget() = {};
  peer.CommitTokens({peer.tree().nodes()[0].token});
  EXPECT_FALSE(drafter.core.HasWork());
  peer.Collect(drafter.core.TakeResponses());
  EXPECT_THAT(peer.inbox(), IsEmpty());
}

TEST(TreeGrowthTest, ASmallerBudgetHoldsBackWhatALargerOneFound) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(40), {.depth = 6, .nodes = 30, .branching = 4});
  peer.RunDryAndDeliver();
  peer.budget() = {.depth = 2, .nodes = 30, .branching = 1};
  const TreeNode best = peer.tree().nodes()[0];
  peer.CommitTokens({best.token});
  peer.RunDryAndDeliver();
  peer.budget() = {.depth = 6, .nodes = 40, .branching = 4};
  peer.CommitTokens({peer.tree().nodes()[0].token});
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 40u);
  EXPECT_TRUE(peer.exhausted());
}

TEST(TreeGrowthTest, WhatLostItsKeysAndValuesFindsEachChildOnce) {
  Drafter drafter({}, {.max_context = 32});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(24), {.depth = 10, .nodes = 1000, .branching = 32});
  drafter.RunDry();
  peer.Collect(drafter.core.TakeResponses());
  CandidateTree sent;
  for (const DraftResponse& response : peer.inbox()) {
    const auto* grow = std::get_if<Grow>(&response.event);
    for (size_t i = 0; grow != nullptr && i < grow->parents.size(); ++i) {
      sent.Add(grow->first_id + static_cast<NodeId>(i), grow->parents[i], grow->tokens[i], grow->scores[i]);
    }
  }
  const absl::Span<const TreeNode> nodes = sent.nodes();
  const auto deep = absl::c_find_if(nodes, [](const TreeNode& node) { return node.depth == 8; });
  ASSERT_NE(deep, nodes.end());
  const std::vector<NodeId> path = sent.Path(deep->id);
  TokenIds tokens;
  for (NodeId id : absl::MakeConstSpan(path).first(6)) tokens.push_back(sent.Find(id)->token);
  // All at once: the tree crosses a commit, which moves the window, and only one node of it is still wanted.
  peer.budget() = {.depth = 3, .nodes = 1, .branching = 32};
  EXPECT_FALSE(peer.CommitTokens(tokens).new_root.has_value());
  peer.RunDryAndDeliver();
  ASSERT_EQ(peer.tree().size(), 1u);
  ASSERT_EQ(peer.tree().nodes()[0].token, sent.Find(path[6])->token);
  // Its children come back once each, and not both as remembered and as found anew: the peer checks that.
  peer.budget() = {.depth = 7, .nodes = 1000, .branching = 32};
  EXPECT_TRUE(peer.CommitTokens({peer.tree().nodes()[0].token}).new_root.has_value());
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 1000u);
}

}  // namespace
}  // namespace tandem

#include "common/speculation/round_tree.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint32_t> ParentsIn(const RoundTree& tree) {
  std::vector<uint32_t> parents;
  for (const RoundNode& node : tree) parents.push_back(node.parent);
  return parents;
}

std::vector<TokenId> PathUp(const RoundTree& tree, uint32_t index) {
  TokenIds path = {99};
  CollectPathUp(tree.nodes(), index, &path);
  return path;
}

// Children 10 and 11 of the root; 12 and 13 below 10, 14 below 12, and 12 below 11. Ids have gaps: others
// were pruned or not selected.
RoundTree SixNodes() {
  return RoundTree::Of(
      DraftOrigin::kPartner,
      std::vector<TreeNode>{{.id = 3, .parent = 0, .token = 10, .depth = 1, .score = 0.5f},
                            {.id = 4, .parent = 0, .token = 11, .depth = 1, .score = 0.25f},
                            {.id = 7, .parent = 3, .token = 12, .depth = 2, .score = 0.5f},
                            {.id = 20, .parent = 3, .token = 13, .depth = 2, .score = 0.5f},
                            {.id = 21, .parent = 7, .token = 14, .depth = 3, .score = 0.5f},
                            {.id = 22, .parent = 4, .token = 12, .depth = 2, .score = 0.5f}});
}

TEST(RoundTreeTest, ParentsAreIndices) {
  const RoundTree tree = SixNodes();
  EXPECT_THAT(ParentsIn(tree), ElementsAre(RoundNode::kRoot, RoundNode::kRoot, 0, 0, 2, 1));
  EXPECT_EQ(tree[1].guesses.credited(), DraftOrigin::kPartner);
  EXPECT_EQ(tree[1].guesses.by(DraftOrigin::kPartner), 0.25f);
  EXPECT_EQ(tree[4].id, 21u) << "the drafter's own name for it";
}

TEST(RoundTreeTest, WhatIsKeptKeepsItsParents) {
  RoundTree tree = SixNodes();
  tree.Keep(std::vector<uint32_t>{1, 5});
  EXPECT_THAT(ParentsIn(tree), ElementsAre(RoundNode::kRoot, 0));
  EXPECT_EQ(tree[1].token, 12);
  tree = SixNodes();
  tree.Keep(std::vector<uint32_t>{0, 2, 4});
  EXPECT_THAT(ParentsIn(tree), ElementsAre(RoundNode::kRoot, 0, 1));
  EXPECT_THAT(PathUp(tree, 2), ElementsAre(14, 12, 10));
  tree.Truncate(1);
  EXPECT_EQ(tree.size(), 1u);
  tree.Keep({});
  EXPECT_TRUE(tree.empty());
}

TEST(RoundTreeTest, ChildrenAreFoundByParentAndToken) {
  const RoundTree tree = SixNodes();
  EXPECT_EQ(FindChild(tree.nodes(), RoundNode::kRoot, 11), 1u);
  EXPECT_EQ(FindChild(tree.nodes(), RoundNode::kRoot, 12), std::nullopt);
  EXPECT_EQ(FindChild(tree.nodes(), 0, 12), 2u);
  EXPECT_EQ(FindChild(tree.nodes(), 1, 12), 5u);
  EXPECT_EQ(FindChild(tree.nodes(), 5, 12), std::nullopt);
  EXPECT_EQ(FindChild({}, RoundNode::kRoot, 10), std::nullopt);
}

TEST(RoundTreeTest, PathsGoUpToTheRoot) {
  const RoundTree tree = SixNodes();
  EXPECT_THAT(PathUp(tree, 4), ElementsAre(14, 12, 10));
  EXPECT_THAT(PathUp(tree, 1), ElementsAre(11));
  EXPECT_THAT(PathUp(tree, RoundNode::kRoot), IsEmpty());
}

}  // namespace
}  // namespace tandem

#include "common/speculation/round_tree.h"
#include "common/base/node_index.h"

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

std::vector<TokenId> PathTo(const RoundTree& tree, uint32_t index) {
  TokenIds path = {99};
  CollectPath(tree.nodes(), index, &path);
  return path;
}

// Children 10 and 11 of the root; 12 and 13 below 10, 14 below the first 12, and 12 below 11.
RoundTree SixNodes() {
  RoundTree tree;
  tree.Add({.token = 10});
  tree.Add({.token = 11});
  tree.Add({.parent = 0, .token = 12, .depth = 2});
  tree.Add({.parent = 0, .token = 13, .depth = 2});
  tree.Add({.parent = 2, .token = 14, .depth = 3});
  tree.Add({.parent = 1, .token = 12, .depth = 2});
  return tree;
}

TEST(RoundTreeTest, TheFirstOriginIsCredited) {
  Guesses guesses = Guesses::Of(DraftOrigin::kLocal, 0.75f);
  EXPECT_EQ(guesses.credited(), DraftOrigin::kLocal);
  guesses.scores[static_cast<size_t>(DraftOrigin::kPartner)] = 0.25f;
  EXPECT_EQ(guesses.credited(), DraftOrigin::kPartner);
  EXPECT_EQ(guesses.by(DraftOrigin::kLocal), 0.75f);
  EXPECT_FALSE(guesses.IsBy(DraftOrigin::kDrafter));
}

TEST(RoundTreeTest, WhatIsKeptKeepsItsParents) {
  RoundTree tree = SixNodes();
  tree.Keep(std::vector<uint32_t>{1, 5});
  EXPECT_THAT(ParentsIn(tree), ElementsAre(kRootNode, 0));
  EXPECT_EQ(tree[1].token, 12);
  tree = SixNodes();
  tree.Keep(std::vector<uint32_t>{0, 2, 4});
  EXPECT_THAT(ParentsIn(tree), ElementsAre(kRootNode, 0, 1));
  EXPECT_THAT(PathTo(tree, 2), ElementsAre(10, 12, 14));
  tree.Truncate(1);
  EXPECT_EQ(tree.size(), 1u);
  tree.Keep({});
  EXPECT_TRUE(tree.empty());
}

TEST(RoundTreeTest, WhatIsBelowAnUnwantedNodeGoesUnasked) {
  RoundTree tree = SixNodes();
  std::vector<uint32_t> asked;
  const uint32_t removed = tree.KeepIf([&](uint32_t index, RoundNode& node) {
    asked.push_back(index);
    const uint32_t above = node.parent == kRootNode ? 100 : static_cast<uint32_t>(tree[node.parent].token);
    node.token += static_cast<TokenId>(above);
    return index != 0;
  });
  EXPECT_EQ(removed, 4u);
  EXPECT_THAT(asked, ElementsAre(0, 1, 5));
  EXPECT_THAT(ParentsIn(tree), ElementsAre(kRootNode, 0));
  EXPECT_THAT(PathTo(tree, 1), ElementsAre(111, 123)) << "what was changed is kept, and is seen below";
}

TEST(RoundTreeTest, ChildrenAreFoundByParentAndToken) {
  const RoundTree tree = SixNodes();
  EXPECT_EQ(FindChild(tree.nodes(), kRootNode, 11), 1u);
  EXPECT_EQ(FindChild(tree.nodes(), kRootNode, 12), std::nullopt);
  EXPECT_EQ(FindChild(tree.nodes(), 0, 12), 2u);
  EXPECT_EQ(FindChild(tree.nodes(), 1, 12), 5u);
  EXPECT_EQ(FindChild(tree.nodes(), 5, 12), std::nullopt);
  EXPECT_EQ(FindChild({}, kRootNode, 10), std::nullopt);
}

TEST(RoundTreeTest, PathsGoDownFromTheRoot) {
  const RoundTree tree = SixNodes();
  EXPECT_THAT(PathTo(tree, 4), ElementsAre(10, 12, 14));
  EXPECT_THAT(PathTo(tree, 1), ElementsAre(11));
  EXPECT_THAT(PathTo(tree, kRootNode), IsEmpty());
}

}  // namespace
}  // namespace tandem

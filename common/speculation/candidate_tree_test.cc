#include "common/speculation/candidate_tree.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::IsEmpty;

std::vector<NodeId> Ids(const CandidateTree& tree) {
  std::vector<NodeId> ids;
  for (const TreeNode& node : tree.nodes()) ids.push_back(node.id);
  return ids;
}

//        root
//       /    \      .
//      1      2
//     / \      \    .
//    3   5      4
//    |
//    6
CandidateTree Example() {
  CandidateTree tree;
  tree.Add(1, 0, 10, 0.5f);
  tree.Add(2, 0, 11, 0.25f);
  tree.Add(3, 1, 12, 0.5f);
  tree.Add(4, 2, 12, 1.0f);
  tree.Add(5, 1, 13, 0.25f);
  tree.Add(6, 3, 14, 0.5f);
  return tree;
}

TEST(CandidateTreeTest, KnowsDepthPathAndScores) {
  const CandidateTree tree = Example();
  EXPECT_EQ(tree.Find(6)->depth, 3u);
  EXPECT_THAT(tree.Find(6)->path_score, FloatEq(0.125f));
  EXPECT_THAT(tree.Path(6), ElementsAre(1, 3, 6));
  EXPECT_EQ(tree.FindChild(1, 13)->id, 5u);
  EXPECT_EQ(tree.FindChild(1, 11), nullptr);
  EXPECT_EQ(tree.FindChild(0, 11)->id, 2u);
  EXPECT_EQ(tree.Find(7), nullptr);
}

TEST(CandidateTreeTest, RerootKeepsTheSubtreeAtNewDepths) {
  CandidateTree tree = Example();
  tree.Reroot(1);
  EXPECT_THAT(Ids(tree), ElementsAre(3, 5, 6));
  EXPECT_EQ(tree.root_id(), 1u);
  EXPECT_EQ(tree.Find(3)->depth, 1u);
  EXPECT_THAT(tree.Find(6)->path_score, FloatEq(0.25f));
  EXPECT_THAT(tree.Path(6), ElementsAre(3, 6));
  EXPECT_EQ(tree.FindChild(1, 12), tree.FindChild(0, 12));
  // A message that crossed the commit still names the root by its node id.
  EXPECT_TRUE(tree.IsKnownParent(1));
  EXPECT_FALSE(tree.IsKnownParent(2));
  EXPECT_EQ(tree.Add(9, 1, 15, 1.0f).depth, 1u);
  tree.Reroot(6);
  EXPECT_THAT(Ids(tree), IsEmpty());
  EXPECT_EQ(tree.root_id(), 6u);
}

TEST(CandidateTreeTest, ClearMakesAFreshRoot) {
  CandidateTree tree = Example();
  tree.Reroot(1);
  tree.Clear();
  EXPECT_TRUE(tree.empty());
  EXPECT_EQ(tree.root_id(), 0u);
  EXPECT_FALSE(tree.IsKnownParent(1));
  EXPECT_EQ(tree.Add(12, 0, 3, 0.5f).depth, 1u);
}

}  // namespace
}  // namespace tandem

#include "common/speculation/candidate_tree.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "common/speculation/node_table.h"
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

TEST(PlaceOfIdTest, IsWhereASearchEnds) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    // Few gaps, many, or a large one.
    std::vector<NodeId> ids;
    NodeId next = random() % 4;
    for (size_t size = random() % 40; ids.size() < size; next += 1 + (random() % 4 == 0 ? random() % 5 : 0)) {
      if (random() % 30 == 0) next += 1'000'000'000;
      if (!ids.empty() && next <= ids.back()) break;
      ids.push_back(next);
    }
    std::vector<NodeId> wanted = {0, 1, UINT32_MAX};
    for (const NodeId id : ids) wanted.insert(wanted.end(), {id - 1, id, id + 1});
    for (const NodeId id : wanted) {
      const auto expected = std::lower_bound(ids.begin(), ids.end(), id) - ids.begin();
      EXPECT_EQ(PlaceOfId(ids, id, [](NodeId one) { return one; }), static_cast<size_t>(expected)) << id;
    }
  }
}

TEST(NodeTableTest, HoldsWhatAMapHolds) {
  std::mt19937 random(5);
  NodeTable<std::vector<int>> table;
  std::map<NodeId, std::vector<int>> expected;
  NodeId next = 1;
  for (int round = 0; round < 20'000; ++round) {
    if (random() % 8 < 4) {
      table.Add(next, {round});
      expected[next] = {round};
      next += 1 + (random() % 10 == 0 ? random() % 3 : 0);
    } else if (random() % 500 == 0) {
      // Ids begin anew in a table that is empty.
      table.EraseIf([](NodeId, const std::vector<int>&) { return true; });
      expected.clear();
      next = 1;
    } else if (random() % 40 == 0) {
      table.EraseIf([](NodeId id, const std::vector<int>&) { return id % 3 == 0; });
      std::erase_if(expected, [](const auto& entry) { return entry.first % 3 == 0; });
    } else {
      const NodeId id = next - std::min<NodeId>(next, random() % 60);
      table.Erase(id);
      expected.erase(id);
    }
    const NodeId id = next - std::min<NodeId>(next, random() % 60);
    const auto found = expected.find(id);
    ASSERT_EQ(table.Find(id) != nullptr, found != expected.end()) << round;
    if (found != expected.end()) {
      EXPECT_EQ(table.at(id), found->second);
    }
    ASSERT_EQ(table.size(), expected.size());
  }
  auto at = expected.begin();
  table.ForEach([&](NodeId id, std::vector<int>& value) {
    EXPECT_EQ(id, at->first);
    EXPECT_EQ(value, (at++)->second);
  });
  EXPECT_EQ(at, expected.end());
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

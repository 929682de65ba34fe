#include "verifier/draft_mirror.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using GrowResult = DraftMirror::GrowResult;

constexpr uint64_t kHash = 0xabc;

std::vector<NodeId> Ids(absl::Span<const TreeNode> nodes) {
  std::vector<NodeId> ids;
  for (const TreeNode& node : nodes) ids.push_back(node.id);
  return ids;
}

// Nodes 1 and 2 below the root, 3 below 1.
Grow FirstGrowth() {
  return {.epoch = 1,
          .seen_commit = 0,
          .prefix_hash = kHash,
          .first_id = 1,
          .parents = {0, 0, 1},
          .tokens = {10, 11, 12},
          .scores = {0.5f, 0.25f, 0.5f}};
}

class DraftMirrorTest : public ::testing::Test {
 protected:
  DraftMirrorTest() { mirror_.Open(/*commit_no=*/0, kHash); }

  // The message is refused as a violation that mentions `what`, and leaves the tree as it is.
  void ExpectInvalid(const Grow& grow, const std::string& what) {
    const std::vector<NodeId> before = Ids(mirror_.tree().nodes());
    const DraftMirror::GrowReport report = mirror_.OnGrow(grow);
    EXPECT_EQ(report.result, GrowResult::kInvalid) << what;
    EXPECT_THAT(report.violation, HasSubstr(what));
    EXPECT_EQ(Ids(mirror_.tree().nodes()), before);
  }

  DraftMirror mirror_{/*vocab_size=*/100};
};

TEST_F(DraftMirrorTest, GrowsAndSelectsTheBestNodesWithTheirParents) {
  EXPECT_EQ(mirror_.OnGrow(FirstGrowth()).added, 3u);
  EXPECT_THAT(Ids(mirror_.Select(10, 10)), ElementsAre(1, 2, 3));
  EXPECT_THAT(Ids(mirror_.Select(2, 10)), ElementsAre(1, 2));  // 2 and 3 score the same: the earlier one.
  EXPECT_THAT(Ids(mirror_.Select(10, 1)), ElementsAre(1, 2));
  EXPECT_THAT(mirror_.Select(0, 10), IsEmpty());
}

TEST_F(DraftMirrorTest, CommitKeepsTheSubtreeOfTheBonusToken) {
  mirror_.OnGrow(FirstGrowth());
  EXPECT_EQ(mirror_.Commit({10}, 1, kHash + 1), NodeId{1});
  EXPECT_THAT(Ids(mirror_.tree().nodes()), ElementsAre(3));
  EXPECT_EQ(mirror_.Commit({12, 50}, 2, kHash + 2), std::nullopt);
  EXPECT_TRUE(mirror_.tree().empty());
}

TEST_F(DraftMirrorTest, GrowthThatCrossedACommitIsAddedOrStale) {
  mirror_.OnGrow(FirstGrowth());
  mirror_.Commit({10}, 1, kHash + 1);
  // Sent before the drafter saw the commit: below the new root, below a pruned node, below the old root.
  const DraftMirror::GrowReport report = mirror_.OnGrow({.epoch = 1,
                                                         .seen_commit = 0,
                                                         .prefix_hash = kHash,
                                                         .first_id = 4,
                                                         .parents = {1, 2, 0, 4},
                                                         .tokens = {20, 21, 22, 23},
                                                         .scores = {0.5f, 0.5f, 0.5f, 0.5f}});
  EXPECT_EQ(report.result, GrowResult::kAccepted);
  EXPECT_EQ(report.added, 2u);
  EXPECT_EQ(report.stale, 2u);
  EXPECT_THAT(Ids(mirror_.tree().nodes()), ElementsAre(3, 4, 7));
  // Afterwards 0 means the new root.
  EXPECT_EQ(mirror_
                .OnGrow({.epoch = 1,
                         .seen_commit = 1,
                         .prefix_hash = kHash + 1,
                         .first_id = 8,
                         .parents = {0},
                         .tokens = {30},
                         .scores = {0.5f}})
                .added,
            1u);
  EXPECT_EQ(mirror_.tree().Find(8)->depth, 1u);
}

TEST_F(DraftMirrorTest, DuplicatesAndOldEpochsChangeNothing) {
  mirror_.OnGrow(FirstGrowth());
  EXPECT_EQ(mirror_.OnGrow(FirstGrowth()).result, GrowResult::kDuplicate);
  mirror_.Open(0, kHash);
  EXPECT_EQ(mirror_.OnGrow(FirstGrowth()).result, GrowResult::kStale);
  EXPECT_TRUE(mirror_.tree().empty());
}

TEST_F(DraftMirrorTest, AnotherPrefixNeedsAResync) {
  Grow grow = FirstGrowth();
  grow.prefix_hash = kHash + 1;
  EXPECT_EQ(mirror_.OnGrow(grow).result, GrowResult::kResyncNeeded);
  EXPECT_TRUE(mirror_.tree().empty());
}

TEST_F(DraftMirrorTest, ForgottenCommitsAreStale) {
  for (uint32_t commit = 1; commit <= 100; ++commit) mirror_.Commit({5}, commit, kHash + commit);
  EXPECT_EQ(mirror_.OnGrow(FirstGrowth()).result, GrowResult::kStale);
}

TEST_F(DraftMirrorTest, HostileGrowthIsRefusedWhole) {
  mirror_.OnGrow(FirstGrowth());
  const Grow good = {.epoch = 1,
                     .seen_commit = 0,
                     .prefix_hash = kHash,
                     .first_id = 4,
                     .parents = {3, 4},
                     .tokens = {20, 21},
                     .scores = {0.5f, 0.5f}};
  const auto with = [&good](auto change) {
    Grow grow = good;
    change(grow);
    return grow;
  };
  ExpectInvalid(with([](Grow& g) { g.tokens.pop_back(); }), "equal lengths");
  ExpectInvalid(with([](Grow& g) { g.parents = {}, g.tokens = {}, g.scores = {}, g.exhausted = false; }),
                "0 nodes");
  ExpectInvalid(with([](Grow& g) {
                  g.parents.assign(kMaxGrowNodes + 1, 3);
                  g.tokens.assign(kMaxGrowNodes + 1, 1);
                  g.scores.assign(kMaxGrowNodes + 1, 0.5f);
                }),
                "nodes in one message");
  ExpectInvalid(with([](Grow& g) { g.first_id = 0; }), "first id 0");
  ExpectInvalid(with([](Grow& g) { g.first_id = UINT32_MAX; }), "first id");
  ExpectInvalid(with([](Grow& g) { g.first_id = 3, g.parents = {1, 1}; }), "ids start again at 3");
  ExpectInvalid(with([](Grow& g) { g.seen_commit = 1; }), "commit 1 was seen");
  ExpectInvalid(with([](Grow& g) { g.tokens[1] = 100; }), "has token 100");
  ExpectInvalid(with([](Grow& g) { g.tokens[1] = -1; }), "has token -1");
  ExpectInvalid(with([](Grow& g) { g.scores[1] = std::numeric_limits<float>::quiet_NaN(); }), "has score");
  ExpectInvalid(with([](Grow& g) { g.scores[1] = 0.0f; }), "has score 0");
  ExpectInvalid(with([](Grow& g) { g.scores[1] = 1.5f; }), "has score 1.5");
  ExpectInvalid(with([](Grow& g) { g.parents[0] = 4; }), "has parent 4");  // Its own parent.
  ExpectInvalid(with([](Grow& g) { g.parents[0] = 5; }), "has parent 5");  // A cycle of two.
  ExpectInvalid(with([](Grow& g) { g.parents = {3, 3}, g.tokens = {20, 20}; }), "repeats a token");
  EXPECT_EQ(mirror_.OnGrow(good).added, 2u);  // Nothing of the above has stuck.
}

TEST_F(DraftMirrorTest, TreesAreBounded) {
  // A chain that is too deep, in messages that are each fine.
  DraftMirror::GrowReport report;
  NodeId id = 1;
  while (id < 2 * kMaxTreeDepth && report.result == GrowResult::kAccepted) {
    report = mirror_.OnGrow({.epoch = 1,
                             .prefix_hash = kHash,
                             .first_id = id,
                             .parents = {id - 1},
                             .tokens = {1},
                             .scores = {1.0f}});
    ++id;
  }
  EXPECT_EQ(report.result, GrowResult::kInvalid);
  EXPECT_EQ(mirror_.tree().size(), kMaxTreeDepth);
}

TEST_F(DraftMirrorTest, ExhaustedHoldsUntilTheNextCommit) {
  Grow grow = FirstGrowth();
  grow.exhausted = true;
  mirror_.OnGrow(grow);
  EXPECT_TRUE(mirror_.exhausted());
  mirror_.Commit({10}, 1, kHash + 1);
  EXPECT_FALSE(mirror_.exhausted());
}

}  // namespace
}  // namespace tandem

#include "verifier/session/draft_mirror.h"
#include "common/base/node_index.h"

#include <cmath>
#include <functional>
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

template <class Nodes>
std::vector<NodeId> Ids(const Nodes& nodes) {
  std::vector<NodeId> ids;
  for (const auto& node : nodes) ids.push_back(node.id);
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

  RoundTree Select(const DraftMirror::Selection& limits) const {
    return mirror_.Select(limits, DraftOrigin::kDrafter, [](const TreeNode& node) { return node.score; });
  }

  DraftMirror mirror_{/*vocab_size=*/100};
};

TEST_F(DraftMirrorTest, GrowsAndSelectsTheBestNodesWithTheirParents) {
  EXPECT_EQ(mirror_.OnGrow(FirstGrowth()).added, 3u);
  EXPECT_THAT(Ids(Select({.max_nodes = 10, .max_depth = 10})), ElementsAre(1, 2, 3));
  EXPECT_THAT(Ids(Select({.max_nodes = 2, .max_depth = 10})),
              ElementsAre(1, 2));  // 2 and 3 score the same: the earlier one.
  EXPECT_THAT(Ids(Select({.max_nodes = 10, .max_depth = 1})), ElementsAre(1, 2));
  EXPECT_TRUE(Select({.max_nodes = 0, .max_depth = 10}).empty());
}

TEST_F(DraftMirrorTest, SelectsTheBestChildrenOfEachNode) {
  // Below the root 0.6 and 0.3, below the first 0.4, 0.3 and 0.2, below the second 0.9.
  mirror_.OnGrow({.epoch = 1,
                  .prefix_hash = FirstGrowth().prefix_hash,
                  .first_id = 1,
                  .parents = {0, 0, 1, 1, 1, 2},
                  .tokens = {5, 6, 7, 8, 9, 7},
                  .scores = {0.3f, 0.6f, 0.4f, 0.3f, 0.2f, 0.9f}});
  const auto select = [this](const DraftMirror::Selection& limits) { return Ids(Select(limits)); };
  EXPECT_THAT(select({}), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(select({.max_children = 1}), ElementsAre(2, 6));
  EXPECT_THAT(select({.max_children = 2}), ElementsAre(1, 2, 3, 4, 6));
  const RoundTree tree = Select({.max_children = 1});
  EXPECT_EQ(tree[1].parent, 0u) << "parents are indices, not the drafter's ids";
  EXPECT_FLOAT_EQ(tree[1].path_score, 0.6f * 0.9f);
  EXPECT_EQ(tree[1].guesses.credited(), DraftOrigin::kDrafter);
  EXPECT_THAT(select({.max_nodes = 3, .max_children = 2}), ElementsAre(1, 2, 6));
  EXPECT_THAT(select({.max_depth = 1, .max_children = 1}), ElementsAre(2));
  EXPECT_THAT(select({.max_children = 0}), IsEmpty());
}

// Nodes 1 and 2 below the root, 3 below 1, with scores 0.5, 0.25 and 0.5.
TEST_F(DraftMirrorTest, StopsWhereTheBestPathIsReachedTooRarely) {
  EXPECT_EQ(mirror_.StopDepth(0.3), std::nullopt);
  mirror_.OnGrow(FirstGrowth());
  // Of a drafter that predicts nothing, by its scores.
  EXPECT_EQ(mirror_.StopDepth(0.6), 1u);
  EXPECT_EQ(mirror_.StopDepth(0.3), 2u);
  EXPECT_EQ(mirror_.StopDepth(0.2), std::nullopt);
  EXPECT_EQ(mirror_.StopDepth(0.0), std::nullopt);

  mirror_.OnOpened(/*predicts_acceptance=*/true);
  EXPECT_EQ(mirror_.StopDepth(0.6), std::nullopt) << "nothing is known yet";
  Grow grow = FirstGrowth();
  grow.first_id = 4;
  grow.parents = {3};
  grow.tokens = {20};
  grow.scores = {0.9f};
  grow.predictions = {{.node = 1, .acceptance = 0.9f}, {.node = 3, .acceptance = 0.4f}};
  ASSERT_EQ(mirror_.OnGrow(grow).added, 1u);
  EXPECT_EQ(mirror_.StopDepth(0.95), 1u);
  EXPECT_EQ(mirror_.StopDepth(0.4), 2u);
  EXPECT_EQ(mirror_.StopDepth(0.3), std::nullopt);
  // A better sibling reaches the level after all.
  Grow later = FirstGrowth();
  later.first_id = 5;
  later.parents.clear();
  later.tokens.clear();
  later.scores.clear();
  later.predictions = {{.node = 2, .acceptance = 0.99f}};
  ASSERT_EQ(mirror_.OnGrow(later).result, GrowResult::kAccepted);
  EXPECT_EQ(mirror_.StopDepth(0.95), 2u);
  // Relative to the new root.
  ASSERT_EQ(mirror_.Commit(TokenIds{10}, 1, kHash + 1), 1u);
  EXPECT_EQ(mirror_.StopDepth(0.45), 1u);
  mirror_.Commit(TokenIds{99}, 2, kHash + 2);
  EXPECT_EQ(mirror_.StopDepth(0.99), std::nullopt);
}

TEST_F(DraftMirrorTest, RefusesPredictionsThatCannotBe) {
  for (const auto& [node, acceptance, what] :
       {std::tuple(0u, 0.5f, "node 0, which was never sent"),
        std::tuple(4u, 0.5f, "node 4, which was never sent"), std::tuple(1u, 0.0f, "expected (0, 1]"),
        std::tuple(1u, 1.5f, "expected (0, 1]"), std::tuple(1u, std::nanf(""), "expected (0, 1]")}) {
    Grow grow = FirstGrowth();
    grow.predictions = {{.node = node, .acceptance = acceptance}};
    ExpectInvalid(grow, what);
  }
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
  ExpectInvalid(with([](Grow& g) {
                  g.first_id = 9, g.parents = {3, 7};
                }),
                "has parent 7, which was never sent");
  ExpectInvalid(with([](Grow& g) { g.parents = {3, 3}, g.tokens = {20, 20}; }), "repeats a token");
  EXPECT_EQ(mirror_.OnGrow(good).added, 2u);  // Nothing of the above has stuck.
}

// What was not taken was sent all the same.
TEST_F(DraftMirrorTest, GrowthBelowWhatWasStaleIsStale) {
  for (uint32_t commit = 1; commit <= 100; ++commit) mirror_.Commit({5}, commit, kHash + commit);
  ASSERT_EQ(mirror_.OnGrow(FirstGrowth()).result, GrowResult::kStale);
  const auto report = mirror_.OnGrow({.epoch = 1,
                                      .seen_commit = 100,
                                      .prefix_hash = kHash + 100,
                                      .first_id = 4,
                                      .parents = {3},
                                      .tokens = {20},
                                      .scores = {0.5f}});
  EXPECT_EQ(report.result, GrowResult::kAccepted);
  EXPECT_EQ(report.stale, 1u);
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

// Distributions of the root and of node 1, and what FirstGrowth draws from them.
Grow FirstDraws() {
  Grow grow = FirstGrowth();
  grow.distributions = {{.parent = 0, .tokens = {10, 11, 13}, .probabilities = {0.5f, 0.25f, 0.25f}},
                        {.parent = 1, .tokens = {12}, .probabilities = {1.0f}}};
  return grow;
}

class SampledMirrorTest : public DraftMirrorTest {
 protected:
  SampledMirrorTest() { mirror_.Open(/*commit_no=*/0, kHash, /*sampled=*/true); }

  static Grow OfThisEpoch(Grow grow) {
    grow.epoch = 2;
    return grow;
  }
  // Like ExpectInvalid, and nothing is left of what came with it.
  void ExpectBadDraws(const std::function<void(Grow&)>& spoil, const std::string& what) {
    Grow grow = OfThisEpoch(FirstDraws());
    spoil(grow);
    ExpectInvalid(grow, what);
  }
};

TEST_F(SampledMirrorTest, TellsHowWhatIsSelectedWasDrawn) {
  EXPECT_EQ(mirror_.OnGrow(OfThisEpoch(FirstDraws())).added, 3u);
  const RoundTree all = Select({.max_nodes = 10, .max_depth = 10});
  const std::vector<DrawGroup> groups = mirror_.DrawsOf(all.nodes());
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].parent, kRootNode);
  EXPECT_THAT(groups[0].distribution->tokens, ElementsAre(10, 11, 13));
  ASSERT_EQ(groups[0].children.size(), 2u);
  EXPECT_EQ(groups[0].children[1].token, 11);
  EXPECT_EQ(groups[0].children[1].node, 1u);
  EXPECT_EQ(groups[1].parent, 0u);
  EXPECT_EQ(groups[1].children[0].node, 2u);
  // What was drawn before is told even when it is not verified; what was drawn after is of no matter.
  RoundTree second = all;
  second.Keep(std::vector<uint32_t>{1});
  const std::vector<DrawGroup> of_second = mirror_.DrawsOf(second.nodes());
  ASSERT_EQ(of_second.size(), 1u);
  ASSERT_EQ(of_second[0].children.size(), 2u);
  EXPECT_EQ(of_second[0].children[0].token, 10);
  EXPECT_EQ(of_second[0].children[0].node, std::nullopt);
  RoundTree first = all;
  first.Truncate(1);
  EXPECT_EQ(mirror_.DrawsOf(first.nodes())[0].children.size(), 1u);
}

TEST_F(SampledMirrorTest, DistributionsFollowTheRoot) {
  mirror_.OnGrow(OfThisEpoch(FirstDraws()));
  EXPECT_EQ(mirror_.Commit({10}, 1, kHash + 1), NodeId{1});
  RoundTree all = Select({.max_nodes = 10, .max_depth = 10});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_THAT(mirror_.DrawsOf(all.nodes())[0].distribution->tokens, ElementsAre(12));
  // A younger child of what is now the root, drawn from what is known; and one from before, of the old root,
  // whose distribution must not be mistaken for the new one's.
  const DraftMirror::GrowReport report =
      mirror_.OnGrow({.epoch = 2,
                      .seen_commit = 0,
                      .prefix_hash = kHash,
                      .first_id = 4,
                      .parents = {0, 3},
                      .tokens = {13, 50},
                      .scores = {0.5f, 0.5f},
                      .distributions = {{.parent = 0, .tokens = {13}, .probabilities = {1.0f}},
                                        {.parent = 3, .tokens = {50}, .probabilities = {1.0f}}}});
  EXPECT_EQ(report.added, 1u);
  EXPECT_EQ(report.stale, 1u);
  all = Select({.max_nodes = 10, .max_depth = 10});
  EXPECT_THAT(mirror_.DrawsOf(all.nodes())[0].distribution->tokens, ElementsAre(12));
  EXPECT_THAT(mirror_.DrawsOf(all.nodes())[1].distribution->tokens, ElementsAre(50));
  EXPECT_EQ(mirror_.Commit({99}, 2, kHash + 2), std::nullopt);
  // Of a fresh root nothing is known.
  const DraftMirror::GrowReport fresh = mirror_.OnGrow({.epoch = 2,
                                                        .seen_commit = 2,
                                                        .prefix_hash = kHash + 2,
                                                        .first_id = 6,
                                                        .parents = {0},
                                                        .tokens = {12},
                                                        .scores = {0.5f}});
  EXPECT_EQ(fresh.result, GrowResult::kInvalid);
}

TEST_F(SampledMirrorTest, HostileDistributionsAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectBadDraws([](Grow& grow) { grow.distributions.clear(); }, "which has no draft distribution");
  ExpectBadDraws([](Grow& grow) { grow.distributions.pop_back(); }, "which has no draft distribution");
  ExpectBadDraws([](Grow& grow) { grow.tokens[1] = 14; }, "token 14, which its parent's draft distribution");
  ExpectBadDraws([](Grow& grow) { grow.distributions[1].parent = 0; }, "two draft distributions");
  ExpectBadDraws([=](Grow& grow) { grow.distributions[0].probabilities[0] = nan; }, "probability nan");
  ExpectBadDraws([](Grow& grow) { grow.distributions[0].probabilities[0] = 0.0f; }, "probability 0");
  ExpectBadDraws([](Grow& grow) { grow.distributions[0].probabilities[0] = 0.7f; }, "sums to 1.2");
  ExpectBadDraws([](Grow& grow) { grow.distributions[0].tokens[2] = 100; }, "token 100");
  ExpectBadDraws([](Grow& grow) { grow.distributions[0].tokens[2] = 10; }, "token 10 at 2");
  ExpectBadDraws([](Grow& grow) { grow.distributions[0].tokens.resize(2000, 1); }, "2000 tokens");
  ExpectBadDraws([](Grow& grow) { grow.tokens[1] = 10; }, "repeats a token");
  // None of that has left anything behind, and a second word on the same parent is one too many.
  EXPECT_EQ(mirror_.OnGrow(OfThisEpoch(FirstDraws())).added, 3u);
  Grow again = OfThisEpoch(FirstDraws());
  again.first_id = 4;
  again.parents = {0};
  again.tokens = {13};
  again.scores = {0.5f};
  again.distributions.pop_back();
  ExpectInvalid(again, "a second draft distribution of node 0");
}

TEST_F(DraftMirrorTest, DistributionsThatNobodyAskedForAreRefused) {
  ExpectInvalid(FirstDraws(), "2 draft distributions, which were not requested");
}

}  // namespace
}  // namespace tandem

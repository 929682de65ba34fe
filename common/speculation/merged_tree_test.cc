#include "common/speculation/merged_tree.h"
#include "common/base/node_index.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/speculation/source_attributes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

constexpr DraftOrigin kDrafter = DraftOrigin::kDrafter;
constexpr DraftOrigin kPartner = DraftOrigin::kPartner;
constexpr DraftOrigin kLocal = DraftOrigin::kLocal;

// A chain of tokens, each as likely as `score`.
RoundTree Chain(DraftOrigin origin, const std::vector<TokenId>& tokens, float score) {
  RoundTree tree;
  float path = 1.0f;
  for (const TokenId token : tokens) {
    path *= score;
    tree.Add({.parent = tree.empty() ? kRootNode : tree.size() - 1,
              .token = token,
              .depth = tree.size() + 1,
              .score = score,
              .path_score = path,
              .guesses = Guesses::Of(origin, score)});
  }
  return tree;
}

std::vector<TokenId> Tokens(const RoundTree& tree) {
  std::vector<TokenId> tokens;
  for (const RoundNode& node : tree) tokens.push_back(node.token);
  return tokens;
}

TEST(SourceAttributesTest, AreNamedAfterTheirSources) {
  for (size_t i = 0; i < kNumSourceKinds; ++i) {
    EXPECT_EQ(kDraftTokensAttributes[i], absl::StrCat("tandem.", kSourceNames[i], ".draft_tokens"));
    EXPECT_EQ(kAcceptedTokensAttributes[i], absl::StrCat("tandem.", kSourceNames[i], ".accepted_tokens"));
  }
}

TEST(MergedTreeTest, ATokenOfTwoIsTheFirstOnes) {
  MergedTree tree;
  tree.Add(Chain(kDrafter, {5, 6}, 0.5f));
  tree.Add(Chain(kLocal, {5, 7, 8}, 0.75f));
  const RoundTree merged = std::move(tree).Take(16);
  // By path score: 5 at 0.75, then of its children, which together claim 1.25, 7 at 0.6 of that and 6 at 0.4.
  EXPECT_THAT(Tokens(merged), ElementsAre(5, 7, 8, 6));
  EXPECT_FLOAT_EQ(merged[0].path_score, 0.75f);
  EXPECT_FLOAT_EQ(merged[1].path_score, 0.45f);
  EXPECT_FLOAT_EQ(merged[3].path_score, 0.3f);
  EXPECT_EQ(merged[1].parent, 0u);
  EXPECT_EQ(merged[3].parent, 0u);
  EXPECT_EQ(merged[0].guesses.credited(), kDrafter);
  EXPECT_FLOAT_EQ(merged[0].guesses.by(kDrafter), 0.5f);
  EXPECT_FLOAT_EQ(merged[0].guesses.by(kLocal), 0.75f);
  EXPECT_FALSE(merged[0].guesses.IsBy(kPartner));
  EXPECT_EQ(merged[1].guesses.credited(), kLocal);
  EXPECT_FLOAT_EQ(merged[0].score, 0.5f) << "the score of whoever is credited";
}

TEST(MergedTreeTest, TheBestStayWithTheirParents) {
  MergedTree tree;
  tree.Add(Chain(kDrafter, {1, 2, 3}, 0.4f));
  tree.Add(Chain(kLocal, {4, 5, 6}, 0.6f));
  const RoundTree merged = std::move(tree).Take(3);
  EXPECT_THAT(Tokens(merged), ElementsAre(4, 1, 5));
  EXPECT_EQ(merged[2].parent, 0u);
}

TEST(MergedTreeTest, OneOriginStaysAsItIs) {
  MergedTree tree;
  tree.Add(Chain(kDrafter, {1, 2, 3}, 0.5f));
  const RoundTree merged = std::move(tree).Take(16);
  EXPECT_THAT(Tokens(merged), ElementsAre(1, 2, 3));
  EXPECT_FLOAT_EQ(merged[2].path_score, 0.125f);
  EXPECT_TRUE(MergedTree().Take(4).empty());
  EXPECT_TRUE(MergedTree().empty());
}

class OutcomeTest : public ::testing::Test {
 protected:
  // The drafter has 1 > 2 > 3, the verifier 1 > 2 > 4 > 5.
  OutcomeTest() {
    MergedTree tree;
    tree.Add(Chain(kDrafter, {1, 2, 3}, 0.9f));
    tree.Add(Chain(kLocal, {1, 2, 4, 5}, 0.8f));
    tree_ = std::move(tree).Take(16);
  }

  OriginOutcome Of(DraftOrigin origin, const std::vector<TokenId>& accepted, bool last_known = true) const {
    std::vector<uint32_t> places;
    for (TokenId token : accepted) {
      for (uint32_t i = 0; i < tree_.size(); ++i) {
        if (tree_[i].token == token) places.push_back(i);
      }
    }
    return OutcomeOf(origin, tree_, places, last_known);
  }

  RoundTree tree_;
};

TEST_F(OutcomeTest, EachIsToldItsOwn) {
  const OriginOutcome drafter = Of(kDrafter, {1, 2, 4});
  EXPECT_EQ(drafter.guessed, 3u);
  EXPECT_EQ(drafter.credited, 3u);
  EXPECT_EQ(drafter.depth, 3u);
  EXPECT_EQ(drafter.accepted, 2u);
  EXPECT_EQ(drafter.credited_accepted, 2u);
  EXPECT_TRUE(drafter.rejected) << "3 was wrong, although the walk went on";
  const OriginOutcome local = Of(kLocal, {1, 2, 4});
  EXPECT_EQ(local.guessed, 4u);
  EXPECT_EQ(local.credited, 2u);
  EXPECT_EQ(local.accepted, 3u) << "it guessed the drafter's tokens as well";
  EXPECT_EQ(local.credited_accepted, 1u);
  EXPECT_TRUE(local.rejected) << "5 was wrong";
  const OriginOutcome partner = Of(kPartner, {1, 2, 4});
  EXPECT_EQ(partner.guessed, 0u);
  EXPECT_FALSE(partner.rejected);
}

TEST_F(OutcomeTest, NothingIsRejectedWhereThereWasNothing) {
  EXPECT_FALSE(Of(kDrafter, {1, 2, 3}).rejected) << "there were no more candidates";
  EXPECT_TRUE(Of(kLocal, {1, 2, 3}).rejected) << "4 was wrong";
  EXPECT_FALSE(Of(kLocal, {1, 2, 4, 5}).rejected);
}

TEST_F(OutcomeTest, AnUnknownChoiceRejectsNothing) {
  EXPECT_FALSE(Of(kDrafter, {1, 2}, /*last_known=*/false).rejected);
  EXPECT_FALSE(Of(kLocal, {1, 2, 4}, /*last_known=*/false).rejected);
  EXPECT_TRUE(Of(kDrafter, {1, 2, 4}, /*last_known=*/false).rejected);
}

TEST_F(OutcomeTest, AFirstTokenThatIsWrongIsARejection) {
  const OriginOutcome drafter = Of(kDrafter, {});
  EXPECT_EQ(drafter.accepted, 0u);
  EXPECT_TRUE(drafter.rejected);
  EXPECT_FALSE(Of(kPartner, {}).rejected);
}

}  // namespace
}  // namespace tandem

// Medusa heads in a session: one row gives a whole tree, and what it gave outlives a commit.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "drafter/testing/head_drafting_test_fixture.h"

namespace tandem {
namespace {

using ::testing::IsEmpty;

// As in the models of the fixture.
constexpr size_t kPositions = 3;

class MedusaDraftingTest : public HeadDraftingTest {
 protected:
  explicit MedusaDraftingTest(uint32_t num_blocks = 64)
      : HeadDraftingTest(num_blocks, 32 << 20, HeadConfig::Kind::kMedusa) {}

  // The text with the states of its last token but one, all drafted.
  void OpenWithStates(TokenIds text) {
    Open(std::move(text));
    SendFeatures(Last() - 1, Last());
    RunDry();
  }

  struct Guess {
    TokenIds path;
    float path_score = 1.0f;
  };

  // Every path through the product of the heads' guesses, as if `text_` had its states; of each level at most
  // `width` nodes have children.
  std::vector<Guess> AllPaths(size_t depth, size_t width) {
    std::vector<Guess> all;
    std::vector<Guess> level = {{}};
    for (size_t i = 0; i < std::min(depth, kPositions); ++i) {
      std::vector<Guess> next;
      const TokenProbabilities tokens =
          plain_.Guesses(text_, TokenIds(i, 0), 0, budget_.branching, sampling_);
      for (const Guess& guess : level) {
        for (const TokenProbability& token : tokens) {
          next.push_back({guess.path, guess.path_score * token.probability});
          next.back().path.push_back(token.token);
        }
      }
      all.insert(all.end(), next.begin(), next.end());
      std::ranges::stable_sort(next, std::greater(), &Guess::path_score);
      next.resize(std::min(next.size(), width));
      level = std::move(next);
    }
    std::ranges::stable_sort(all, std::greater(), &Guess::path_score);
    return all;
  }

  static std::set<TokenIds> BestOf(std::vector<Guess> guesses, size_t count) {
    std::set<TokenIds> best;
    for (size_t i = 0; i < std::min(count, guesses.size()); ++i) best.insert(guesses[i].path);
    return best;
  }

  // The best so many of those that the drafter sent.
  std::set<TokenIds> BestSent(size_t count) const {
    std::vector<Guess> sent;
    for (const TreeNode& node : tree_.nodes()) {
      Guess guess{.path_score = node.path_score};
      for (const NodeId id : tree_.Path(node.id)) guess.path.push_back(tree_.Find(id)->token);
      sent.push_back(std::move(guess));
    }
    std::ranges::stable_sort(sent, std::greater(), &Guess::path_score);
    return BestOf(std::move(sent), count);
  }

  // A token that is no child of the root.
  TokenId Miss() const {
    TokenId token = 60;
    while (tree_.FindChild(0, token) != nullptr) --token;
    return token;
  }

  size_t Deepest() const {
    size_t deepest = 0;
    for (const TreeNode& node : tree_.nodes()) deepest = std::max<size_t>(deepest, node.depth);
    return deepest;
  }
};

TEST_F(MedusaDraftingTest, OneStateAndOneStepAreATree) {
  Open(Text(20));
  ASSERT_TRUE(opened_.has_value() && opened_->features.has_value());
  EXPECT_THAT(opened_->features->layers, IsEmpty());
  EXPECT_TRUE(opened_->features->final_norm);
  EXPECT_EQ(opened_->features->first_position, 18u) << "nothing before the last token but one is of use";
  EXPECT_FALSE(core_.HasWork());
  SendFeatures(18, 19);
  ASSERT_TRUE(core_.HasWork());
  core_.Step();
  EXPECT_FALSE(core_.HasWork());
  Read();
  // With a level of lookahead: 12 nodes for a depth of 4 are 15 for 5, of which there are 3.
  EXPECT_EQ(CheckTree(), 15);
  EXPECT_LE(Deepest(), kPositions);
  EXPECT_EQ(core_.stats().counters.prefill_tokens, 1u);
}

TEST_F(MedusaDraftingTest, OneTokenIsNothingToDraftFrom) {
  Open({5});
  EXPECT_FALSE(core_.HasWork());
  EXPECT_EQ(opened_->features->first_position, 0u);
  SendCommit({7, 9}, /*with_features=*/true);
  RunDry();
  EXPECT_EQ(CheckTree(), 15);
}

TEST_F(MedusaDraftingTest, TheTreeIsTheBestOfTheProductOfTheHeads) {
  for (const float temperature : {0.0f, 0.9f}) {
    for (const uint32_t nodes : {1u, 5u, 16u, 40u}) {
      sampling_ = {.temperature = temperature, .seed = 5};
      budget_ = {.depth = 3, .nodes = nodes, .branching = 4};
      OpenWithStates(Text(9, nodes));
      EXPECT_EQ(BestSent(nodes), BestOf(AllPaths(3, 1000), nodes)) << nodes << " at " << temperature;
      EXPECT_EQ(CheckTree(), static_cast<int>(nodes));
    }
  }
}

TEST_F(MedusaDraftingTest, Eagle2ExpandsTheBestOfEachLevelAndReranks) {
  // Deeper trees than there are heads for too.
  for (const uint32_t depth : {2u, 3u, 7u}) {
    for (const uint32_t nodes : {4u, 9u, 20u}) {
      budget_ = {.depth = depth, .nodes = nodes, .branching = 3, .shape = TreeShape::kEagle2};
      OpenWithStates(Text(9, nodes));
      EXPECT_EQ(BestSent(nodes), BestOf(AllPaths(depth, 3), nodes)) << nodes << " to depth " << depth;
    }
  }
}

TEST_F(MedusaDraftingTest, AChainIsEveryHeadsFirstGuess) {
  budget_ = {.depth = 8, .nodes = 8, .branching = 3, .shape = TreeShape::kChain};
  OpenWithStates(Text(9));
  ASSERT_EQ(tree_.size(), kPositions) << "there is nothing past the last head";
  TokenIds chain;
  for (size_t i = 0; i < kPositions; ++i) {
    chain.push_back(plain_.Guesses(text_, TokenIds(i, 0), 0, 1)[0].token);
  }
  EXPECT_EQ(BestPath(kPositions), chain);
}

TEST_F(MedusaDraftingTest, StatesThatComeWithACommitMakeAWholeNewTreeAfterAMiss) {
  OpenWithStates(Text(9));
  for (int round = 0; round < 5; ++round) {
    TokenIds tokens = BestPath(static_cast<size_t>(round) % 3);
    tokens.push_back(tokens.empty() ? Miss() : 60);
    SendCommit(tokens, /*with_features=*/true);
    if (tree_.size() > 0) continue;  // 60 was in it.
    RunDry();
    EXPECT_EQ(CheckTree(), 15) << "round " << round;
  }
  EXPECT_THAT(resyncs_, IsEmpty());
}

// Later heads have guessed what comes after the committed tokens, whatever these are.
TEST_F(MedusaDraftingTest, UntilStatesComeOlderGuessesDraft) {
  OpenWithStates(Text(9));
  const TokenIds old_text = text_;
  SendCommit({Miss()}, /*with_features=*/false);
  RunDry();
  ASSERT_FALSE(tree_.empty());
  EXPECT_EQ(Deepest(), kPositions - 1);
  for (const TreeNode& node : tree_.nodes()) {
    // One level further down than where it stood.
    const auto guesses = plain_.Guesses(old_text, TokenIds(node.depth, 0), 0, budget_.branching);
    const auto same = std::ranges::find(guesses, node.token, &TokenProbability::token);
    ASSERT_NE(same, guesses.end());
    EXPECT_EQ(same->probability, node.score);
  }
  // More tokens than there are heads: nothing is left of what it knew.
  SendCommit({Miss(), 3, 5}, /*with_features=*/false);
  RunDry();
  EXPECT_TRUE(tree_.empty());
  SendFeatures(Last() - 4, Last());
  RunDry();
  EXPECT_EQ(CheckTree(), 15);
}

TEST_F(MedusaDraftingTest, AHitKeepsItsNodesAndGrowsFromTheNewState) {
  budget_ = {.depth = 3, .nodes = 12, .branching = 3, .lookahead = 3};
  OpenWithStates(Text(9));
  const size_t before = tree_.size();
  SendCommit(BestPath(1), /*with_features=*/true);
  const size_t kept = tree_.size();
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, before);
  RunDry();
  EXPECT_GT(tree_.size(), kept);
  EXPECT_EQ(Deepest(), kPositions);
  // What is new has the new heads' scores.
  int from_new_state = 0;
  for (const TreeNode& node : tree_.nodes()) {
    const auto guesses = plain_.Guesses(text_, TokenIds(node.depth - 1, 0), 0, budget_.branching);
    const auto same = std::ranges::find(guesses, node.token, &TokenProbability::token);
    if (same != guesses.end() && same->probability == node.score) ++from_new_state;
  }
  EXPECT_GE(from_new_state, static_cast<int>(tree_.size() - kept));
}

TEST_F(MedusaDraftingTest, AResyncNeedsTheLastStateAlone) {
  OpenWithStates(Text(20));
  SendCommit(BestPath(2), /*with_features=*/true);
  RunDry();
  Open(text_);
  EXPECT_EQ(opened_->features->first_position, Last() - 1);
  SendFeatures(Last() - 1, Last());
  RunDry();
  EXPECT_EQ(CheckTree(), 15);
}

TEST_F(MedusaDraftingTest, ATextOfAnyLengthIsDraftedFor) {
  OpenWithStates(Text(4 * kHeadContext));
  EXPECT_EQ(CheckTree(), 15);
  for (int round = 0; round < 2 * static_cast<int>(kHeadContext); ++round) {
    SendCommit({Miss()}, /*with_features=*/true);
    RunDry();
  }
  EXPECT_EQ(CheckTree(), 15);
  EXPECT_THAT(resyncs_, IsEmpty());
  EXPECT_TRUE(core_.CheckBlocks().ok());
}

// Children are drawn from the head's distribution, which is the same for every node of a level.
TEST_F(MedusaDraftingTest, SampledDraftsSendEachLevelsDistribution) {
  sampling_ = {.temperature = 0.8f, .seed = 3};
  text_ = Text(9);
  OpenSession open = MakeOpen();
  open.sampled_drafts = true;
  Send(open);
  ++epoch_;
  SendFeatures(Last() - 1, Last());
  while (core_.HasWork()) core_.Step();
  std::vector<std::vector<DraftDistribution>> of_level(kPositions);
  for (auto& [link, response] : core_.TakeResponses()) {
    const auto* grow = std::get_if<Grow>(&response.event);
    if (grow == nullptr) continue;
    for (size_t i = 0; i < grow->tokens.size(); ++i) {
      tree_.Add(grow->first_id + static_cast<NodeId>(i), grow->parents[i], grow->tokens[i], grow->scores[i]);
    }
    for (const DraftDistribution& distribution : grow->distributions) {
      const TreeNode* const parent = tree_.Find(distribution.parent);
      of_level[parent == nullptr ? 0 : parent->depth].push_back(distribution);
    }
  }
  EXPECT_EQ(tree_.size(), 15u);
  const TargetSampler sampler(sampling_, engine_->config().vocab_size, {});
  for (size_t depth = 0; depth < kPositions; ++depth) {
    ASSERT_FALSE(of_level[depth].empty());
    std::vector<float> logits = plain_.LevelLogits(text_, depth);
    const auto expected = sampler.MostLikely(absl::MakeSpan(logits), 0, 32);
    for (const DraftDistribution& distribution : of_level[depth]) {
      ASSERT_EQ(distribution.tokens.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(distribution.tokens[i], expected[i].token);
        EXPECT_EQ(distribution.probabilities[i], expected[i].probability);
      }
    }
  }
}

TEST_F(MedusaDraftingTest, StatesThatAreNotNumbersEndTheSession) {
  Open(Text(9));
  Features features = StatesOf(Last() - 1, Last());
  features.states.replace(2, 2, "\xff\x7f");
  Send(features);
  RunDry();
  EXPECT_EQ(refused_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(core_.CheckBlocks().ok());
}

// One block holds one session's last token.
class CrowdedMedusaTest : public MedusaDraftingTest {
 protected:
  CrowdedMedusaTest() : MedusaDraftingTest(/*num_blocks=*/1) {}
};

TEST_F(CrowdedMedusaTest, AParkedSessionAsksForItsStateAgain) {
  OpenWithStates(Text(30));
  EXPECT_EQ(CheckTree(), 15);
  const DraftBudget budget = budget_;
  budget_.nodes = 0;
  SendCommit({Miss()}, /*with_features=*/true);
  RunDry();
  OpenSession other = MakeOpen();
  other.budget = budget;
  core_.OnRequest(kVerifierLink, {.session = kSession + 1, .event = other});
  EXPECT_GE(core_.stats().counters.parked_sessions, 1u);
  budget_ = budget;
  SendCommit({59}, /*with_features=*/true);
  core_.OnRequest(kVerifierLink, {.session = kSession + 1, .event = CloseSession{}});
  RunDry();
  if (!resyncs_.empty()) Open(text_);
  SendFeatures(opened_.has_value() ? opened_->features->first_position : Last() - 1, Last());
  RunDry();
  EXPECT_EQ(CheckTree(), 15);
  EXPECT_TRUE(core_.CheckBlocks().ok());
}

}  // namespace
}  // namespace tandem

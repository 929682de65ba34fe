// DFlash heads in a session: the target's states of the whole text in, and one row gives a whole tree.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "drafter/testing/head_drafting_test_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// As in the models of the fixture.
constexpr size_t kGuessed = 3;

class DFlashDraftingTest : public HeadDraftingTest {
 protected:
  explicit DFlashDraftingTest(uint32_t num_blocks = 64, int32_t markov_rank = 0)
      : HeadDraftingTest(num_blocks, 32 << 20, HeadConfig::Kind::kDFlash, markov_rank) {}

  // The text with all its states, drafted.
  void OpenWithStates(TokenIds text) {
    Open(std::move(text));
    SendFeatures(0, Last());
    RunDry();
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

TEST_F(DFlashDraftingTest, AWholeTextsStatesAndOneStepAreATree) {
  Open(Text(20));
  ASSERT_TRUE(opened_.has_value() && opened_->features.has_value());
  EXPECT_THAT(opened_->features->layers, ElementsAre(1u, 3u));
  EXPECT_FALSE(opened_->features->final_norm);
  EXPECT_EQ(opened_->features->first_position, 0u);
  EXPECT_FALSE(core_.HasWork());
  SendFeatures(0, 18);
  RunDry();
  EXPECT_TRUE(tree_.empty()) << "the anchor's own state is missing";
  SendFeatures(18, 19);
  ASSERT_TRUE(core_.HasWork());
  core_.Step();
  EXPECT_FALSE(core_.HasWork());
  Read();
  // With a level of lookahead: 12 nodes for a depth of 4 are 15 for 5, of which there are 3.
  EXPECT_EQ(CheckTree(), 15);
  EXPECT_EQ(Deepest(), kGuessed);
  EXPECT_EQ(core_.stats().counters.prefill_tokens, 19u);
}

TEST_F(DFlashDraftingTest, OneTokenIsNothingToDraftFrom) {
  Open({5});
  EXPECT_FALSE(core_.HasWork());
  SendCommit({7, 9}, /*with_features=*/true);
  RunDry();
  EXPECT_EQ(CheckTree(), 15);
}

// A slot's guesses hold for every parent: a node's children are those of its level.
TEST_F(DFlashDraftingTest, SampledAndGreedyTreesAreOfTheBlocksGuesses) {
  for (const float temperature : {0.0f, 0.9f}) {
    sampling_ = {.temperature = temperature, .seed = 5};
    budget_ = {.depth = 3, .nodes = 30, .branching = 4};
    OpenWithStates(Text(33));
    EXPECT_EQ(CheckTree(), 30);
  }
}

// What was accepted is read again from the target's states, and the next block sees it.
TEST_F(DFlashDraftingTest, EveryCommitWithStatesMakesATreeOfTheWholeText) {
  OpenWithStates(Text(9));
  for (int round = 0; round < 6; ++round) {
    TokenIds tokens = BestPath(static_cast<size_t>(round) % 4);
    tokens.push_back(tokens.empty() ? Miss() : 60);
    const NodeId before = tree_.nodes().empty() ? 0 : tree_.nodes().back().id;
    SendCommit(tokens, /*with_features=*/true);
    RunDry();
    EXPECT_GT(CheckTree(/*window_start=*/1, before + 1), 0) << "round " << round;
  }
  EXPECT_THAT(resyncs_, IsEmpty());
}

// The rest of a block is drafted ahead of the states that the next one reads.
TEST_F(DFlashDraftingTest, UntilStatesComeTheRestOfTheBlockDrafts) {
  OpenWithStates(Text(9));
  const TokenIds old_text = text_;
  SendCommit({Miss()}, /*with_features=*/false);
  RunDry();
  ASSERT_FALSE(tree_.empty());
  EXPECT_EQ(Deepest(), kGuessed - 1);
  for (const TreeNode& node : tree_.nodes()) {
    // One level further down than where it stood.
    const auto guesses = plain_.Guesses(old_text, TokenIds(node.depth, 0), 1, budget_.branching);
    const auto same = std::ranges::find(guesses, node.token, &TokenProbability::token);
    ASSERT_NE(same, guesses.end());
    EXPECT_EQ(same->probability, node.score);
  }
  SendCommit({Miss(), 3, 5}, /*with_features=*/false);
  RunDry();
  EXPECT_TRUE(tree_.empty());
  SendFeatures(Last() - 4, Last());
  RunDry();
  EXPECT_EQ(CheckTree(), 15);
}

TEST_F(DFlashDraftingTest, AResyncComputesOnlyWhatIsNew) {
  OpenWithStates(Text(30));
  const uint64_t before = core_.stats().counters.prefill_tokens;
  SendCommit({Miss()}, /*with_features=*/false);
  Open(text_);
  EXPECT_EQ(opened_->features->first_position, Last() - 1);
  SendFeatures(Last() - 1, Last());
  RunDry();
  EXPECT_EQ(CheckTree(), 15);
  EXPECT_EQ(core_.stats().counters.prefill_tokens, before + 1);
}

// A full window ends the session until it is opened again, with a window of three quarters.
TEST_F(DFlashDraftingTest, AFullWindowStartsAgain) {
  OpenWithStates(Text(kHeadContext - 8));
  for (int round = 0; round < 12 && resyncs_.empty(); ++round) {
    SendCommit({Miss()}, /*with_features=*/true);
    RunDry();
  }
  ASSERT_THAT(resyncs_, SizeIs(1));
  Open(text_);
  const uint32_t window_start = opened_->features->first_position + 1;
  EXPECT_EQ(window_start, text_.size() - kHeadContext * 3 / 4);
  SendFeatures(window_start - 1, Last());
  RunDry();
  EXPECT_EQ(CheckTree(window_start), 15);
}

TEST_F(DFlashDraftingTest, StatesThatAreNotNumbersEndTheSession) {
  Open(Text(9));
  Features features = StatesOf(0, Last());
  features.states.replace(2, 2, "\xff\x7f");
  Send(features);
  RunDry();
  EXPECT_EQ(refused_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(core_.CheckBlocks().ok());
}

// A DSpark head's guesses depend on the token above them, so that branches differ.
class DSparkDraftingTest : public DFlashDraftingTest {
 protected:
  DSparkDraftingTest() : DFlashDraftingTest(64, /*markov_rank=*/5) {}
};

TEST_F(DSparkDraftingTest, EveryBranchHasTheGuessesBehindItsOwnToken) {
  for (const float temperature : {0.0f, 0.9f}) {
    sampling_ = {.temperature = temperature, .seed = 5};
    budget_ = {.depth = 3, .nodes = 30, .branching = 4};
    OpenWithStates(Text(33));
    EXPECT_EQ(CheckTree(), 30);
    // Some token below two nodes of one level has two scores.
    std::map<std::pair<uint32_t, TokenId>, float> scores;
    bool differs = false;
    for (const TreeNode& node : tree_.nodes()) {
      const auto [known, is_new] = scores.insert({{node.depth, node.token}, node.score});
      differs = differs || (!is_new && known->second != node.score);
    }
    EXPECT_TRUE(differs);
  }
}

TEST_F(DSparkDraftingTest, TheRestOfABlockDependsOnWhatWasCommitted) {
  OpenWithStates(Text(9));
  const TokenIds old_text = text_;
  const TokenId miss = Miss();
  SendCommit({miss}, /*with_features=*/false);
  RunDry();
  int below_root = 0;
  for (const TreeNode& node : tree_.nodes()) {
    if (node.depth != 1) continue;
    ++below_root;
    const auto guesses = plain_.Guesses(old_text, {miss}, 1, budget_.branching);
    const auto same = std::ranges::find(guesses, node.token, &TokenProbability::token);
    ASSERT_NE(same, guesses.end());
    EXPECT_EQ(same->probability, node.score);
  }
  EXPECT_GT(below_root, 0);
  SendFeatures(Last() - 1, Last());
  RunDry();
  EXPECT_GT(CheckTree(1, tree_.nodes().back().id), 0);
}

}  // namespace
}  // namespace tandem

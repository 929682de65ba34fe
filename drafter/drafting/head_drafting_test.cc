// A draft head in a session: which states its rows read, and what becomes of the tree while they are on their
// way. Scores are compared with those of a head that computes every text anew.

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "drafter/testing/head_drafting_test_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(HeadDraftingTest, SaysWhatItReadsAndWaitsForIt) {
  Open(Text(20));
  ASSERT_TRUE(opened_.has_value() && opened_->features.has_value());
  EXPECT_THAT(opened_->features->layers, ElementsAre(1, 3));
  EXPECT_FALSE(opened_->features->final_norm);
  EXPECT_EQ(opened_->features->first_position, 0u);
  EXPECT_FALSE(core_.HasWork());

  SendFeatures(0, 12);
  RunDry();
  EXPECT_TRUE(tree_.empty()) << "the root's row has no states yet";
  SendFeatures(12, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
  EXPECT_EQ(core_.stats().counters.feature_bytes, 19u * 2 * kTargetWidth * 2);
}

TEST_F(HeadDraftingTest, OneTokenIsNothingToDraftFrom) {
  Open({5});
  EXPECT_FALSE(core_.HasWork());
  SendCommit({7}, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, AFreshRootIsComputedFromTheStatesThatComeWithTheCommit) {
  Open(Text(9));
  SendFeatures(0, Last());
  RunDry();
  // Accepted in part, then a token that was not in the tree.
  TokenIds tokens = BestPath(2);
  ASSERT_EQ(tokens.size(), 2u);
  tokens.push_back(
      tree_.FindChild(tree_.FindChild(tree_.FindChild(0, tokens[0])->id, tokens[1])->id, 60) == nullptr ? 60
                                                                                                        : 59);
  SendCommit(tokens, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
  EXPECT_TRUE(resyncs_.empty());
}

TEST_F(HeadDraftingTest, AHitIsGoneOnWithAndThenComputedAgain) {
  Open(Text(9));
  SendFeatures(0, Last());
  RunDry();
  const TokenIds tokens = BestPath(2);
  SendCommit(tokens, /*with_features=*/false);
  const size_t kept = tree_.size();
  EXPECT_GT(kept, 0u);
  RunDry();
  EXPECT_GT(tree_.size(), kept) << "the tree grows while the states are on their way";

  // The states come; from the next fresh root on all is as if they had come at once.
  SendFeatures(Last() - 2, Last());
  RunDry();
  SendCommit({60}, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, AfterAHitTheTreeGrowsByTheTargetsStates) {
  Open(Text(9));
  SendFeatures(0, Last());
  RunDry();
  const NodeId last_id = std::ranges::max(tree_.nodes(), {}, &TreeNode::id).id;
  SendCommit(BestPath(1), /*with_features=*/true);
  ASSERT_FALSE(tree_.empty());
  RunDry();
  const auto below_old = std::ranges::count_if(tree_.nodes(), [&](const TreeNode& node) {
    return node.id > last_id && node.parent != 0 && node.parent <= last_id;
  });
  EXPECT_GT(below_old, 0) << "nodes that grew from what stood in for the states have new children";
  EXPECT_GE(CheckTree(/*window_start=*/1, last_id + 1), below_old);
}

TEST_F(HeadDraftingTest, SeveralCommitsMayGoByBeforeStatesCome) {
  Open(Text(9));
  SendFeatures(0, Last());
  RunDry();
  const uint32_t sent = Last();
  for (int i = 0; i < 3; ++i) {
    const TokenIds tokens = BestPath(1);
    ASSERT_EQ(tokens.size(), 1u);
    SendCommit(tokens, /*with_features=*/false);
    RunDry();
  }
  SendCommit({60}, /*with_features=*/false);
  RunDry();
  EXPECT_TRUE(tree_.empty());
  SendFeatures(sent, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, TheWindowBeginsBehindStatesThatTheVerifierHasNot) {
  Open(Text(20));
  SendFeatures(7, Last());
  RunDry();
  EXPECT_GE(CheckTree(/*window_start=*/8), 12);
  // Old ones are of no use any more.
  SendFeatures(0, 7);
  SendCommit({60}, /*with_features=*/true);
  RunDry();
  EXPECT_GE(CheckTree(/*window_start=*/8), 12);
}

TEST_F(HeadDraftingTest, WhatComesTwiceOrOfAnotherEpochIsIgnored) {
  Open(Text(20));
  SendFeatures(0, 10);
  SendFeatures(0, 10);
  SendFeatures(4, Last());
  Features old = StatesOf(0, 3);
  old.epoch = epoch_ - 1;
  Send(old);
  RunDry();
  EXPECT_GE(CheckTree(), 12);
  EXPECT_EQ(core_.stats().counters.ignored_features, 1u);
}

TEST_F(HeadDraftingTest, AResyncKeepsWhatWasComputedFromTheSameText) {
  Open(Text(20));
  SendFeatures(0, Last());
  RunDry();
  Open(Text(20));
  // The root's own row is computed anew.
  EXPECT_EQ(opened_->features->first_position, Last() - 1);
  SendFeatures(Last() - 1, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);

  TokenIds other = Text(20);
  other[0] = (other[0] + 1) % 61;
  Open(other);
  EXPECT_EQ(opened_->features->first_position, 0u) << "every row depends on the first token";
  SendFeatures(0, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, TheNextSessionWithTheTextFindsItInTheCache) {
  Open(Text(40));
  SendFeatures(0, Last());
  RunDry();
  Send(CloseSession{});
  epoch_ += 10;
  Open(Text(40));
  EXPECT_EQ(opened_->features->first_position, 32u) << "two blocks of 16 rows";
  SendFeatures(32, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, AFullWindowBeginsAnew) {
  Open(Text(kHeadContext - 6));
  SendFeatures(0, Last());
  RunDry();
  while (resyncs_.empty()) {
    ASSERT_LT(text_.size(), 2 * kHeadContext);
    SendCommit({60}, /*with_features=*/true);
    RunDry();
  }
  EXPECT_THAT(resyncs_[0], HasSubstr("starts again"));
  Open(text_);
  const uint32_t window_start = static_cast<uint32_t>(text_.size()) - kHeadContext * 3 / 4;
  EXPECT_EQ(opened_->features->first_position, window_start - 1);
  SendFeatures(window_start - 1, Last());
  RunDry();
  EXPECT_GE(CheckTree(window_start), 12);
}

TEST_F(HeadDraftingTest, WrongStatesEndTheSessionAndNothingElse) {
  struct Case {
    const char* error;
    void (*damage)(Features*);
  };
  const std::vector<Case> cases = {
      {"expected rows of 32 bytes", [](Features* features) { features->states.pop_back(); }},
      {"of type 1", [](Features* features) { features->type = FeatureType::kInt8; }},
      {"expected positions below 19", [](Features* features) { features->first_position += 1; }},
      {"at position 0 is not finite", [](Features* features) { features->states.replace(2, 2, "\xff\x7f"); }},
  };
  for (const Case& bad : cases) {
    refused_ = absl::OkStatus();
    Open(Text(20));
    Features features = StatesOf(0, Last());
    bad.damage(&features);
    Send(features);
    RunDry();
    EXPECT_EQ(refused_.code(), absl::StatusCode::kInvalidArgument) << bad.error;
    EXPECT_THAT(std::string(refused_.message()), HasSubstr(bad.error));
    EXPECT_TRUE(core_.CheckBlocks().ok());
  }
  refused_ = absl::OkStatus();
  Open(Text(20));
  SendFeatures(0, Last());
  RunDry();
  EXPECT_TRUE(refused_.ok()) << refused_;
  EXPECT_GE(CheckTree(), 12);
}

TEST_F(HeadDraftingTest, AnotherTargetIsRefused) {
  struct Case {
    const char* error;
    void (*damage)(OpenSession*);
  };
  const std::vector<Case> cases = {
      {"which this verifier does not offer", [](OpenSession* open) { open->target_hidden_size = 0; }},
      {"for targets of width 8, the target has 16", [](OpenSession* open) { open->target_hidden_size = 16; }},
      {"after 3 layers, the target has 2", [](OpenSession* open) { open->target_layers = 2; }},
      {"fingerprint 000000000000004d, this one has 000000000000004e",
       [](OpenSession* open) { open->target_fingerprint = 78; }},
  };
  text_ = Text(5);
  for (const Case& bad : cases) {
    OpenSession open = MakeOpen();
    bad.damage(&open);
    Send(open);
    Read();
    EXPECT_EQ(refused_.code(), absl::StatusCode::kFailedPrecondition) << bad.error;
    EXPECT_THAT(std::string(refused_.message()), HasSubstr(bad.error));
  }
  OpenSession unknown = MakeOpen();
  unknown.target_fingerprint = 0;
  opened_.reset();
  Send(unknown);
  Read();
  EXPECT_TRUE(opened_.has_value());
}

// Four blocks hold one session's window, not two.
class CrowdedHeadTest : public HeadDraftingTest {
 protected:
  CrowdedHeadTest() : HeadDraftingTest(/*num_blocks=*/4) {}
};

TEST_F(CrowdedHeadTest, AParkedSessionAsksForItsStatesAgain) {
  Open(Text(30));
  SendFeatures(0, Last());
  RunDry();
  EXPECT_GT(tree_.size(), 0u);
  // Another session takes all blocks while this one pauses.
  budget_.nodes = 0;
  SendCommit({60}, /*with_features=*/true);
  OpenSession other = MakeOpen();
  other.tokens = Text(50, /*seed=*/2);
  other.prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, other.tokens);
  other.budget = {.depth = 4, .nodes = 12, .branching = 3};
  core_.OnRequest(kVerifierLink, {.session = kSession + 1, .event = other});
  for (int i = 0; i < 100 && core_.HasWork(); ++i) core_.Step();
  // Itself for a moment, then this one.
  EXPECT_EQ(core_.stats().counters.parked_sessions, 2u);
  budget_.nodes = 12;
  SendCommit({59}, /*with_features=*/true);
  core_.OnRequest(kVerifierLink, {.session = kSession + 1, .event = CloseSession{}});
  RunDry();
  ASSERT_EQ(resyncs_.size(), 1u);
  EXPECT_THAT(resyncs_[0], HasSubstr("parked"));
  Open(text_);
  SendFeatures(opened_->features->first_position, Last());
  RunDry();
  EXPECT_GE(CheckTree(), 1);
  EXPECT_TRUE(core_.CheckBlocks().ok());
}

class RandomHeadTest : public HeadDraftingTest,
                       public testing::WithParamInterface<std::tuple<HeadConfig::Kind, int>> {
 protected:
  RandomHeadTest() : HeadDraftingTest(/*num_blocks=*/64, 32 << 20, std::get<0>(GetParam())) {}
};

// Commits of all kinds, states at once, later or not at all, and opens in between: a fresh root that has all
// its states is always drafted from as a plain head does.
TEST_P(RandomHeadTest, DraftsAsAPlainHeadDoes) {
  const int seed = std::get<1>(GetParam());
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto below = [&](size_t bound) { return random() % bound; };
  Open(Text(2 + below(30), static_cast<uint64_t>(seed)));
  uint32_t sent = opened_->features->first_position;
  int checked = 0;
  const auto catch_up = [&] {
    while (sent < Last()) {
      const auto end = std::min<uint32_t>(Last(), sent + 1 + static_cast<uint32_t>(below(9)));
      SendFeatures(sent, end);
      sent = end;
      if (below(2) == 0 && core_.HasWork()) core_.Step();
    }
  };
  for (int i = 0; i < 40; ++i) {
    if (below(3) > 0) catch_up();
    if (below(4) > 0) RunDry();
    Read();
    budget_.nodes = 1 + static_cast<uint32_t>(below(14));
    budget_.depth = 1 + static_cast<uint32_t>(below(4));
    TokenIds tokens = BestPath(below(4));
    if (tokens.empty() || below(2) == 0) tokens.push_back(static_cast<TokenId>(below(61)));
    const bool with_features = sent == Last() && below(2) == 0;
    SendCommit(tokens, with_features);
    if (with_features) sent = Last();
    ASSERT_TRUE(refused_.ok()) << refused_;
    if (!resyncs_.empty() || below(12) == 0) {
      resyncs_.clear();
      Open(text_);
      sent = opened_->features->first_position;
    }
    ASSERT_TRUE(core_.CheckBlocks().ok()) << core_.CheckBlocks();
    if (text_.size() > kHeadContext - 12) break;
    if (below(3) == 0) {
      catch_up();
      RunDry();
      budget_ = {.depth = 3, .nodes = 8, .branching = 3};
      const bool known = sent == Last();
      TokenId fresh = 60;
      while (tree_.FindChild(0, fresh) != nullptr) --fresh;
      SendCommit({fresh}, known);
      if (known) sent = Last();
      if (!resyncs_.empty()) continue;
      RunDry();
      checked += CheckTree();
    }
  }
  EXPECT_GT(checked, 0);
  Send(CloseSession{});
  const DraftCounters counters = core_.stats().counters;
  EXPECT_EQ(counters.sent_nodes, counters.accepted_nodes + counters.pruned_nodes + counters.stale_nodes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomHeadTest,
                         testing::Combine(testing::Values(HeadConfig::Kind::kEagle3, HeadConfig::Kind::kMtp,
                                                          HeadConfig::Kind::kMedusa),
                                          testing::Range(1, 31)),
                         [](const auto& param_info) {
                           return absl::StrCat(HeadKindName(std::get<0>(param_info.param)), "_",
                                               std::get<1>(param_info.param));
                         });

}  // namespace
}  // namespace tandem

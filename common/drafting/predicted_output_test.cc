#include "common/drafting/predicted_output.h"
#include "common/base/node_index.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr ProposalLimits kChainLimits = {.depth = 4, .nodes = 4, .branching = 1};

// The tokens of the best path from the root.
TokenIds BestPath(const PredictedOutput& source, const ProposalLimits& limits = kChainLimits) {
  TokenIds path;
  uint32_t at = kRootNode;
  const std::vector<ProposedNode> nodes = source.Propose(limits);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent != at) continue;
    path.push_back(nodes[i].token);
    at = i;
  }
  return path;
}

TokenIds FirstTokens(const PredictedOutput& source) {
  TokenIds tokens;
  for (const ProposedNode& node : source.Propose({.depth = 1, .nodes = 8, .branching = 8}))
    tokens.push_back(node.token);
  return tokens;
}

TokenIds Counting(TokenId first, int count) {
  TokenIds tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(PredictedOutputTest, GoesAlongWhileTheOutputAgrees) {
  PredictedOutput source(Counting(10, 8));
  EXPECT_THAT(BestPath(source), ElementsAre(10, 11, 12, 13));
  source.Observe({10, 11, 12});
  EXPECT_THAT(BestPath(source), ElementsAre(13, 14, 15, 16));
  source.Observe({13, 14});
  EXPECT_THAT(BestPath(source), ElementsAre(15, 16, 17));
  source.Observe({15, 16, 17});
  EXPECT_THAT(BestPath(source), IsEmpty());
  source.Observe({99});
  EXPECT_THAT(BestPath(source), IsEmpty());
}

TEST(PredictedOutputTest, AnEmptyPredictionProposesNothing) {
  PredictedOutput source({});
  EXPECT_THAT(BestPath(source), IsEmpty());
  source.Observe({1, 2, 3});
  EXPECT_THAT(BestPath(source), IsEmpty());
}

TEST(PredictedOutputTest, TheLongerItAgreesTheSurerItIs) {
  PredictedOutput source(Counting(10, 60));
  float before = 0.0f;
  for (int i = 0; i < 20; ++i) {
    const float score = source.Propose(kChainLimits)[0].score;
    EXPECT_GE(score, before);
    EXPECT_LE(score, 1.0f);
    before = score;
    source.Observe({10 + i});
  }
  EXPECT_GT(before, 0.9f);
}

TEST(PredictedOutputTest, RightAfterAnotherTokenItGuessesReplacedAndPutIn) {
  PredictedOutput source(Counting(10, 20));
  source.Observe({10, 11, 12, 13, 77});
  EXPECT_THAT(FirstTokens(source), UnorderedElementsAre(14, 15));
}

TEST(PredictedOutputTest, FindsItsPlaceAfterEveryKindOfEdit) {
  const TokenIds prediction = Counting(10, 40);
  const struct {
    const char* what;
    TokenIds output;
    TokenId next;
  } edits[] = {
      {"replaced", {10, 11, 12, 13, 77, 15, 16}, 17},  {"put in", {10, 11, 12, 13, 77, 78, 79, 14, 15}, 16},
      {"left out", {10, 11, 12, 13, 20, 21}, 22},      {"moved back", {10, 11, 12, 13, 14, 15, 11, 12}, 13},
      {"another beginning", {77, 78, 79, 10, 11}, 12},
  };
  for (const auto& edit : edits) {
    PredictedOutput source(prediction);
    source.Observe(edit.output);
    ASSERT_FALSE(BestPath(source).empty()) << edit.what;
    EXPECT_EQ(BestPath(source)[0], edit.next) << edit.what;
  }
}

// Of places whose ends match equally the nearest one counts, of others the one that matches longest.
TEST(PredictedOutputTest, TheNearestOfTheLongestMatches) {
  // Twice the same line, with something else between.
  TokenIds prediction = {1, 2, 3, 50, 51, 52, 53, 4, 5, 6, 50, 51, 52, 60};
  PredictedOutput near_first(prediction);
  near_first.Observe({1, 2, 3, 99, 50, 51});
  near_first.Observe({52});
  EXPECT_EQ(BestPath(near_first)[0], 53);
  PredictedOutput near_second(prediction);
  near_second.Observe({1, 2, 3, 50, 51, 52, 53, 4, 5, 6, 99, 51, 52});
  EXPECT_EQ(BestPath(near_second)[0], 60);
  // The end {6, 50, 51} is the second one's alone, wherever they parted.
  PredictedOutput longest(prediction);
  longest.Observe({1, 2, 3, 99, 6, 50, 51, 52});
  EXPECT_EQ(BestPath(longest)[0], 60);
}

TEST(PredictedOutputTest, StartIsObserveOfTheOutput) {
  PredictedOutput started(Counting(10, 20));
  started.Start({1, 2, 3, 10, 11, 12}, 3);
  PredictedOutput observed(Counting(10, 20));
  observed.Observe({10, 11, 12});
  EXPECT_EQ(started.Propose(kChainLimits), observed.Propose(kChainLimits));
  started.Start({1, 2, 3, 10, 11, 12, 13}, 3);
  observed.Observe({13});
  EXPECT_EQ(started.Propose(kChainLimits), observed.Propose(kChainLimits));
  started.Start({1, 2, 3}, 3);
  EXPECT_EQ(started.Propose(kChainLimits), PredictedOutput(Counting(10, 20)).Propose(kChainLimits));
}

// Whatever comes, proposals are valid; and a text that repeats one token, where every place matches, costs no
// more than its bound.
TEST(PredictedOutputTest, ProposalsAreValidOnRandomEdits) {
  std::mt19937_64 random(7);
  const ProposalLimits limits = {.depth = 6, .nodes = 10, .branching = 3};
  for (int trial = 0; trial < 50; ++trial) {
    const auto vocabulary = static_cast<TokenId>(1 + random() % 6);
    const auto draw = [&] { return static_cast<TokenId>(random() % static_cast<uint64_t>(vocabulary)); };
    TokenIds prediction(1 + random() % 300);
    std::generate(prediction.begin(), prediction.end(), draw);
    PredictedOutput source(prediction);
    for (size_t at = 0; at < prediction.size(); ++at) {
      const uint64_t kind = random() % 10;
      if (kind == 0) source.Observe({draw(), draw()});
      if (kind != 1) source.Observe({prediction[at]});
      const std::vector<ProposedNode> nodes = source.Propose(limits);
      ASSERT_LE(nodes.size(), limits.nodes);
      for (size_t i = 0; i < nodes.size(); ++i) {
        ASSERT_LE(PlaceAfterRoot(nodes[i].parent), i);
        ASSERT_GT(nodes[i].score, 0.0f);
        ASSERT_LE(nodes[i].score, 1.0f);
        for (size_t j = 0; j < i; ++j)
          ASSERT_FALSE(nodes[j].parent == nodes[i].parent && nodes[j].token == nodes[i].token);
      }
    }
  }
}

}  // namespace
}  // namespace tandem

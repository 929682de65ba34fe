#include "common/speculation/rules/draft_distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace tandem {
namespace {

using ::testing::HasSubstr;

DraftDistribution Sound() {
  return {.parent = 7, .tokens = {4, 0, 9}, .probabilities = {0.5f, 0.3f, 0.2f}};
}

TEST(DraftDistributionTest, ViolationsAreNamed) {
  EXPECT_EQ(FindViolation(Sound(), 10), "");
  struct Bad {
    std::function<void(DraftDistribution&)> spoil;
    const char* what;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Bad cases[] = {
      {[](auto& q) { q = {.parent = 7}; }, "node 7 has 0 tokens"},
      {[](auto& q) { q.tokens.pop_back(); }, "2 tokens and 3 probabilities"},
      {[](auto& q) { q.probabilities.pop_back(); }, "3 tokens and 2 probabilities"},
      {[](auto& q) { q.tokens[1] = 10; }, "token 10 at 1, expected another one of 0 to 9"},
      {[](auto& q) { q.tokens[1] = -1; }, "token -1 at 1"},
      {[](auto& q) { q.tokens[2] = 4; }, "token 4 at 2"},
      {[=](auto& q) { q.probabilities[0] = nan; }, "token 4 probability nan"},
      {[=](auto& q) { q.probabilities[0] = infinity; }, "token 4 probability inf"},
      {[](auto& q) { q.probabilities[0] = 0.0f; }, "token 4 probability 0"},
      {[](auto& q) { q.probabilities[1] = -0.1f; }, "token 0 probability -0.1"},
      {[](auto& q) { q.probabilities[1] = 1.1f; }, "token 0 probability 1.1"},
      {[](auto& q) { q.probabilities[0] = 0.6f; }, "sums to 1.1"},
      {[](auto& q) { q.probabilities[0] = 0.4f; }, "sums to 0.9"},
      {[](auto& q) {
         q.tokens.resize(kMaxDraftSupport + 1);
         q.probabilities.resize(kMaxDraftSupport + 1, 0.001f);
       },
       "129 tokens"},
  };
  for (const Bad& bad : cases) {
    DraftDistribution distribution = Sound();
    bad.spoil(distribution);
    EXPECT_THAT(FindViolation(distribution, 10), HasSubstr(bad.what));
  }
}

TEST(RemainingDraftTest, WhatIsDrawnIsGone) {
  const DraftDistribution distribution = Sound();
  RemainingDraft left(&distribution);
  EXPECT_NEAR(left.Probability(0), 0.3, 1e-7);
  EXPECT_EQ(left.Probability(5), 0.0);
  EXPECT_NEAR(left.LargestProbability(), 0.5, 1e-7);
  EXPECT_EQ(left.Draw(0.0), 4);
  EXPECT_EQ(left.Draw(0.6), 0);
  EXPECT_EQ(left.Draw(0.9999), 9);
  left.Remove(4);
  EXPECT_NEAR(left.Probability(0), 0.6, 1e-6);
  EXPECT_NEAR(left.Probability(9), 0.4, 1e-6);
  EXPECT_EQ(left.Probability(4), 0.0);
  EXPECT_EQ(left.Draw(0.0), 0);
  left.Remove(9);
  EXPECT_EQ(left.Draw(std::nextafter(1.0, 0.0)), 0);
  left.Remove(0);
  EXPECT_TRUE(left.empty());
  EXPECT_EQ(left.Probability(0), 0.0);
  EXPECT_EQ(left.LargestProbability(), 0.0);
}

}  // namespace
}  // namespace tandem

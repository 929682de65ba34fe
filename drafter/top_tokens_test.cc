#include "drafter/top_tokens.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(TopTokensTest, BestFirstAndEqualOnesByToken) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, 0.0f};
  const auto top = TopTokens(logits, 3);
  ASSERT_THAT(top, SizeIs(3));
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 3);
  EXPECT_EQ(top[2].token, 2);
  const double sum = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0) + 1.0;
  EXPECT_NEAR(top[0].probability, std::exp(3.0) / sum, 1e-6);
  EXPECT_NEAR(top[2].probability, std::exp(2.0) / sum, 1e-6);
}

TEST(TopTokensTest, FewerTokensThanAskedFor) {
  const std::vector<float> logits = {0.0f, 0.0f};
  EXPECT_THAT(TopTokens(logits, 5), SizeIs(2));
  EXPECT_THAT(TopTokens({}, 5), IsEmpty());
  EXPECT_THAT(TopTokens(logits, 0), IsEmpty());
}

TEST(TopTokensTest, ProbabilitiesAreNeverZero) {
  const std::vector<float> logits = {0.0f, -1000.0f, -kInfinity};
  for (const TokenProbability& token : TopTokens(logits, 3)) {
    EXPECT_GT(token.probability, 0.0f);
    EXPECT_LE(token.probability, 1.0f);
  }
}

TEST(TopTokensTest, NothingFromLogitsThatAreNoNumbers) {
  const std::vector<float> nan = {0.0f, std::nanf(""), 1.0f};
  const std::vector<float> leading_nan = {std::nanf(""), 1.0f};
  const std::vector<float> infinite = {0.0f, kInfinity};
  const std::vector<float> banned = {-kInfinity, -kInfinity};
  EXPECT_THAT(TopTokens(nan, 2), IsEmpty());
  EXPECT_THAT(TopTokens(leading_nan, 1), IsEmpty());
  EXPECT_THAT(TopTokens(infinite, 2), IsEmpty());
  EXPECT_THAT(TopTokens(banned, 2), IsEmpty());
}

}  // namespace
}  // namespace tandem

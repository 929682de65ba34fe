#include "router/drafters/choice/throughput.h"

#include <random>

#include "gtest/gtest.h"
#include "router/drafters/choice/testing/theorem_three.h"

namespace tandem::router {
namespace {

TEST(ThroughputTest, RoundTokensAreThePapersFormula) {
  EXPECT_DOUBLE_EQ(ExpectedRoundTokens(0.5, 0), 1.0);
  EXPECT_DOUBLE_EQ(ExpectedRoundTokens(0.5, 3), (1 - 0.0625) / 0.5);
  EXPECT_DOUBLE_EQ(ExpectedRoundTokens(0.0, 5), 1.0);
  EXPECT_DOUBLE_EQ(ExpectedRoundTokens(1.0, 5), 6.0);
}

TEST(ThroughputTest, ExposedDraftingAddsAndHiddenDraftingCompetes) {
  const VerifySeconds verify = {10, 11, 12, 13};
  EXPECT_DOUBLE_EQ(ForecastWindow(0.5, {.exposed_level_seconds = 2}, verify, 3).seconds, 3 * 2 + 13);
  EXPECT_DOUBLE_EQ(ForecastWindow(0.5, {.hidden_level_seconds = 2}, verify, 3).seconds, 13);
  EXPECT_DOUBLE_EQ(ForecastWindow(0.5, {.hidden_level_seconds = 5}, verify, 3).seconds, 15);
}

TEST(ThroughputTest, BestWindowByHand) {
  // Constant verification, drafting a fifth of it. At A = 0.8: 1 / 10, 1.8 / 12, 2.44 / 14, 2.952 /
  // 16, 3.3616 / 18, 3.689 / 20: the best is a window of 4.
  const VerifySeconds verify(9, 10.0);
  EXPECT_EQ(BestWindow(0.8, {.exposed_level_seconds = 2}, verify).window, 4u);
  EXPECT_EQ(BestWindow(0.1, {.exposed_level_seconds = 2}, verify).window, 0u);
  EXPECT_EQ(BestWindow(0.8, {}, verify).window, 8u) << "drafting that costs nothing";
  EXPECT_EQ(BestWindow(0.0, {}, verify).window, 0u) << "of equal windows the smallest";
}

// Theorem 3's pairwise test says of any two drafters what comparing their throughputs says.
TEST(ThroughputTest, PairwiseTestIsTheArgmax) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  int pays = 0;
  for (int i = 0; i < 20000; ++i) {
    VerifySeconds verify = {0.01};
    while (verify.size() < 9) verify.push_back(verify.back() + 0.002 * uniform(random));
    const auto draw = [&](DraftPlan& plan) {
      plan.draft_seconds = 0.004 * uniform(random);
      plan.forecast =
          BestWindow(0.98 * uniform(random), {.exposed_level_seconds = plan.draft_seconds}, verify);
      plan.verify_seconds = verify[plan.forecast.window];
    };
    DraftPlan one;
    DraftPlan other;
    draw(one);
    draw(other);
    const double rate = one.forecast.tokens_per_second();
    const double other_rate = other.forecast.tokens_per_second();
    // Equal up to rounding, as two that are best left unused are, is no case for either.
    if (std::abs(rate - other_rate) < 1e-9 * rate) continue;
    EXPECT_EQ(OtherDrafterPays(one, other, 500.0), other_rate > rate) << i;
    pays += other_rate > rate;
  }
  EXPECT_GT(pays, 5000);
  EXPECT_LT(pays, 15000);
}

TEST(ThroughputTest, PairwiseTestOfADrafterWithItself) {
  const VerifySeconds verify(5, 0.01);
  DraftPlan plan{.forecast = BestWindow(0.7, {.exposed_level_seconds = 0.001}, verify),
                 .verify_seconds = 0.01,
                 .draft_seconds = 0.001};
  EXPECT_FALSE(OtherDrafterPays(plan, plan, 100.0));
}

}  // namespace
}  // namespace tandem::router

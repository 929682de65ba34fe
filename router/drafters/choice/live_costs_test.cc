#include "router/drafters/choice/live_costs.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace tandem::router {
namespace {

TEST(LiveCostsTest, FollowWhatIsReported) {
  LiveDraftCosts costs;
  EXPECT_FALSE(costs.value().has_value());
  costs.Observe({.exposed_level_seconds = 1.0, .hidden_level_seconds = 2.0});
  EXPECT_EQ(costs.value()->exposed_level_seconds, 1.0);
  for (int i = 0; i < 100; ++i) costs.Observe({.exposed_level_seconds = 3.0, .hidden_level_seconds = 2.0});
  EXPECT_NEAR(costs.value()->exposed_level_seconds, 3.0, 1e-3);
  EXPECT_NEAR(costs.value()->hidden_level_seconds, 2.0, 1e-9);
}

TEST(LiveCostsTest, NonsenseIsIgnored) {
  LiveDraftCosts costs;
  costs.Observe({.exposed_level_seconds = -1.0});
  costs.Observe({.exposed_level_seconds = std::nan("")});
  costs.Observe({.hidden_level_seconds = INFINITY});
  EXPECT_FALSE(costs.value().has_value());
  LiveVerifySeconds verify;
  verify.Observe({});
  verify.Observe({0.0, 1.0});
  verify.Observe({1.0, std::nan("")});
  verify.Observe(VerifySeconds(66, 1.0));
  EXPECT_TRUE(verify.value().empty());
}

TEST(LiveCostsTest, WindowsAreThoseOfAllVerifiers) {
  LiveVerifySeconds verify;
  verify.Observe({1.0, 2.0, 3.0});
  verify.Observe({2.0, 2.0});
  ASSERT_EQ(verify.value().size(), 2u);
  EXPECT_NEAR(verify.value()[0], 1.1, 1e-9);
}

TEST(LiveCostsTest, CorrectionIsMeasuredOverPredicted) {
  ThroughputCorrection correction;
  EXPECT_EQ(correction.value(), 1.0);
  const RequestOutcome outcome{.decode_tokens = 50, .decode_seconds = 1.0};
  for (int i = 0; i < 200; ++i) correction.Observe(40.0, outcome);
  EXPECT_NEAR(correction.value(), 1.25, 1e-3);
  for (int i = 0; i < 500; ++i) correction.Observe(1e-9, outcome);
  EXPECT_NEAR(correction.value(), ThroughputCorrection::kLargest, 1e-2);
}

// A request that ran `ratio` times as fast as predicted.
void ObserveRatio(ThroughputCorrection& correction, double ratio) {
  correction.Observe(1.0, {.decode_tokens = 1000, .decode_seconds = 1000.0 / ratio});
}

TEST(LiveCostsTest, CorrectionsOfDraftersThatAreAlikeStayAlike) {
  // Single requests scatter by a factor of 1.2.
  std::mt19937_64 generator(1);
  std::normal_distribution<double> scatter(0.0, std::log(1.2));
  ThroughputCorrection one;
  ThroughputCorrection other;
  int apart = 0;
  for (int i = 0; i < 5000; ++i) {
    ObserveRatio(one, 0.9 * std::exp(scatter(generator)));
    ObserveRatio(other, 0.9 * std::exp(scatter(generator)));
    apart += i >= 50 && std::abs(std::log(one.value() / other.value())) > 0.06 ? 1 : 0;
  }
  EXPECT_NEAR(one.value(), 0.9, 0.05);
  EXPECT_LT(apart, 500) << "of 4950";
}

TEST(LiveCostsTest, CorrectionFollowsAChangeWithinAFewRequests) {
  std::mt19937_64 generator(1);
  std::normal_distribution<double> scatter(0.0, std::log(1.2));
  ThroughputCorrection correction;
  for (int i = 0; i < 500; ++i) ObserveRatio(correction, std::exp(scatter(generator)));
  EXPECT_NEAR(correction.value(), 1.0, 0.1);
  for (int i = 0; i < 15; ++i) ObserveRatio(correction, 0.5 * std::exp(scatter(generator)));
  EXPECT_LT(correction.value(), 0.75);
  for (int i = 0; i < 100; ++i) ObserveRatio(correction, 0.5 * std::exp(scatter(generator)));
  EXPECT_NEAR(correction.value(), 0.5, 0.06);
  // One that was set, as from a file, is no more certain than that.
  correction.Set(1.0);
  for (int i = 0; i < 15; ++i) ObserveRatio(correction, 0.5 * std::exp(scatter(generator)));
  EXPECT_LT(correction.value(), 0.75);
}

TEST(LiveCostsTest, ACorrectionThatWasSetHoldsAgainstChance) {
  std::mt19937_64 generator(1);
  std::normal_distribution<double> scatter(0.0, std::log(1.2));
  for (int run = 0; run < 200; ++run) {
    ThroughputCorrection correction;
    correction.Set(1.0);
    for (int i = 0; i < 30; ++i) {
      ObserveRatio(correction, std::exp(scatter(generator)));
      ASSERT_NEAR(correction.value(), 1.0, 0.1);
    }
  }
}

TEST(LiveCostsTest, AfterALongTimeOneRequestTellsMore) {
  ThroughputCorrection correction;
  for (int i = 0; i < 500; ++i) ObserveRatio(correction, 1.0);
  ThroughputCorrection aged = correction;
  aged.Age();
  ObserveRatio(correction, 1.2);
  ObserveRatio(aged, 1.2);
  EXPECT_NEAR(correction.value(), std::exp(0.02 * std::log(1.2)), 1e-6);
  EXPECT_NEAR(aged.value(), std::exp(0.2 * std::log(1.2)), 1e-6);
}

TEST(LiveCostsTest, TooLittleToTellIsNoMeasurement) {
  ThroughputCorrection correction;
  correction.Observe(40.0, {.decode_tokens = 7, .decode_seconds = 1.0});
  correction.Observe(40.0, {.decode_tokens = 70, .decode_seconds = 0.0});
  correction.Observe(0.0, {.decode_tokens = 70, .decode_seconds = 1.0});
  correction.Observe(std::nan(""), {.decode_tokens = 70, .decode_seconds = 1.0});
  EXPECT_EQ(correction.value(), 1.0);
}

}  // namespace
}  // namespace tandem::router

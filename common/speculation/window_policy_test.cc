#include "common/speculation/window_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

TEST(AcceptanceEstimateTest, IsThePapersMaximumLikelihoodEstimate) {
  AcceptanceEstimate estimate({.history = 3, .maximum = 0.98, .initial = 0.5});
  EXPECT_THAT(estimate.value(), DoubleEq(0.5));
  estimate.Observe({.depth = 4, .accepted = 4, .rejected = false});
  EXPECT_THAT(estimate.value(), DoubleEq(0.98));
  estimate.Observe({.depth = 4, .accepted = 1, .rejected = true});
  EXPECT_THAT(estimate.value(), DoubleEq(5.0 / 6.0));
  estimate.Observe({.depth = 0});
  EXPECT_THAT(estimate.value(), DoubleEq(5.0 / 6.0));
  estimate.Observe({.depth = 2, .accepted = 0, .rejected = true});
  estimate.Observe(
      {.depth = 2, .accepted = 0, .rejected = true});  // The first round is out of the window now.
  EXPECT_THAT(estimate.value(), DoubleEq(1.0 / 4.0));
}

TEST(AcceptanceEstimateTest, ExpectedTokensIsTheGeometricSum) {
  EXPECT_THAT(ExpectedTokens(0.5, 0), DoubleEq(1.0));
  EXPECT_THAT(ExpectedTokens(0.5, 3), DoubleEq(1.0 + 0.5 + 0.25 + 0.125));
  EXPECT_THAT(ExpectedTokens(1.0, 3), DoubleEq(4.0));
  EXPECT_THAT(ExpectedTokens(0.0, 3), DoubleEq(1.0));
}

TEST(RoundTimeModelTest, InterpolatesExtrapolatesAndFollows) {
  RoundTimeModel model({{1, 1.0}, {4, 0.9}, {8, 2.0}});
  EXPECT_THAT(model.Seconds(1), DoubleEq(1.0));
  EXPECT_THAT(model.Seconds(4), DoubleEq(1.0));  // Faster with more rows is noise.
  EXPECT_THAT(model.Seconds(6), DoubleEq(1.5));
  EXPECT_THAT(model.Seconds(12), DoubleEq(3.0));
  for (int i = 0; i < 200; ++i) model.Observe(8, 4.0);
  EXPECT_THAT(model.Seconds(8), DoubleNear(4.0, 0.01));
  EXPECT_THAT(model.Seconds(1), DoubleNear(2.0, 0.01));
  const double before = model.Seconds(8);
  model.Observe(8, 1e6);  // One interrupted step.
  EXPECT_LT(model.Seconds(8), 1.2 * before);
}

RoundCosts Costs(const RoundTimeModel& round_time, double draft_seconds) {
  return {.round_time = &round_time,
          .batch = 1,
          .draft_seconds_per_level = draft_seconds,
          .limits = {.max_depth = 8, .nodes_per_level = 1, .max_nodes = 8}};
}

TEST(WindowPolicyTest, FixedIsAlwaysTheLargest) {
  const RoundTimeModel round_time({{1, 1.0}});
  EXPECT_EQ(MakeFixedPolicy()->NextDepth(Costs(round_time, 1.0)), 8u);
}

// Depths worked out by hand from equation 1 with a flat verification time of 1: for A = 1/2 and a_q = 0.1 the
// rates at depths 0 to 4 are 1, 1.364, 1.458, 1.442, 1.384.
TEST(WindowPolicyTest, AnalyticMaximisesExpectedTokensPerSecond) {
  const RoundTimeModel round_time({{1, 1.0}});
  auto policy = MakeAnalyticPolicy({.history = 6, .maximum = 0.98, .initial = 0.5});
  EXPECT_EQ(policy->NextDepth(Costs(round_time, 0.1)), 2u);
  EXPECT_EQ(policy->NextDepth(Costs(round_time, 0.0)), 8u);  // Hidden drafting costs nothing.
  EXPECT_EQ(policy->NextDepth(Costs(round_time, 0.6)), 0u);
}

TEST(WindowPolicyTest, AnalyticCountsWhatOtherSessionsPay) {
  // A step costs 1 for up to 8 rows, then grows in proportion.
  const RoundTimeModel round_time({{1, 1.0}, {8, 1.0}, {16, 2.0}});
  auto policy = MakeAnalyticPolicy({.initial = 0.5});
  RoundCosts costs = Costs(round_time, 0.0);
  EXPECT_EQ(policy->NextDepth(costs), 7u);
  costs.batch = 8;
  EXPECT_EQ(policy->NextDepth(costs), 0u);
}

TEST(WindowPolicyTest, AnalyticProbesWhenDraftingStoppedPaying) {
  const RoundTimeModel round_time({{1, 1.0}});
  auto policy = MakeAnalyticPolicy();
  for (int i = 0; i < 6; ++i) policy->Observe({.depth = 4, .accepted = 0, .rejected = true});
  int probes = 0;
  for (int i = 0; i < 400; ++i) {
    const uint32_t depth = policy->NextDepth(Costs(round_time, 0.1));
    ASSERT_LE(depth, 1u);
    probes += static_cast<int>(depth);
    policy->Observe({.depth = depth, .accepted = 0, .rejected = depth > 0});
  }
  // Three each after 4, 8, 16, 32, 64, 64, ... rounds without.
  EXPECT_GE(probes, 3 * 8);
  EXPECT_LE(probes, 3 * 10);
  // Drafting pays again: a probe notices, and the window opens.
  uint32_t depth = 0;
  for (int i = 0; i < 80; ++i) {
    depth = policy->NextDepth(Costs(round_time, 0.1));
    policy->Observe({.depth = depth, .accepted = depth});
  }
  EXPECT_GT(depth, 1u);
}

TEST(WindowPolicyTest, FactoryKnowsTheNames) {
  for (const std::string& name : WindowPolicyNames()) EXPECT_EQ((*MakeWindowPolicy(name))->name(), name);
  EXPECT_THAT(std::string(MakeWindowPolicy("best").status().message()),
              HasSubstr("\"best\" is not known, expected one of analytic, fixed"));
}

TEST(WindowLimitsTest, BudgetFollowsDepth) {
  const WindowLimits limits{
      .max_depth = 8, .nodes_per_level = 3, .max_nodes = 10, .branching = 4, .lookahead = 5};
  EXPECT_EQ(limits.BudgetFor(0), DraftBudget{});
  EXPECT_EQ(limits.BudgetFor(2), (DraftBudget{.depth = 2, .nodes = 6, .branching = 4, .lookahead = 5}));
  EXPECT_EQ(limits.NodesFor(5), 10u);
}

}  // namespace
}  // namespace tandem

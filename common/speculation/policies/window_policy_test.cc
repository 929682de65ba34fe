#include "common/speculation/policies/window_policy.h"

#include <algorithm>

#include "common/speculation/policies/analytic_policy.h"
#include "common/speculation/policies/cached_fsm_policy.h"
#include "common/speculation/policies/ema_tiers_policy.h"
#include "common/speculation/policies/fixed_policy.h"
#include "common/speculation/policies/fsm_policy.h"
#include "common/speculation/policies/goodput_policy.h"
#include "common/speculation/policies/qlearning_policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
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

// Asks for a window, then tells that a chain of that depth had `accepted` right, at most.
uint32_t Play(WindowPolicy& policy, uint32_t accepted, absl::Span<const TokenId> committed = {}) {
  const RoundTimeModel round_time({{1, 1.0}});
  const uint32_t depth = policy.NextDepth(Costs(round_time, 0.1));
  const uint32_t right = std::min(accepted, depth);
  policy.Observe({.depth = depth, .accepted = right, .rejected = right < depth, .committed = committed});
  return depth;
}

std::vector<uint32_t> Windows(WindowPolicy& policy, const std::vector<uint32_t>& accepted) {
  std::vector<uint32_t> windows;
  for (uint32_t count : accepted) windows.push_back(Play(policy, count));
  return windows;
}

TEST(WindowPolicyTest, FixedTakesItsDepth) {
  const RoundTimeModel round_time({{1, 1.0}});
  EXPECT_EQ(MakeFixedPolicy({.depth = 3})->NextDepth(Costs(round_time, 1.0)), 3u);
  EXPECT_EQ(MakeFixedPolicy({.depth = 30})->NextDepth(Costs(round_time, 1.0)), 8u);
}

TEST(WindowPolicyTest, FsmCountsDownOnRejectionAndUpWhenAllIsAccepted) {
  const auto policy = MakeFsmPolicy({.initial_depth = 2});
  // 2 accepted of 2, 3 of 3, 1 of 4, 0 of 3, 2, 1, then from 0 back to 1.
  EXPECT_THAT(Windows(*policy, {2, 3, 1, 0, 0, 0, 0, 9}), ElementsAre(2, 3, 4, 3, 2, 1, 0, 1));
}

TEST(WindowPolicyTest, FsmStaysWithinTheLimits) {
  const auto policy = MakeFsmPolicy();
  EXPECT_THAT(Windows(*policy, {9, 9, 0, 9, 9}), ElementsAre(8, 8, 8, 7, 8));
}

TEST(WindowPolicyTest, FsmLearnsNothingFromDraftsThatCameTooLate) {
  const auto policy = MakeFsmPolicy({.initial_depth = 4});
  Play(*policy, 9);
  policy->Observe({.depth = 0});
  EXPECT_EQ(Play(*policy, 0), 5u);
}

TEST(WindowPolicyTest, CachedFsmFollowsTheTokenCache) {
  const TokenIds prompt = {1, 2, 3};
  const auto policy = MakeCachedFsmPolicy({.initial_depth = 3}, prompt);
  EXPECT_EQ(Play(*policy, 1, TokenIds{7, 8}), 3u);        // Neither is known: -1.
  EXPECT_EQ(Play(*policy, 1, TokenIds{9, 8}), 2u);        // 8 is by now: +1.
  EXPECT_EQ(Play(*policy, 3, TokenIds{3, 5, 5, 6}), 3u);  // 3 was in the prompt, and all accepted: +2.
  EXPECT_EQ(Play(*policy, 5, TokenIds{10, 11, 12, 13, 14, 15}), 5u);  // All accepted but all new: -1 + 1.
  EXPECT_EQ(Play(*policy, 0, TokenIds{20}), 5u);
  EXPECT_EQ(Play(*policy, 0, TokenIds{21}), 4u);
  for (TokenId token : {22, 23, 24}) Play(*policy, 0, TokenIds{token});
  EXPECT_EQ(Play(*policy, 0, TokenIds{1}), 0u);  // The target's own token opens the window again.
  EXPECT_EQ(Play(*policy, 0, TokenIds{1}), 1u);
}

// With learning rate 1/2, discount 1/2 and no exploration, worked by hand: from Q = 1 everywhere and window
// 2, (2, 2) gets 1 + (0.5 + 0.5 - 1)/2 = 1; then ties go to the smallest window, 0, whose reward is 0.
TEST(WindowPolicyTest, QLearningLearnsByItsRule) {
  const auto policy = MakeQLearningPolicy(
      {.learning_rate = 0.5, .discount = 0.5, .exploration = 0.0, .initial_value = 1.0, .initial_depth = 2},
      1);
  EXPECT_EQ(Play(*policy, 1), 2u);  // Q(2,2) = 1 + (1/2 + 1/2 * 1 - 1)/2 = 1.
  EXPECT_EQ(Play(*policy, 0), 0u);  // Q(2,0) = 1 + (0 + 1/2 - 1)/2 = 3/4; now in state 0.
  EXPECT_EQ(Play(*policy, 0), 0u);  // Q(0,0) = 3/4 likewise.
  EXPECT_EQ(Play(*policy, 1), 1u);  // Q(0,1) = 1 + (1 + 1/2 - 1)/2 = 5/4.
  EXPECT_EQ(Play(*policy, 0), 0u);  // State 1: all equal. Q(1,0) = 1 + (0 + 1/2 * 5/4 - 1)/2 = 13/16.
  EXPECT_EQ(Play(*policy, 1), 1u);  // State 0: 1 is the best known.
}

TEST(WindowPolicyTest, QLearningSettlesOnAWindowThatIsAccepted) {
  const auto policy = MakeQLearningPolicy({.exploration = 0.0, .initial_value = 2.0}, 1);
  for (int i = 0; i < 1000; ++i) Play(*policy, 2);
  const uint32_t depth = Play(*policy, 2);
  EXPECT_TRUE(depth == 1 || depth == 2) << depth;
}

TEST(WindowPolicyTest, QLearningExploresByItsSeed) {
  const auto windows = [](uint64_t seed) {
    const auto policy = MakeQLearningPolicy({.exploration = 0.5}, seed);
    return Windows(*policy, std::vector<uint32_t>(100, 2));
  };
  EXPECT_EQ(windows(7), windows(7));
  EXPECT_NE(windows(7), windows(8));
}

TEST(WindowPolicyTest, EmaTiersMovesByTheDefaultsOfSglang) {
  const auto policy = MakeEmaTiersPolicy();
  // ema starts at 2, the neutral value of tier 3. All accepted: ema -> 3 towards, above 2.5 soon; nothing
  // moves in 10 rounds of warm-up and before the fifth round after.
  std::vector<uint32_t> windows = Windows(*policy, std::vector<uint32_t>(16, 9));
  EXPECT_THAT(windows, ElementsAre(3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 7));
  // ema = 3 - 0.8^15 = 2.965, then 4.03 + ... with 7s; rejections bring it down: below 2.25 to tier 3, at or
  // below 0.25 to tier 1.
  windows = Windows(*policy, std::vector<uint32_t>(30, 0));
  EXPECT_EQ(windows.front(), 7u);
  EXPECT_EQ(windows.back(), 1u);
}

TEST(WindowPolicyTest, EmaTiersHysteresis) {
  EmaTiersOptions options{.ema_alpha = 1.0, .update_interval = 1, .warmup_batches = 0};
  const auto policy = MakeEmaTiersPolicy(options);
  Play(*policy, 3);
  EXPECT_EQ(Play(*policy, 2), 7u);  // 3 > 2.5: up; 2 <= 2.25: down.
  EXPECT_EQ(Play(*policy, 1), 3u);  // 1 > 0.25: stays.
  EXPECT_EQ(Play(*policy, 0), 3u);  // Down to 1.
  EXPECT_EQ(Play(*policy, 1), 1u);  // 1 > 0.5: up.
  EXPECT_EQ(Play(*policy, 1), 3u);
}

TEST(WindowPolicyTest, EmaTiersStartsAtTheNearestTier) {
  EmaTiersOptions options{.candidate_steps = {2, 6}, .initial_steps = 5};
  EXPECT_EQ(Play(*MakeEmaTiersPolicy(options), 0), 6u);
}

// Level acceptance 1/2 throughout, drafting hidden: with a flat verification time of 1 and 0.4 per level,
// depths up to 2 are free, and the rates at depths 2 to 4 are 1.75, 1.875 / 1.2, 1.94 / 1.6.
TEST(WindowPolicyTest, GoodputKnowsWhenDraftingIsHidden) {
  const RoundTimeModel round_time({{1, 1.0}});
  LevelAcceptance drafter({.prior_trials = 2.0, .initial = 0.5});
  const auto policy = MakeGoodputPolicy();
  RoundCosts costs = Costs(round_time, 0.0);
  costs.drafter_acceptance = &drafter;
  costs.hidden_draft_seconds_per_level = 0.4;
  EXPECT_EQ(policy->NextDepth(costs), 2u);
  costs.hidden_draft_seconds_per_level = 0.0;
  EXPECT_EQ(policy->NextDepth(costs), 8u);
  costs.draft_seconds_per_level = 0.6;  // Exposed: a rate of 1.5 / 1.6 and less.
  EXPECT_EQ(policy->NextDepth(costs), 0u);
}

TEST(WindowPolicyTest, GoodputStopsWhenTheDrafterDoesNotPay) {
  const RoundTimeModel round_time({{1, 1.0}});
  const auto policy = MakeGoodputPolicy();
  RoundCosts costs = Costs(round_time, 0.0);
  EXPECT_GT(policy->NextDepth(costs), 0u);
  costs.drafting_pays = false;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(policy->NextDepth(costs), 0u);
    policy->Observe({.depth = 0});
  }
}

TEST(WindowPolicyTest, GoodputProbesWhenNothingIsFoundWorthVerifying) {
  const RoundTimeModel round_time({{1, 1.0}});
  const auto policy = MakeGoodputPolicy();
  const RoundCosts costs = Costs(round_time, 0.0);
  int probes = 0;
  int drafted = 0;
  for (int i = 0; i < 400; ++i) {
    const uint32_t depth = policy->NextDepth(costs);
    drafted += depth > 0 ? 1 : 0;
    if (policy->probing()) {
      ASSERT_EQ(depth, 1u);
      ++probes;
      policy->Observe({.depth = 1, .accepted = 0, .rejected = true});
    } else {
      policy->Observe({.depth = 0, .declined = depth > 0});
    }
  }
  EXPECT_EQ(drafted, probes + 16);
  // Three each after 12, 24, 48 and 96 rounds without.
  EXPECT_EQ(probes, 3 * 4);
  // A probe that is accepted opens the window again.
  uint32_t depth = 0;
  for (int i = 0; i < 250; ++i) {
    depth = policy->NextDepth(costs);
    policy->Observe({.depth = depth, .accepted = depth});
  }
  EXPECT_GT(depth, 1u);
}

TEST(LevelAcceptanceTest, CountsEveryLevelThatWasReached) {
  LevelAcceptance levels({.history = 1e9, .prior_trials = 1.0, .initial = 0.5});
  levels.Observe({.depth = 3, .accepted = 1, .rejected = true});
  levels.Observe({.depth = 3, .accepted = 3, .rejected = false});
  levels.Observe({.depth = 0});
  // Level 1: 2 of 2 and half a trial of the prior; level 2: 1 of 2 and the estimate above; level 3: 1 of 1.
  const double first = 2.5 / 3.0;
  const double second = (1.0 + first) / 3.0;
  const double third = (1.0 + second) / 2.0;
  EXPECT_THAT(levels.Levels()[0], DoubleNear(first, 1e-6));
  EXPECT_THAT(levels.Levels()[1], DoubleNear(second, 1e-6));
  EXPECT_THAT(levels.Levels()[2], DoubleNear(third, 1e-6));
  EXPECT_THAT(levels.ExpectedAccepted(3), DoubleNear(first + first * second + first * second * third, 1e-6));
  EXPECT_THAT(levels.trials(), DoubleNear(5.0, 1e-6));
  const LevelAcceptance fresh({.prior_trials = 1.0, .initial = 0.9});
  EXPECT_THAT(fresh.Levels(&levels)[1], DoubleNear(second, 1e-6));
}

TEST(LevelAcceptanceTest, TakesDeepTrees) {
  LevelAcceptance levels;
  for (int i = 0; i < 50; ++i) levels.Observe({.depth = 128, .accepted = 127, .rejected = true});
  EXPECT_GT(levels.ExpectedAccepted(128), 10.0);
  EXPECT_LE(levels.ExpectedAccepted(128), 128.0);
}

TEST(WindowPolicyTest, EveryPolicyStaysWithinTheLimits) {
  const RoundTimeModel round_time({{1, 1.0}, {64, 4.0}});
  for (const std::string& name : WindowPolicyNames()) {
    const auto policy = *MakeWindowPolicy(name, {}, {.tokens = TokenIds{1, 2, 3}, .seed = 9});
    for (uint32_t i = 0; i < 300; ++i) {
      RoundCosts costs = Costs(round_time, 0.01);
      costs.limits.max_depth = (i / 50) % 9;
      const uint32_t depth = policy->NextDepth(costs);
      ASSERT_LE(depth, costs.limits.max_depth) << name;
      ASSERT_EQ(policy->NextDepth(costs), depth) << name << ": asked twice";
      const uint32_t accepted = std::min(depth, i % 4);
      policy->Observe({.depth = depth,
                       .accepted = accepted,
                       .rejected = accepted < depth,
                       .committed = TokenIds{static_cast<TokenId>(i % 7)}});
    }
  }
}

TEST(WindowPolicyTest, SpecDecStopsByWhatIsPredicted) {
  const RoundTimeModel round_time({{1, 1.0}, {64, 4.0}});
  WindowPolicyOptions options;
  options.specdec.threshold = 0.6;
  const auto policy = *MakeWindowPolicy("specdec++", options);
  EXPECT_EQ(policy->NextDepth(Costs(round_time, 0.01)), Costs(round_time, 0.01).limits.max_depth);
  EXPECT_DOUBLE_EQ(policy->stop_below(), 0.4);
  EXPECT_EQ((*MakeWindowPolicy("fixed"))->stop_below(), 0.0);
}

TEST(WindowPolicyTest, FactoryKnowsTheNames) {
  for (const std::string& name : WindowPolicyNames()) EXPECT_EQ((*MakeWindowPolicy(name))->name(), name);
  EXPECT_THAT(std::string(MakeWindowPolicy("best").status().message()),
              HasSubstr("\"best\" is not known, expected one of analytic, cached-fsm, ema-tiers, fixed, fsm, "
                        "goodput, qlearning, specdec++"));
}

TEST(WindowLimitsTest, BudgetFollowsDepth) {
  const WindowLimits limits{.max_depth = 8,
                            .nodes_per_level = 3,
                            .max_nodes = 10,
                            .branching = 4,
                            .lookahead = 5,
                            .ahead_nodes = 0};
  EXPECT_EQ(limits.BudgetFor(0), DraftBudget{});
  EXPECT_EQ(limits.BudgetFor(2), (DraftBudget{.depth = 2, .nodes = 6, .branching = 4, .lookahead = 5}));
  EXPECT_EQ(limits.NodesFor(5), 10u);
}

TEST(WindowLimitsTest, OnlyDraftingAheadHasNodesForIt) {
  WindowLimits limits{.nodes_per_level = 3, .lookahead = 5, .ahead_nodes = 50, .ahead_branching = 6};
  EXPECT_EQ(limits.BudgetFor(2).ahead_nodes, 50u);
  EXPECT_EQ(limits.BudgetFor(2).ahead_branching, 6u);
  // Sessions share the drafter. A share that is less than what the levels have makes nothing better.
  EXPECT_EQ(limits.BudgetFor(2, 2).ahead_nodes, 25u);
  EXPECT_EQ(limits.BudgetFor(2, 3).ahead_nodes, 16u);
  EXPECT_EQ(limits.BudgetFor(2, 4).ahead_nodes, 0u);
  EXPECT_EQ(limits.BudgetFor(2, 1, /*ahead=*/false).ahead_nodes, 0u);
  limits.ahead_branching = 1;
  EXPECT_EQ(limits.BudgetFor(2).ahead_branching, limits.branching) << "never fewer than are verified";
  EXPECT_EQ(limits.BudgetFor(0), DraftBudget{});
  limits.shape = TreeShape::kEagle2;
  EXPECT_EQ(limits.BudgetFor(2).ahead_nodes, 0u);
  limits.shape = TreeShape::kChain;
  EXPECT_EQ(limits.BudgetFor(2).ahead_nodes, 50u);
  limits.lookahead = 0;
  EXPECT_EQ(limits.BudgetFor(2).ahead_nodes, 0u);
}

}  // namespace
}  // namespace tandem

#include "common/speculation/acceptance_estimate.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/speculation/policies/analytic_policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// A round whose draft tokens are each accepted with probability `acceptance`, while all before them are.
RoundOutcome PlayRound(double acceptance, uint32_t depth, std::mt19937& random) {
  std::bernoulli_distribution accepted(acceptance);
  RoundOutcome outcome{.depth = depth};
  while (outcome.accepted < depth && accepted(random)) ++outcome.accepted;
  outcome.rejected = outcome.accepted < depth;
  return outcome;
}

TEST(TruncatedMeanTest, IsTheClosedFormOfEquation12) {
  for (const uint32_t g : {1u, 2u, 5u, 8u}) {
    for (const double a : {0.1, 0.5, 0.8, 0.95}) {
      const double closed = ((g + 1) * std::pow(a, g + 2) - (g + 2) * std::pow(a, g + 1) + 1) /
                            (std::pow(a, g + 2) - std::pow(a, g + 1) - a + 1);
      EXPECT_NEAR(TruncatedMean(a, g), closed, 1e-9) << g << " " << a;
    }
    EXPECT_EQ(TruncatedMean(0.0, g), 1.0);
    EXPECT_EQ(TruncatedMean(1.0, g), (g + 2) / 2.0);
  }
}

TEST(AcceptanceEquationTest, Equation11IsTheRootOfItsPolynomial) {
  const uint32_t g = 4;
  AcceptanceEstimate estimate({.equation = AcceptanceEquation::kEquation11, .history = 10});
  double sum = 0.0;
  const std::vector<uint32_t> accepted = {0, 3, 1, 2, 0, 1};
  for (const uint32_t v : accepted) {
    estimate.Observe({.depth = g, .accepted = v, .rejected = v < g});
    sum += v + 1;
  }
  const double n = static_cast<double>(accepted.size());
  const double b = estimate.value();
  EXPECT_GT(b, 0.1);
  EXPECT_LT(b, 0.9);
  const double polynomial = (sum - n * (g + 2) + n) * std::pow(b, g + 2) +
                            (n * (g + 2) - sum) * std::pow(b, g + 1) - sum * b + sum - n;
  EXPECT_NEAR(polynomial, 0.0, 1e-4);
}

TEST(AcceptanceEquationTest, EveryEquationStaysInRange) {
  for (const AcceptanceEquation equation :
       {AcceptanceEquation::kEquation2, AcceptanceEquation::kEquation11, AcceptanceEquation::kEquation12}) {
    AcceptanceEstimate estimate({.equation = equation, .history = 4, .maximum = 0.98, .initial = 0.5});
    EXPECT_EQ(estimate.value(), 0.5);
    for (int i = 0; i < 4; ++i) estimate.Observe({.depth = 3, .accepted = 0, .rejected = true});
    EXPECT_NEAR(estimate.value(), 0.0, 1e-6);
    for (int i = 0; i < 4; ++i) estimate.Observe({.depth = 3, .accepted = 3});
    EXPECT_EQ(estimate.value(), 0.98);
  }
}

// Where windows change from round to round as well, which a single table of means could not tell.
TEST(AcceptanceEquationTest, TheTableIsCloseToTheRoot) {
  std::mt19937 random(5);
  for (int repeat = 0; repeat < 200; ++repeat) {
    AcceptanceEstimate root({.equation = AcceptanceEquation::kEquation11, .history = 12});
    AcceptanceEstimate table({.equation = AcceptanceEquation::kEquation12, .history = 12});
    for (int i = 0; i < 12; ++i) {
      const RoundOutcome outcome = PlayRound(0.1 + 0.004 * repeat, 1 + random() % 8, random);
      root.Observe(outcome);
      table.Observe(outcome);
    }
    EXPECT_NEAR(table.value(), root.value(), 2e-3) << "seed 5, repeat " << repeat;
  }
}

double MeanEstimate(AcceptanceEquation equation, double acceptance, uint32_t depth, bool truncated) {
  std::mt19937 random(11);
  AcceptanceEstimate estimate({.equation = equation, .history = 20000, .maximum = 1.0});
  for (int i = 0; i < 20000; ++i) {
    RoundOutcome outcome = PlayRound(acceptance, truncated ? 1000 : depth, random);
    // Truncated: those that came further than the window and its one token more are not seen at all.
    if (truncated && outcome.accepted > depth) continue;
    outcome.depth = depth;
    outcome.rejected = outcome.accepted < depth;
    estimate.Observe(outcome);
  }
  return estimate.value();
}

TEST(AcceptanceEquationTest, EachIsRightAboutItsOwnRounds) {
  using enum AcceptanceEquation;
  EXPECT_NEAR(MeanEstimate(kEquation2, 0.8, 4, /*truncated=*/false), 0.8, 0.01);
  EXPECT_NEAR(MeanEstimate(kEquation11, 0.8, 4, /*truncated=*/true), 0.8, 0.02);
  EXPECT_NEAR(MeanEstimate(kEquation12, 0.8, 4, /*truncated=*/true), 0.8, 0.02);
  // And wrong about the other's: verification makes rounds that end with their window.
  EXPECT_GT(MeanEstimate(kEquation11, 0.8, 4, /*truncated=*/false), 0.9);
  EXPECT_LT(MeanEstimate(kEquation2, 0.8, 4, /*truncated=*/true), 0.75);
  // With windows that are hardly ever filled, they are the same.
  EXPECT_NEAR(MeanEstimate(kEquation11, 0.3, 8, /*truncated=*/false), 0.3, 0.02);
}

struct Spread {
  double variance = 0.0;
  double absolute_error = 0.0;
  double trials = 0.0;  // Accepted tokens and rejections, on average.
};

// How far estimates after `num_rounds` rounds are from the truth, over many repetitions. `fixed_depth` 0: the
// windows are those of the analytic policy.
Spread SpreadOf(double acceptance, uint32_t fixed_depth, uint32_t max_depth, double draft_seconds) {
  constexpr int kRepeats = 2000;
  constexpr int kRounds = 60;
  const RoundTimeModel round_time({{1, 1.0}});
  const RoundCosts costs{.round_time = &round_time,
                         .batch = 1,
                         .draft_seconds_per_level = draft_seconds,
                         .limits = {.max_depth = max_depth, .nodes_per_level = 1, .max_nodes = max_depth}};
  std::mt19937 random(17);
  Spread spread;
  double sum = 0.0;
  double squares = 0.0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    AcceptanceEstimate estimate({.history = kRounds, .maximum = 1.0});
    const auto policy = MakeAnalyticPolicy();
    for (int i = 0; i < kRounds; ++i) {
      const RoundOutcome outcome =
          PlayRound(acceptance, fixed_depth > 0 ? fixed_depth : policy->NextDepth(costs), random);
      policy->Observe(outcome);
      estimate.Observe(outcome);
      spread.trials += (outcome.accepted + (outcome.rejected ? 1.0 : 0.0)) / kRepeats;
    }
    sum += estimate.value();
    squares += estimate.value() * estimate.value();
    spread.absolute_error += std::abs(estimate.value() - acceptance) / kRepeats;
  }
  spread.variance = squares / kRepeats - sum / kRepeats * sum / kRepeats;
  return spread;
}

// Theorem 1: windows that follow the estimate leave it no more spread than a fixed one. What that rests on is
// that they try more tokens (S + F >= N gamma in its proof): the fixed window is one that was set too small,
// as from a profile of other text. The variance is A (1 - A) over the number of trials, as of any share; the
// paper's proof has the square of that number, which is not it.
TEST(TheoremOneTest, AdaptiveWindowsEstimateNoWorseThanAFixedOne) {
  for (const double acceptance : {0.6, 0.8, 0.9}) {
    SCOPED_TRACE(acceptance);
    const Spread fixed = SpreadOf(acceptance, /*fixed_depth=*/1, /*max_depth=*/8, /*draft_seconds=*/0.02);
    const Spread adaptive = SpreadOf(acceptance, /*fixed_depth=*/0, /*max_depth=*/8, /*draft_seconds=*/0.02);
    EXPECT_GT(adaptive.trials, fixed.trials);
    EXPECT_LT(adaptive.variance, fixed.variance);
    EXPECT_LT(adaptive.absolute_error, fixed.absolute_error);
    EXPECT_NEAR(fixed.variance, acceptance * (1 - acceptance) / fixed.trials, 0.15 * fixed.variance);
    EXPECT_NEAR(adaptive.variance, acceptance * (1 - acceptance) / adaptive.trials, 0.25 * adaptive.variance);
  }
}

// Where drafting is dear, the policy tries less than a fixed window would, and knows less: the theorem does
// not hold without its assumption.
TEST(TheoremOneTest, DoesNotHoldWhereAdaptiveWindowsAreSmaller) {
  const Spread fixed = SpreadOf(0.5, /*fixed_depth=*/8, /*max_depth=*/8, /*draft_seconds=*/0.4);
  const Spread adaptive = SpreadOf(0.5, /*fixed_depth=*/0, /*max_depth=*/8, /*draft_seconds=*/0.4);
  EXPECT_LT(adaptive.trials, fixed.trials);
  EXPECT_GT(adaptive.variance, fixed.variance);
}

}  // namespace
}  // namespace tandem

#include "common/speculation/draft_payoff.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// A drafter under which a drafted round commits `tokens` on average at `cost`, against 1 for 1.
struct Drafter {
  double tokens = 1.0;
  double cost = 1.0;
};

struct Served {
  double tokens = 0.0;
  double cost = 0.0;
  int drafted_steps = 0;
  double yield() const { return tokens / cost; }
};

Served Simulate(DraftPayoff& payoff, const Drafter& drafter, int steps, std::mt19937& random,
                double num_sessions = 1.0) {
  std::normal_distribution<double> noise(1.0, 0.1);
  std::poisson_distribution<int> extra(std::max(drafter.tokens - 1.0, 1e-9));
  Served run;
  for (int i = 0; i < steps; ++i) {
    const bool drafted = payoff.drafting();
    const double jitter = std::max(noise(random), 0.5);
    const DraftPayoff::StepYield yield{.drafted = drafted,
                                       .tokens = num_sessions * (drafted ? 1.0 + extra(random) : 1.0),
                                       .cost = num_sessions * jitter * (drafted ? drafter.cost : 1.0)};
    run.tokens += yield.tokens;
    run.cost += yield.cost;
    run.drafted_steps += drafted ? 1 : 0;
    payoff.Observe(yield);
  }
  return run;
}

TEST(DraftPayoffTest, KeepsDraftingWhenItPays) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    DraftPayoff payoff;
    const Served run = Simulate(payoff, {.tokens = 2.2, .cost = 1.1}, 3000, random);
    EXPECT_GT(run.yield(), 0.97 * 2.0) << "seed " << seed;
  }
}

// Law 6: whatever the drafter does, within 3% of plain decoding, the first steps included.
TEST(DraftPayoffTest, IsNeverMuchSlowerThanPlainDecoding) {
  const Drafter drafters[] = {
      {.tokens = 1.0, .cost = 1.05},  // Guesses at random,
      {.tokens = 1.0, .cost = 1.5},   // and on the verifier's cores;
      {.tokens = 1.02, .cost = 3.0},  // ten times too slow;
      {.tokens = 1.5, .cost = 1.6},   // good, but it steals more than it gives.
      {.tokens = 1.0, .cost = 1.0},
  };
  for (const Drafter& drafter : drafters) {
    for (uint32_t seed = 0; seed < 10; ++seed) {
      std::mt19937 random(seed);
      DraftPayoff payoff;
      const Served run = Simulate(payoff, drafter, 3000, random);
      EXPECT_GT(run.yield(), 0.96) << "tokens " << drafter.tokens << ", cost " << drafter.cost << ", seed "
                                   << seed;
      const Served later = Simulate(payoff, drafter, 3000, random);
      EXPECT_GT(later.yield(), 0.97) << "tokens " << drafter.tokens << ", cost " << drafter.cost << ", seed "
                                     << seed;
    }
  }
}

TEST(DraftPayoffTest, NoticesThatDraftingStartsAndStopsToPay) {
  std::mt19937 random(3);
  DraftPayoff payoff;
  Simulate(payoff, {.tokens = 1.0, .cost = 1.4}, 1000, random);
  EXPECT_LT(payoff.drafted_yield(), payoff.plain_yield());
  Simulate(payoff, {.tokens = 2.5, .cost = 1.1}, 2000, random);
  Served run = Simulate(payoff, {.tokens = 2.5, .cost = 1.1}, 1000, random);
  EXPECT_GT(run.drafted_steps, 900);
  Simulate(payoff, {.tokens = 1.1, .cost = 1.6}, 500, random);
  run = Simulate(payoff, {.tokens = 1.1, .cost = 1.6}, 1000, random);
  EXPECT_LT(run.drafted_steps, 100);
}

TEST(DraftPayoffTest, ComparesWithWhatPlainStepsReallyTake) {
  // The machine is twice as slow as at warm-up, drafted or not.
  std::mt19937 random(4);
  DraftPayoff payoff;
  std::normal_distribution<double> noise(2.0, 0.1);
  int drafted_steps = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool drafted = payoff.drafting();
    drafted_steps += drafted ? 1 : 0;
    payoff.Observe({.drafted = drafted, .tokens = drafted ? 1.6 : 1.0, .cost = noise(random)});
  }
  EXPECT_GT(drafted_steps, 900);
}

TEST(DraftPayoffTest, BatchesCountAsManyRounds) {
  std::mt19937 random(5);
  DraftPayoff payoff;
  const Served run = Simulate(payoff, {.tokens = 1.0, .cost = 1.5}, 2000, random, 32.0);
  EXPECT_GT(run.yield(), 0.96);
}

// A drafter that has to compute many prompts for a probe goes on long after it.
TEST(DraftPayoffTest, WhatAProbeLeavesBehindIsItsLoss) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(1.0, 0.05);
    DraftPayoff payoff;
    double tokens = 0.0;
    double cost = 0.0;
    int slowed = 0;
    for (int i = 0; i < 8000; ++i) {
      const bool drafted = payoff.drafting();
      slowed = drafted ? 40 : std::max(slowed - 1, 0);
      const double took = noise(random) * (drafted || slowed > 0 ? 1.6 : 1.0);
      payoff.Observe({.drafted = drafted, .tokens = 1.0, .cost = took});
      if (i < 2000) continue;
      tokens += 1.0;
      cost += took;
    }
    EXPECT_GT(tokens / cost, 0.98) << "seed " << seed;
  }
}

// After a switch to it the drafter has many prompts to compute before it can show what it is worth.
TEST(DraftPayoffTest, AProbeWaitsForTheFirstDrafts) {
  for (const bool ever_drafts : {true, false}) {
    std::mt19937 random(1);
    std::normal_distribution<double> noise(1.0, 0.05);
    DraftPayoff payoff;
    double tokens = 0.0;
    double cost = 0.0;
    int opening = 30;
    int drafted_steps = 0;
    for (int i = 0; i < 12000; ++i) {
      // It was no good at first, which is over.
      const bool good = ever_drafts && i > 1000;
      const bool drafted = payoff.drafting();
      opening = drafted ? std::max(opening - 1, 0) : 30;
      const bool drafts = drafted && opening == 0 && ever_drafts;
      const double got = drafts && good ? 2.0 : 1.0;
      const double took = noise(random) * (drafted ? 1.2 : 1.0);
      payoff.Observe({.drafted = drafted, .tokens = got, .cost = took, .opening = drafted && !drafts});
      if (i < 8000) continue;
      tokens += got;
      cost += took;
      drafted_steps += drafted ? 1 : 0;
    }
    if (ever_drafts) {
      EXPECT_GT(drafted_steps, 3600);
    } else {
      EXPECT_GT(tokens / cost, 0.98);
    }
  }
}

// Both ways commit several tokens a round, more or less, and differ by a few percent.
TEST(DraftPayoffTest, TellsTwoWaysOfDraftingApart) {
  const auto share_of_more = [](double more_yield, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> tokens(2.4, 0.6);
    std::normal_distribution<double> cost(1.2, 0.08);
    DraftPayoff payoff({.probe_steps = 32,
                        .settling_steps = 4,
                        .history = 512.0,
                        .kept_for_probe = 0.8,
                        .unknown_plain = 0.0,
                        .first_steps = 64});
    int more = 0;
    for (int i = 0; i < 6000; ++i) {
      const bool drafts_more = payoff.drafting();
      if (i >= 2000) more += drafts_more ? 1 : 0;
      payoff.Observe({.drafted = drafts_more,
                      .tokens = std::max(tokens(random), 1.0) * (drafts_more ? more_yield : 1.0),
                      .cost = cost(random)});
    }
    return more / 4000.0;
  };
  double better = 0.0;
  double worse = 0.0;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    better += share_of_more(1.10, seed) / 10.0;
    worse += share_of_more(0.92, seed) / 10.0;
  }
  EXPECT_GT(better, 0.8);
  EXPECT_LT(worse, 0.2);
}

TEST(DraftPayoffTest, IgnoresNonsense) {
  DraftPayoff payoff;
  for (double cost : {0.0, -1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    for (int i = 0; i < 100; ++i) payoff.Observe({.drafted = payoff.drafting(), .tokens = 1.0, .cost = cost});
  }
  EXPECT_TRUE(payoff.drafting());
}

}  // namespace
}  // namespace tandem

// The whole draft protocol under seeded chance: what a request comes to must not depend on anything that
// happens between verifier and drafters (DESIGN laws 2, 3 and 5).
//
//   TANDEM_SIMULATION_SEEDS   how many seeds to run (default 1000, and 500 where memory is short; with a
//                             sanitizer, which looks at what they do and not at how it ends, a quarter)
//   TANDEM_SIMULATION_FIRST   the first of them (default 1)
//   TANDEM_SIMULATION_SEED    run only this one

#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/environment_number.h"
#include "tests/simulation/seeds.h"

namespace tandem::simulation {
namespace {

#ifdef TANDEM_SANITIZED
constexpr uint64_t kSeeds = 250;
#else
constexpr uint64_t kSeeds = 1000;
#endif

class SimulationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto loaded =
        Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m"));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = new std::shared_ptr<const Tokenizer>(*loaded);
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  // Runs `count` seeds, or the one that was asked for.
  static Outcome RunSeeds(uint64_t count, Weather weather) {
    const Seeds seeds("TANDEM_SIMULATION", count);
    Outcome total;
    for (uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
      const Outcome outcome = RunSeed(seed, weather, *tokenizer_);
      total.Add(outcome);
      if (outcome.findings.empty()) continue;
      const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
      ADD_FAILURE() << "seed " << seed << ":\n  " << absl::StrJoin(outcome.findings, "\n  ")
                    << "\nTo see it again: TANDEM_SIMULATION_SEED=" << seed
                    << " build/dev/bin/tandem_simulation_test --gtest_filter=SimulationTest." << test->name();
      break;
    }
    return total;
  }

  static std::shared_ptr<const Tokenizer>* tokenizer_;
};

std::shared_ptr<const Tokenizer>* SimulationTest::tokenizer_ = nullptr;

void Print(const Outcome& outcome) {
  std::cout << outcome.completed << " completed, " << outcome.expired << " expired, " << outcome.cancelled
            << " cancelled, " << outcome.rejected << " rejected; " << outcome.rounds << " rounds, "
            << outcome.drafted_rounds << " drafted, " << outcome.hits << " hits; " << outcome.accepted_tokens
            << " of " << outcome.draft_tokens << " draft tokens accepted; " << outcome.cached_prompt_tokens
            << " prompt tokens cached; " << outcome.preemptions << " preemptions, " << outcome.parked_sessions
            << " drafts parked; " << outcome.swaps << " swaps, " << outcome.refused_swaps << " refused, "
            << outcome.drafter_changes << " drafters changed; " << outcome.violations << " violations, "
            << outcome.resyncs << " resyncs, " << outcome.duplicates << " duplicates, " << outcome.clock_jumps
            << " clock jumps; " << outcome.feature_rows << " rows of features, " << outcome.feature_commits
            << " commits with some; " << outcome.masked_rows << " rows masked by drafters, "
            << outcome.masked_drafts << " candidates dropped\n";
}

TEST_F(SimulationTest, OutputsDoNotDependOnDraftersOrFaults) {
  const Outcome total = RunSeeds(NumberFromEnvironment("TANDEM_SIMULATION_SEEDS", kSeeds), Weather::kStorm);
  Print(total);
  // A storm that does not blow proves nothing.
  EXPECT_GT(total.accepted_tokens, 0u);
  EXPECT_GT(total.duplicates, 0u);
  EXPECT_GT(total.resyncs, 0u);
  EXPECT_GT(total.violations, 0u);
  EXPECT_GT(total.clock_jumps, 0u);
  EXPECT_GT(total.expired, 0u);
  EXPECT_GT(total.cancelled, 0u);
  EXPECT_GT(total.cached_prompt_tokens, 0u);
  EXPECT_GT(total.swaps, total.refused_swaps);
  EXPECT_GT(total.refused_swaps, 0u);
  EXPECT_GT(total.drafter_changes, 0u);
  EXPECT_GT(total.feature_rows, 0u);
  EXPECT_GT(total.feature_commits, 0u);
  EXPECT_GT(total.masked_rows, 0u);
  EXPECT_GT(total.masked_drafts, 0u);
}

TEST_F(SimulationTest, OutputsDoNotDependOnMemory) {
  const Outcome total =
      RunSeeds(NumberFromEnvironment("TANDEM_SIMULATION_SEEDS", kSeeds / 2), Weather::kDrought);
  Print(total);
  // Preemption is what this is about, and it meets everything else.
  EXPECT_GT(total.preemptions, total.completed / 10);
  EXPECT_GT(total.parked_sessions, 0u);
  EXPECT_GT(total.feature_rows, 0u);
  EXPECT_GT(total.accepted_tokens, 0u);
  EXPECT_GT(total.expired, 0u);
  EXPECT_GT(total.cancelled, 0u);
  EXPECT_GT(total.cached_prompt_tokens, 0u);
}

TEST_F(SimulationTest, InCalmWeatherDraftingPays) {
  const Outcome total = RunSeeds(30, Weather::kCalm);
  Print(total);
  EXPECT_EQ(total.violations, 0u);
  EXPECT_EQ(total.resyncs, 0u);
  EXPECT_GT(total.hits, total.rounds / 4);
  EXPECT_GT(1.0 + static_cast<double>(total.accepted_tokens) / static_cast<double>(total.rounds), 1.5);
}

TEST_F(SimulationTest, DuplicatesCauseNoStormOfResyncs) {
  const Outcome total = RunSeeds(30, Weather::kDuplicates);
  Print(total);
  EXPECT_GT(total.duplicates, 100u);
  EXPECT_LE(total.resyncs, total.duplicates / 10);
  EXPECT_GT(1.0 + static_cast<double>(total.accepted_tokens) / static_cast<double>(total.rounds), 1.5);
}

}  // namespace
}  // namespace tandem::simulation

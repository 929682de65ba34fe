#include "bench/serve/summary.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

RequestRecord Record(std::vector<uint32_t> tokens, double seconds) {
  RequestRecord record;
  record.status = absl::OkStatus();
  record.total_seconds = seconds;
  record.chunks = {{.seconds = seconds / 2, .tokens = 1},
                   {.seconds = seconds, .tokens = static_cast<uint32_t>(tokens.size()) - 1}};
  record.tokens = std::move(tokens);
  return record;
}

// Two configurations, one of them the baseline, on one prompt each turn.
class SummaryTest : public ::testing::Test {
 protected:
  SummaryTest() {
    experiment_.prompts = {{"d", "p0", "x"}, {"d", "p1", "y"}};
    experiment_.batches = {{"d", {0}}, {"d", {1}}};
    experiment_.samplings = {{0.0, 1}};
    experiment_.loads = {Load{}};
    experiment_.configurations = {{.label = "off"}, {.label = "a", .drafter = "a"}};
  }
  void Add(uint32_t repetition, uint32_t batch, uint32_t configuration, RequestRecord record) {
    const double seconds = record.total_seconds;
    experiment_.results.push_back(
        {.turn = {.repetition = repetition, .batch = batch, .configuration = configuration},
         .seconds = seconds,
         .records = {std::move(record)}});
  }

  Experiment experiment_;
};

TEST_F(SummaryTest, ComparesWithTheBaselineOfTheSameTurn) {
  // The machine is three times as slow in the second repetition; the ratio is not.
  Add(0, 0, 0, Record({1, 2, 3, 4}, 4.0));
  Add(0, 0, 1, Record({1, 2, 3, 4}, 2.0));
  Add(1, 0, 1, Record({1, 2, 3, 4}, 6.0));
  Add(1, 0, 0, Record({1, 2, 3, 4}, 12.0));
  Add(0, 1, 0, Record({5, 6}, 2.0));
  Add(0, 1, 1, Record({5, 6}, 1.25));
  const std::vector<Summary> summaries = Summarize(experiment_);
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_THAT(summaries[0].ratios, ElementsAre(1.0, 1.0, 1.0));
  EXPECT_THAT(summaries[1].ratios,
              ElementsAre(DoubleNear(2.0, 1e-9), DoubleNear(2.0, 1e-9), DoubleNear(1.6, 1e-9)));
  EXPECT_DOUBLE_EQ(summaries[1].speed_up.median, 2.0);
  EXPECT_EQ(summaries[1].tokens, 10u);
  EXPECT_DOUBLE_EQ(summaries[1].tokens_per_second, 10 / 9.25);
  EXPECT_THAT(FindMismatches(experiment_), IsEmpty());
}

TEST_F(SummaryTest, OpenLoadsCompareLatencies) {
  experiment_.loads = {{.requests_per_second = 1.0}};
  Add(0, 0, 0, Record({1, 2}, 3.0));
  Add(0, 0, 1, Record({1, 2}, 2.0));
  for (TurnResult& result : experiment_.results) result.seconds = 60.0;
  EXPECT_THAT(Summarize(experiment_)[1].ratios, ElementsAre(DoubleNear(1.5, 1e-9)));
}

TEST_F(SummaryTest, AddsUpSpeculation) {
  RequestRecord record = Record({1, 2, 3, 4}, 1.0);
  v1::SpeculationStats& stats = *record.finished.mutable_speculation();
  stats.set_rounds(5);
  stats.set_drafted_rounds(4);
  stats.set_hits(3);
  stats.set_misses(1);
  stats.set_draft_tokens(20);
  stats.set_accepted_tokens(6);
  stats.add_accepted_per_position(4);
  stats.add_accepted_per_position(2);
  stats.add_window_histogram(1);
  v1::SourceStats& drafter = *stats.add_by_source();
  drafter.set_source(v1::DRAFT_SOURCE_DRAFTER);
  drafter.set_draft_tokens(16);
  drafter.set_accepted_tokens(4);
  v1::SourceStats& local = *stats.add_by_source();
  local.set_source(v1::DRAFT_SOURCE_LOCAL);
  local.set_draft_tokens(4);
  local.set_accepted_tokens(2);
  Add(0, 0, 1, record);
  stats.add_accepted_per_position(1);
  Add(1, 0, 1, record);
  const Summary summary = Summarize(experiment_).at(0);
  EXPECT_EQ(summary.drafted_rounds, 8u);
  EXPECT_EQ(summary.hits, 6u);
  EXPECT_DOUBLE_EQ(summary.acceptance_rate(), 0.3);
  EXPECT_DOUBLE_EQ(summary.mean_acceptance_length(), 2.5);
  EXPECT_EQ(summary.by_drafter.draft_tokens, 32u);
  EXPECT_DOUBLE_EQ(summary.by_drafter.acceptance_rate(), 0.25);
  EXPECT_DOUBLE_EQ(summary.EarnedPerRound(summary.by_drafter), 0.8);
  EXPECT_DOUBLE_EQ(summary.EarnedPerRound(summary.by_local), 0.4);
  EXPECT_THAT(summary.accepted_per_position, ElementsAre(8, 4, 1));
  EXPECT_THAT(summary.window_histogram, ElementsAre(2));
  EXPECT_THAT(summary.ratios, IsEmpty());  // There was no baseline.
  EXPECT_EQ(Summary().mean_acceptance_length(), 1.0);
}

TEST_F(SummaryTest, FailedRequestsAreCountedAndNotCompared) {
  RequestRecord failed;
  failed.status = absl::UnavailableError("gone");
  Add(0, 0, 0, Record({1, 2}, 1.0));
  Add(0, 0, 1, failed);
  Add(1, 0, 0, Record({1, 2}, 1.0));
  Add(1, 0, 1, Record({1, 2}, 0.5));
  const std::vector<Summary> summaries = Summarize(experiment_);
  EXPECT_EQ(summaries[1].requests, 2u);
  EXPECT_EQ(summaries[1].errors, 1u);
  EXPECT_EQ(summaries[1].first_error, "UNAVAILABLE: gone");
  EXPECT_THAT(summaries[1].ratios, ElementsAre(2.0));
  EXPECT_THAT(FindMismatches(experiment_), IsEmpty());
}

TEST_F(SummaryTest, FindsOutputsThatDiffer) {
  Add(0, 0, 0, Record({1, 2, 3}, 1.0));
  Add(0, 0, 1, Record({1, 2, 4}, 1.0));
  Add(0, 1, 1, Record({1, 2, 4}, 1.0));
  Add(1, 0, 1, Record({1, 2}, 1.0));  // The same configuration and prompt: told once.
  RequestRecord other_text = Record({1, 2, 4}, 1.0);
  other_text.text = "different";
  Add(0, 1, 0, other_text);
  const std::vector<Mismatch> mismatches = FindMismatches(experiment_);
  ASSERT_EQ(mismatches.size(), 2u);
  EXPECT_EQ(mismatches[0].prompt, 0u);
  EXPECT_EQ(mismatches[0].configuration, 1u);
  EXPECT_EQ(mismatches[0].reference, 0u);
  EXPECT_EQ(mismatches[0].position, 2u);
  EXPECT_EQ(mismatches[1].prompt, 1u);
  EXPECT_EQ(mismatches[1].configuration, 0u);
}

}  // namespace
}  // namespace tandem::bench

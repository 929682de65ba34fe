#include "common/speculation/round_time_model.h"

#include <limits>

#include "common/speculation/draft_times.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;

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

// Steps with few rows take what warm-up said, those with many twice as long.
TEST(RoundTimeModelTest, LearnsWhatFurtherRowsCost) {
  RoundTimeModel model({{1, 1.0}, {9, 2.0}});
  for (int i = 0; i < 200; ++i) {
    model.Observe(1, 1.0);
    model.Observe(9, 4.0);
  }
  EXPECT_THAT(model.Seconds(1), DoubleNear(1.0, 0.15));
  EXPECT_THAT(model.Seconds(9), DoubleNear(4.0, 0.3));
  EXPECT_GT(model.Seconds(5), 2.2);
  // The other way round they do not get cheaper beside the first one than the grid says.
  for (int i = 0; i < 400; ++i) {
    model.Observe(1, 4.0);
    model.Observe(9, 4.0);
  }
  EXPECT_THAT(model.Seconds(9) / model.Seconds(1), DoubleNear(2.0, 0.05));
  for (uint32_t rows = 1; rows < 64; ++rows) EXPECT_LT(model.Seconds(rows), model.Seconds(rows + 1));
}

// What differs from step to step for other reasons says nothing of rows.
TEST(RoundTimeModelTest, StepsThatAreAlikeSayNothingOfFurtherRows) {
  RoundTimeModel model({{1, 1.0}, {9, 2.0}});
  for (int i = 0; i < 400; ++i) model.Observe(9, i % 2 == 0 ? 3.0 : 5.0);
  EXPECT_THAT(model.Seconds(9) / model.Seconds(1), DoubleNear(2.0, 1e-9));
}

// Where warm-up did not measure what further rows cost, they may also become cheaper.
TEST(RoundTimeModelTest, AGuessIsCorrectedEitherWay) {
  for (const double further : {0.02, 0.1, 0.4, 1.0}) {
    SCOPED_TRACE(further);
    RoundTimeModel model({{1, 1.0}, {9, 2.0}}, /*guessed=*/true);
    for (int i = 0; i < 300; ++i) {
      const uint32_t rows = i % 2 == 0 ? 1 : 17;
      model.Observe(rows, 1.0 + further * (rows - 1));
    }
    EXPECT_THAT(model.Seconds(1), DoubleNear(1.0, 0.3));
    EXPECT_THAT(model.Seconds(17) / (1.0 + 16 * further), DoubleNear(1.0, 0.15));
    for (uint32_t rows = 1; rows < 64; ++rows) EXPECT_LT(model.Seconds(rows), model.Seconds(rows + 1));
  }
}

// The only pass of a warm-up was fifty times as slow as those that come.
TEST(RoundTimeModelTest, AGuessIsLeftAtOnce) {
  RoundTimeModel model({{1, 50.0}, {9, 100.0}}, /*guessed=*/true);
  for (int i = 0; i < 3; ++i) model.Observe(1, 1.0);
  EXPECT_THAT(model.Seconds(1), DoubleNear(1.0, 0.01));
  for (int i = 0; i < 8; ++i) model.Observe(i % 2 == 0 ? 1 : 17, i % 2 == 0 ? 1.0 : 2.0);
  EXPECT_THAT(model.Seconds(1), DoubleNear(1.0, 0.2));
  EXPECT_THAT(model.Seconds(17), DoubleNear(2.0, 0.3));
}

TEST(RoundTimeModelTest, InterpolatesOverRowsAndContexts) {
  const RoundTimeModel model({{.rows = 8, .seconds = 3.0, .context = 100},
                              {.rows = 1, .seconds = 1.0, .context = 100},
                              {.rows = 1, .seconds = 2.0, .context = 300},
                              {.rows = 8, .seconds = 11.0, .context = 300}});
  EXPECT_THAT(model.Seconds(1, 0), DoubleEq(1.0));
  EXPECT_THAT(model.Seconds(1, 200), DoubleEq(1.5));
  EXPECT_THAT(model.Seconds(8, 200), DoubleEq(7.0));
  EXPECT_THAT(model.Seconds(8, 400), DoubleEq(15.0));
  EXPECT_THAT(model.Seconds(15, 100), DoubleEq(5.0));
}

TEST(RoundTimeModelTest, NeverGetsFasterWithMoreToDo) {
  const RoundTimeModel model({{.rows = 1, .seconds = 2.0, .context = 10},
                              {.rows = 1, .seconds = 1.0, .context = 90},
                              {.rows = 4, .seconds = 1.5, .context = 10},
                              {.rows = 4, .seconds = 3.0, .context = 90}});
  for (uint32_t context = 0; context < 1000; context += 10) {
    for (uint32_t rows = 1; rows < 64; ++rows) {
      ASSERT_LE(model.Seconds(rows, context), model.Seconds(rows + 1, context));
      ASSERT_LE(model.Seconds(rows, context), model.Seconds(rows, context + 10));
    }
  }
}

TEST(RoundTimeModelTest, CorrectionIsRelativeToTheContext) {
  RoundTimeModel model(
      {{.rows = 1, .seconds = 1.0, .context = 0}, {.rows = 1, .seconds = 3.0, .context = 100}});
  for (int i = 0; i < 200; ++i) model.Observe(1, 6.0, 100);
  EXPECT_THAT(model.correction(), DoubleNear(2.0, 0.01));
  EXPECT_THAT(model.Uncorrected(1, 100), DoubleEq(3.0));
}

TEST(RoundTimeModelTest, NoTimeIsTooStrangeToRecoverFrom) {
  for (const double strange : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), 1e300,
                               std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(strange);
    RoundTimeModel model({{1, 1.0}, {8, 2.0}});
    for (int i = 0; i < 100'000; ++i) model.Observe(1, strange);
    EXPECT_GT(model.correction(), 0.0);
    EXPECT_LE(model.correction(), 1000.0);
    for (int i = 0; i < 1000; ++i) model.Observe(1, 1.0);
    EXPECT_THAT(model.Seconds(1), DoubleNear(1.0, 0.01));
  }
}

TEST(DraftTimesTest, TellsLevelsAndTheWayApart) {
  DraftTimes times;
  EXPECT_FALSE(times.knows_first_growth());
  times.ObserveLevel(0.002);
  times.ObserveFirstGrowth(0.005);
  EXPECT_THAT(times.SecondsTo(1), DoubleEq(0.005));
  EXPECT_THAT(times.SecondsTo(3), DoubleNear(0.009, 1e-12));
}

TEST(DraftTimesTest, BoundsWhatADrafterSays) {
  DraftTimes times;
  times.ObserveLevel(-1.0);
  times.ObserveLevel(std::numeric_limits<double>::quiet_NaN());
  times.ObserveLevel(std::numeric_limits<double>::infinity());
  EXPECT_THAT(times.level_seconds(), DoubleEq(0.0));
  times.ObserveLevel(1e30);
  EXPECT_LE(times.level_seconds(), 10.0);
  DraftTimes steady;
  steady.ObserveLevel(0.001);
  steady.ObserveLevel(1e30);
  EXPECT_LT(steady.level_seconds(), 0.0015);
}

}  // namespace
}  // namespace tandem

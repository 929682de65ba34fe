#include "common/speculation/score_calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::DoubleNear;

TEST(ScoreCalibrationTest, IsTheIdentityBeforeData) {
  ScoreCalibration calibration;
  for (float score : {0.0001f, 0.01f, 0.2f, 0.5f, 0.777f, 0.99f, 0.9999f}) {
    for (float temperature : {0.0f, 0.5f, 1.0f}) {
      EXPECT_THAT(calibration.Calibrated(temperature, 3, score), DoubleNear(score, 1e-4));
    }
  }
}

// What a drafter's score stands for, and its calibration after serving it.
void Learn(ScoreCalibration& calibration, std::mt19937& random, uint32_t depth, float temperature,
           double (*truth)(double), int observations) {
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  for (int i = 0; i < observations; ++i) {
    const double score = 0.02 + 0.96 * unit(random);
    calibration.Observe(temperature, depth, static_cast<float>(score), unit(random) < truth(score));
  }
}

TEST(ScoreCalibrationTest, LearnsAnOverconfidentDrafter) {
  std::mt19937 random(1);
  ScoreCalibration calibration;
  const auto truth = [](double score) { return score * score; };
  Learn(calibration, random, 1, 0.0f, truth, 4000);
  double worst = 0.0;
  for (double score = 0.05; score < 0.99; score += 0.05) {
    worst =
        std::max(worst, std::abs(calibration.Calibrated(0.0f, 1, static_cast<float>(score)) - truth(score)));
  }
  EXPECT_LT(worst, 0.12);
  // Other temperatures are as before, other depths lean on what was learned for this one.
  EXPECT_THAT(calibration.Calibrated(1.0f, 1, 0.5f), DoubleNear(0.5, 1e-6));
  EXPECT_THAT(calibration.Calibrated(0.0f, 7, 0.5f), DoubleNear(0.25, 0.12));
}

TEST(ScoreCalibrationTest, TellsDepthsApart) {
  std::mt19937 random(2);
  ScoreCalibration calibration;
  for (int i = 0; i < 20; ++i) {
    Learn(
        calibration, random, 1, 0.8f, [](double score) { return score; }, 200);
    Learn(
        calibration, random, 6, 0.8f, [](double score) { return 0.3 * score; }, 200);
  }
  EXPECT_THAT(calibration.Calibrated(0.8f, 1, 0.6f), DoubleNear(0.6, 0.12));
  EXPECT_THAT(calibration.Calibrated(0.8f, 6, 0.6f), DoubleNear(0.18, 0.12));
}

TEST(ScoreCalibrationTest, FollowsAChange) {
  std::mt19937 random(3);
  ScoreCalibration calibration({.horizon = 500.0});
  Learn(
      calibration, random, 1, 0.0f, [](double) { return 0.9; }, 5000);
  EXPECT_GT(calibration.Calibrated(0.0f, 1, 0.5f), 0.8);
  Learn(
      calibration, random, 1, 0.0f, [](double) { return 0.1; }, 5000);
  EXPECT_LT(calibration.Calibrated(0.0f, 1, 0.5f), 0.2);
}

TEST(ScoreCalibrationTest, KeepsTheOrderOfScoresWhateverItIsTold) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  ScoreCalibration calibration({.horizon = 100.0});
  for (int i = 0; i < 3000; ++i) {
    // The better the score, the worse the node; now and then, no score at all.
    const double score = unit(random);
    calibration.Observe(0.0f, 1 + static_cast<uint32_t>(random() % 9), static_cast<float>(score),
                        unit(random) > score);
    if (i % 100 != 0) continue;
    for (uint32_t depth : {1u, 2u, 4u, 9u}) {
      double last = 0.0;
      for (double at = 0.0; at <= 1.0; at += 0.001) {
        const double calibrated = calibration.Calibrated(0.0f, depth, static_cast<float>(at));
        ASSERT_GE(calibrated, last - 1e-12);
        last = calibrated;
      }
    }
  }
}

TEST(ScoreCalibrationTest, HostileScoresStayNumbers) {
  ScoreCalibration calibration;
  const float scores[] = {0.0f,
                          1.0f,
                          -3.0f,
                          1e30f,
                          std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::denorm_min()};
  for (int i = 0; i < 1000; ++i) {
    calibration.Observe(i % 2 == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN(), UINT32_MAX - (i % 3),
                        scores[i % 7], i % 5 == 0);
  }
  for (float score : scores) {
    for (uint32_t depth : {0u, 1u, UINT32_MAX}) {
      const double calibrated = calibration.Calibrated(0.0f, depth, score);
      EXPECT_GT(calibrated, 0.0);
      EXPECT_LT(calibrated, 1.0);
    }
  }
}

// All scores 1 and none right: one bad faith costs a few rounds.
TEST(ScoreCalibrationTest, SureGuessesThatAreNeverRightAreFoundOut) {
  ScoreCalibration calibration;
  for (int i = 0; i < 60; ++i) calibration.Observe(0.0f, 1, 1.0f, false);
  EXPECT_LT(calibration.Calibrated(0.0f, 1, 1.0f), 0.1);
}

}  // namespace
}  // namespace tandem

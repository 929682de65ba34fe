#include "router/drafters/choice/acceptance_regression.h"

#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

struct Sample {
  std::vector<double> features;
  double acceptance;
  double weight;
};

// Acceptance is linear in the features, with noise.
std::vector<Sample> Samples(size_t count, size_t dimension, double noise, uint32_t seed = 5) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Sample> samples;
  for (size_t i = 0; i < count; ++i) {
    Sample sample{.features = std::vector<double>(dimension), .acceptance = 0.55, .weight = 0.5};
    for (double& feature : sample.features) feature = normal(random);
    sample.acceptance += 0.1 * sample.features[0] - 0.05 * sample.features[1] + noise * normal(random);
    sample.acceptance = std::clamp(sample.acceptance, 0.0, 1.0);
    if (i % 2 == 0) sample.weight = 1.0;
    samples.push_back(sample);
  }
  return samples;
}

AcceptanceRegression Learned(const AcceptanceRegression::Options& options,
                             const std::vector<Sample>& samples) {
  AcceptanceRegression regression(options, samples[0].features.size());
  for (const Sample& sample : samples) {
    regression.Observe(sample.features, sample.acceptance, sample.weight);
  }
  return regression;
}

TEST(AcceptanceRegressionTest, OneByOneIsLeastSquaresOfAll) {
  AcceptanceRegression::Options options;
  options.forgetting = 1.0;
  options.ridge = options.intercept_ridge = 1e-9;
  const std::vector<Sample> samples = Samples(40, 6, 0.05);
  const AcceptanceRegression regression = Learned(options, samples);
  // Z = (sum w u u')^-1 sum w u a, by another decomposition of the stacked system.
  Eigen::MatrixXd rows(40, 7);
  Eigen::VectorXd values(40);
  for (int i = 0; i < 40; ++i) {
    const double root = std::sqrt(samples[i].weight);
    rows(i, 0) = root;
    for (int d = 0; d < 6; ++d) rows(i, d + 1) = root * samples[i].features[d];
    values[i] = root * samples[i].acceptance;
  }
  const Eigen::VectorXd solution = rows.colPivHouseholderQr().solve(values);
  for (const Sample& sample : Samples(5, 6, 0.0, 77)) {
    double expected = solution[0];
    for (int d = 0; d < 6; ++d) expected += solution[d + 1] * sample.features[d];
    EXPECT_NEAR(regression.Predict(sample.features).mean, expected, 1e-6);
  }
}

TEST(AcceptanceRegressionTest, FewerSamplesThanFeaturesStaySane) {
  const AcceptanceRegression regression = Learned({}, Samples(4, 16, 0.05));
  for (const Sample& sample : Samples(50, 16, 0.0, 9)) {
    const auto predicted = regression.Predict(sample.features);
    EXPECT_GT(predicted.mean, 0.3);
    EXPECT_LT(predicted.mean, 0.85);
    EXPECT_GT(predicted.high - predicted.low, 0.15);
  }
}

TEST(AcceptanceRegressionTest, NothingKnownIsThePrior) {
  const AcceptanceRegression regression({}, 3);
  const auto predicted = regression.Predict({1.0, -2.0, 0.5});
  EXPECT_DOUBLE_EQ(predicted.mean, 0.6);
  EXPECT_LT(predicted.low, 0.4);
  EXPECT_GT(predicted.high, 0.8);
  EXPECT_EQ(regression.samples(), 0u);
}

TEST(AcceptanceRegressionTest, NinetyOfAHundredLieInTheInterval) {
  AcceptanceRegression::Options options;
  options.forgetting = 1.0;
  AcceptanceRegression regression(options, 4);
  for (const Sample& sample : Samples(60, 4, 0.08))
    regression.Observe(sample.features, sample.acceptance, 1.0);
  int inside = 0;
  const std::vector<Sample> others = Samples(1000, 4, 0.08, 31);
  for (const Sample& sample : others) {
    const auto predicted = regression.Predict(sample.features);
    inside += sample.acceptance >= predicted.low && sample.acceptance <= predicted.high;
  }
  EXPECT_GT(inside, 860);
  EXPECT_LT(inside, 950);
}

TEST(AcceptanceRegressionTest, OldSamplesAreForgotten) {
  AcceptanceRegression::Options options;
  options.forgetting = 0.98;
  AcceptanceRegression regression(options, 1);
  for (int i = 0; i < 300; ++i) regression.Observe({0.0}, 0.8, 1.0);
  for (int i = 0; i < 150; ++i) regression.Observe({0.0}, 0.3, 1.0);
  EXPECT_NEAR(regression.Predict({0.0}).mean, 0.3, 0.05);
  EXPECT_EQ(regression.samples(), 450u);
  EXPECT_LT(regression.weight(), 51.0);
}

TEST(AcceptanceRegressionTest, AReplacedDrafterIsSeenWithinTwentyPrompts) {
  AcceptanceRegression regression = Learned({}, Samples(1000, 4, 0.05));
  const std::vector<Sample> after = Samples(20, 4, 0.0, /*seed=*/6);
  for (const Sample& sample : after) regression.Observe(sample.features, 0.02, sample.weight);
  double mean = 0.0;
  for (const Sample& sample : after) mean += regression.Predict(sample.features).mean / 20;
  EXPECT_LT(mean, 0.2) << "0.55 before";
}

TEST(AcceptanceRegressionTest, ChanceIsNoSurprise) {
  AcceptanceRegression regression = Learned({}, Samples(20000, 4, 0.05));
  EXPECT_GT(regression.weight(), 450.0) << "all that forgetting leaves";
}

TEST(AcceptanceRegressionTest, WhatIsNoAcceptanceIsIgnored) {
  AcceptanceRegression regression({}, 2);
  regression.Observe({1.0, 1.0}, std::nan(""), 1.0);
  regression.Observe({1.0, 1.0}, 1.5, 1.0);
  regression.Observe({1.0, 1.0}, 0.5, 0.0);
  regression.Observe({1.0, 1.0}, 0.5, INFINITY);
  regression.Observe({1.0, INFINITY}, 0.5, 1.0);
  regression.Observe({1.0}, 0.5, 1.0);
  EXPECT_EQ(regression.samples(), 0u);
}

TEST(AcceptanceRegressionTest, SavedAndLoadedIsTheSame) {
  const AcceptanceRegression regression = Learned({}, Samples(30, 5, 0.05));
  v1::RegressionState state;
  regression.Save(&state);
  const auto loaded = AcceptanceRegression::Load({}, 5, state);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->samples(), 30u);
  EXPECT_DOUBLE_EQ(loaded->Predict({1, 2, -1, 0, 0.5}).low, regression.Predict({1, 2, -1, 0, 0.5}).low);
}

TEST(AcceptanceRegressionTest, StatesThatCannotBeAreRefused) {
  v1::RegressionState good;
  Learned({}, Samples(30, 3, 0.05)).Save(&good);
  const auto error = [](const v1::RegressionState& state, size_t dimension = 3) {
    const absl::Status status = AcceptanceRegression::Load({}, dimension, state).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(good, 4), HasSubstr("expected those of 4 features"));
  v1::RegressionState state = good;
  state.set_gram(2, std::nan(""));
  EXPECT_THAT(error(state), HasSubstr("not finite"));
  state = good;
  state.set_squares(-1.0);
  EXPECT_THAT(error(state), HasSubstr("negative"));
  state = good;
  state.set_gram(0, -50.0);
  EXPECT_THAT(error(state), HasSubstr("regression.gram: not positive semidefinite"));
}

}  // namespace
}  // namespace tandem::router

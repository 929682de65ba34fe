#include "router/drafters/features/feature_model.h"

#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint32_t kVocabulary = 60;

// Prompts of two kinds: kind 0 uses tokens 0 to 19, kind 1 tokens 20 to 39 in a fixed order, which makes them
// predictable.
TokenIds Prompt(int kind, std::mt19937& random) {
  TokenIds prompt;
  const size_t length = 20 + random() % 30;
  for (size_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<TokenId>(kind == 0 ? random() % 20 : 20 + i % 20));
  }
  return prompt;
}

std::vector<TokenIds> Prompts(size_t count) {
  std::mt19937 random(3);
  std::vector<TokenIds> prompts;
  for (size_t i = 0; i < count; ++i) prompts.push_back(Prompt(static_cast<int>(i % 2), random));
  return prompts;
}

TEST(FeatureModelTest, FeaturesAreStandardised) {
  const std::vector<TokenIds> prompts = Prompts(60);
  const FeatureModel::Fitted fitted = FeatureModel::Fit(prompts, 16, kVocabulary);
  ASSERT_THAT(fitted.features, SizeIs(60));
  EXPECT_TRUE(fitted.model.fitted());
  for (size_t d = 0; d < 2; ++d) {
    double mean = 0;
    double squares = 0;
    for (const FeatureVector& features : fitted.features) {
      mean += features[d] / 60;
      squares += features[d] * features[d] / 60;
    }
    EXPECT_NEAR(mean, 0.0, 1e-9);
    EXPECT_NEAR(squares, 1.0, 0.05);
  }
}

TEST(FeatureModelTest, PerplexityIsThatOfUnseenPrompts) {
  const FeatureModel::Fitted fitted = FeatureModel::Fit(Prompts(60), 16, kVocabulary);
  std::mt19937 random(99);
  const FeatureModel::Extracted scattered = fitted.model.Extract(Prompt(0, random));
  const FeatureModel::Extracted orderly = fitted.model.Extract(Prompt(1, random));
  EXPECT_GT(scattered.nats_per_token, orderly.nats_per_token + 1.0);
  EXPECT_GT(scattered.features[1], 0.5);
  EXPECT_LT(orderly.features[1], -0.5);
  // A new prompt lands where the learned ones of its kind are, not beside them.
  EXPECT_NEAR(scattered.features[1], fitted.features[0][1], 0.5);
}

TEST(FeatureModelTest, AnotherPerplexityReplacesTheModels) {
  const FeatureModel::Fitted fitted = FeatureModel::Fit(Prompts(20), 16, kVocabulary);
  const TokenIds prompt = Prompts(1)[0];
  EXPECT_EQ(fitted.model.Extract(prompt, 2.5).nats_per_token, 2.5);
  EXPECT_NE(fitted.model.Extract(prompt, 2.5).features[1], fitted.model.Extract(prompt, 2.0).features[1]);
}

TEST(FeatureModelTest, StrangePromptsStayWithinBounds) {
  const FeatureModel::Fitted fitted = FeatureModel::Fit(Prompts(30), 16, kVocabulary);
  const auto within = [](double bound) {
    return Each(::testing::AllOf(::testing::Ge(-bound), ::testing::Le(bound)));
  };
  EXPECT_THAT(fitted.model.Extract(TokenIds(100000, 5)).features, within(FeatureModel::kBound));
  EXPECT_THAT(fitted.model.Extract({}).features, within(FeatureModel::kBound));
  EXPECT_THAT(fitted.model.Extract({-5, 1 << 30}).features, within(FeatureModel::kBound));
}

TEST(FeatureModelTest, WithoutPromptsThereAreFeaturesToo) {
  const FeatureModel model(16, kVocabulary);
  EXPECT_FALSE(model.fitted());
  const FeatureVector features = model.Extract({1, 2, 3}).features;
  EXPECT_THAT(features, SizeIs(16));
  EXPECT_NEAR(features[1], 0.0, 1e-6);
  EXPECT_NE(features, model.Extract({4, 5, 6}).features);
  EXPECT_FALSE(FeatureModel::Fit({}, 16, kVocabulary).model.fitted());
}

TEST(FeatureModelTest, SavedAndLoadedIsTheSame) {
  const FeatureModel::Fitted fitted = FeatureModel::Fit(Prompts(20), 8, kVocabulary);
  v1::FeatureModelState state;
  fitted.model.Save(&state);
  const absl::StatusOr<FeatureModel> loaded = FeatureModel::Load(state);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->Extract({1, 25, 30}).features, fitted.model.Extract({1, 25, 30}).features);
}

TEST(FeatureModelTest, StatesThatCannotBeAreRefused) {
  v1::FeatureModelState good;
  FeatureModel::Fit(Prompts(20), 8, kVocabulary).model.Save(&good);
  const auto error = [](const v1::FeatureModelState& state) {
    const absl::Status status = FeatureModel::Load(state).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  v1::FeatureModelState state = good;
  state.set_dimension(1u << 31);
  EXPECT_THAT(error(state), HasSubstr("features.dimension: 2147483648, expected 3 to 128"));
  state = good;
  state.set_dimension(9);
  EXPECT_THAT(error(state), HasSubstr("8 means"));
  state = good;
  state.set_scales(0, 0.0);
  EXPECT_THAT(error(state), HasSubstr("entry 0 of means or scales"));
  state = good;
  state.set_means(3, std::nan(""));
  EXPECT_THAT(error(state), HasSubstr("entry 3 of means or scales"));
}

}  // namespace
}  // namespace tandem::router

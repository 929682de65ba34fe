#include "router/drafters/choice_feedback.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::router {
namespace {

class ChoiceFeedbackTest : public ::testing::Test {
 protected:
  FeedbackRequest Request(std::optional<double> realised) {
    auto features = std::make_shared<ChoiceFeatures>(0, chooser_.Prepare(0, {1, 2, 3}, "acme"));
    if (realised.has_value()) features->SetRealised(*realised);
    return {.tenant = "acme", .model = "target", .drafter = "code", .features = features};
  }
  double Predicted(const std::string& drafter) {
    return chooser_.Predict(0, drafter, chooser_.Prepare(0, {1, 2, 3}, "acme")).mean;
  }
  static DrafterScore Score(const std::string& drafter, double acceptance) {
    return {.drafter = drafter, .acceptance = acceptance, .output_tokens = 100};
  }

  DrafterChooser chooser_{{}, {{.name = "target", .vocab_size = 10}}};
  ChoiceFeedback feedback_{&chooser_};
};

TEST_F(ChoiceFeedbackTest, OtherDraftersAreLearnedFromWithTheTreesGain) {
  for (int i = 0; i < 200; ++i) {
    const FeedbackRequest request = Request(0.65);
    feedback_.OnScored(request, Score("code", 0.55));  // Trees add 0.1.
    feedback_.OnScored(request, Score("math", 0.3));
  }
  EXPECT_NEAR(Predicted("math"), 0.4, 0.02);
  EXPECT_NEAR(*feedback_.PredictAcceptance(Request(0.65), "math"), 0.3, 0.02);
  EXPECT_NEAR(Predicted("code"), 0.6, 1e-9) << "its requests taught it already, not its scores";
}

TEST_F(ChoiceFeedbackTest, WithoutAKnownGainScoresTeachNothing) {
  feedback_.OnScored(Request(0.65), Score("math", 0.3));
  feedback_.OnScored(Request(std::nullopt), Score("code", 0.3));
  feedback_.OnScored(Request(std::nullopt), Score("math", 0.3));
  EXPECT_NEAR(Predicted("math"), 0.6, 1e-9);
  EXPECT_FALSE(feedback_.PredictAcceptance(Request(0.65), "math").has_value());
}

TEST_F(ChoiceFeedbackTest, NonsenseIsIgnored) {
  feedback_.OnScored(Request(0.65), Score("code", 0.55));
  feedback_.OnScored(Request(0.65), Score("math", 7.0));
  feedback_.OnScored({.drafter = "code"}, Score("math", 0.1));
  EXPECT_NEAR(Predicted("math"), 0.6, 1e-9);
}

TEST_F(ChoiceFeedbackTest, ThroughputIsTheChoices) {
  const FeedbackRequest request = Request(0.65);
  EXPECT_DOUBLE_EQ(feedback_.Throughput(request, "code", 0.5), FeedbackSink::TokensPerRound(0.5))
      << "before anything was measured";
  RequestOutcome outcome{.accepted = 60,
                         .rejections = 40,
                         .draft = DraftCosts{.exposed_level_seconds = 100.0},
                         .verify = VerifySeconds(5, 0.01)};
  chooser_.Learn(0, "code", chooser_.Prepare(0, {1}, "acme"), outcome);
  EXPECT_DOUBLE_EQ(feedback_.Throughput(request, "", 0.0), 100.0);
  EXPECT_DOUBLE_EQ(feedback_.Throughput(request, "code", 0.9), 100.0) << "best left unused";
}

TEST_F(ChoiceFeedbackTest, WhatARequestCameToIsRatedWithoutTheTreesGain) {
  chooser_.Learn(0, "", chooser_.Prepare(0, {1}, "acme"), {.verify = VerifySeconds(5, 0.01)});
  feedback_.OnScored(Request(0.65), Score("code", 0.35));  // Trees add 0.3.
  EXPECT_FALSE(feedback_.RealisedThroughput(Request(std::nullopt)).has_value());
  EXPECT_FALSE(feedback_.RealisedThroughput({.drafter = "code"}).has_value());
  const std::optional<double> realised = feedback_.RealisedThroughput(Request(0.5));
  ASSERT_TRUE(realised.has_value());
  EXPECT_DOUBLE_EQ(*realised, feedback_.Throughput(Request(0.5), "code", 0.2));
}

}  // namespace
}  // namespace tandem::router

#include "router/serving/request_outcome.h"

#include "gtest/gtest.h"

namespace tandem::router {
namespace {

v1::SpeculationStats Stats() {
  v1::SpeculationStats stats;
  stats.set_drafter("code");
  stats.set_drafter_accepted_tokens(6);
  stats.set_drafter_rejections(2);
  stats.mutable_costs()->set_exposed_level_seconds(0.5f);
  stats.mutable_costs()->set_hidden_level_seconds(0.25f);
  stats.mutable_costs()->add_verify_seconds(1.0f);
  stats.mutable_costs()->set_decode_tokens(6);
  stats.mutable_costs()->set_decode_seconds(3.0);
  return stats;
}

TEST(RequestOutcomeTest, WhatARequestCameTo) {
  const RequestOutcome outcome = OutcomeOf("code", Stats(), 10);
  EXPECT_EQ(outcome.acceptance(), 0.75);
  EXPECT_EQ(outcome.trials(), 8u);
  EXPECT_EQ(outcome.decode_tokens, 6u);
  EXPECT_EQ(outcome.decode_seconds, 3.0);
  ASSERT_TRUE(outcome.draft.has_value());
  EXPECT_EQ(outcome.draft->exposed_level_seconds, 0.5);
  EXPECT_EQ(outcome.draft->hidden_level_seconds, 0.25);
  EXPECT_EQ(outcome.verify, VerifySeconds{1.0});
}

TEST(RequestOutcomeTest, AnotherDraftersFiguresAreNotTaken) {
  for (const char* drafter : {"maths", ""}) {
    const RequestOutcome outcome = OutcomeOf(drafter, Stats(), 10);
    EXPECT_EQ(outcome.trials(), 0u);
    EXPECT_FALSE(outcome.draft.has_value());
    EXPECT_EQ(outcome.decode_tokens, 0u);
    EXPECT_EQ(outcome.verify.size(), 1u) << "what verification costs is the verifier's own";
  }
  v1::SpeculationStats lost = Stats();
  lost.set_drafter_lost("the connection was lost");
  EXPECT_EQ(OutcomeOf("code", lost, 10).trials(), 0u);
}

TEST(RequestOutcomeTest, ImpossibleFiguresAreNotTaken) {
  v1::SpeculationStats stats = Stats();
  stats.set_drafter_accepted_tokens(11);
  EXPECT_EQ(OutcomeOf("code", stats, 10).trials(), 0u);
  stats = Stats();
  stats.set_drafter_rejections(0xFFFFFFFF);
  EXPECT_EQ(OutcomeOf("code", stats, 10).trials(), 0u);
  EXPECT_FALSE(OutcomeOf("code", {}, 0).draft.has_value());
}

}  // namespace
}  // namespace tandem::router

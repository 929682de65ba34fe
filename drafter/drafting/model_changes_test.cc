// Draft models that come and go while sessions run.

#include <memory>
#include <string>
#include <vector>

#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing_peer::BestFirst;
using testing_peer::Drafter;
using testing_peer::kFingerprint;
using testing_peer::Nodes;
using testing_peer::Peer;
using testing_peer::Prompt;

constexpr DraftBudget kSomeBudget = {.depth = 3, .nodes = 6, .branching = 2};

// Another version of the drafter's model, with weights of its own.
struct Version {
  explicit Version(uint64_t seed) : engine({.seed = seed}), pool({.num_blocks = 64}) {}

  DraftModel Model(std::string name = "draft") {
    return {.name = std::move(name),
            .engine = &engine,
            .pool = &pool,
            .vocabulary_fingerprint = kFingerprint,
            .context_length = 1024,
            .hold = hold};
  }

  FakeEngine engine;
  BlockPool pool;
  std::shared_ptr<int> hold = std::make_shared<int>(0);
};

TEST(ModelChangesTest, OpenSessionsFinishOnTheVersionTheyHave) {
  Version next(99);
  Drafter drafter;  // Its sessions end before what they use.
  Peer old(&drafter, 1);
  old.Open(Prompt(10), kSomeBudget);
  old.RunDryAndDeliver();
  EXPECT_EQ(drafter.core.AddModel(next.Model()), 1u);
  EXPECT_THAT(drafter.core.TakeGone(), IsEmpty());
  EXPECT_EQ(drafter.core.stats().num_models, 1u);
  EXPECT_EQ(drafter.core.stats().num_retired_models, 1u);

  // Whatever it commits, and when it is opened again too.
  old.CommitTokens({old.tree().nodes()[0].token});
  old.RunDryAndDeliver();
  EXPECT_EQ(next.engine.num_rows(), 0u);
  old.Open(Prompt(12), kSomeBudget);
  old.RunDryAndDeliver();
  EXPECT_EQ(Nodes(old), BestFirst(drafter.engine, Prompt(12), 3, 6, 2, 4));
  EXPECT_EQ(next.engine.num_rows(), 0u);

  const uint64_t rows = drafter.engine.num_rows();
  Peer fresh(&drafter, 2);
  fresh.SkipScores();
  fresh.Open(Prompt(10), kSomeBudget);
  fresh.RunDryAndDeliver();
  EXPECT_EQ(Nodes(fresh), BestFirst(next.engine, Prompt(10), 3, 6, 2, 4));
  EXPECT_EQ(drafter.engine.num_rows(), rows);
  old.Close();
  EXPECT_THAT(drafter.core.TakeGone(), IsEmpty()) << "the first one held nothing";
  EXPECT_EQ(drafter.core.stats().num_retired_models, 0u);
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
}

TEST(ModelChangesTest, WhatIsRetiredIsNotFoundAndGoneAfterItsLastSession) {
  Version other(99);
  Version again(7);
  Drafter drafter;
  drafter.core.AddModel(other.Model("other"));
  Peer peer(&drafter, 1);
  OpenSession open = peer.MakeOpen(Prompt(10), kSomeBudget);
  open.draft_model = "other";
  peer.Send(open);
  drafter.RunDry();
  EXPECT_EQ(drafter.core.RetireModel("nobody"), std::nullopt);
  EXPECT_EQ(drafter.core.RetireModel("other"), 1u);
  EXPECT_EQ(drafter.core.RetireModel("other"), std::nullopt);
  EXPECT_THAT(drafter.core.TakeGone(), IsEmpty());
  (void)drafter.core.TakeResponses();

  Peer late(&drafter, 2);
  open.epoch = 1;
  late.Send(open);
  late.RunDryAndDeliver();
  ASSERT_TRUE(late.refusal().has_value());
  EXPECT_EQ(late.refusal()->code(), absl::StatusCode::kNotFound);
  drafter.core.OnLinkClosed(testing_peer::kLink);
  EXPECT_THAT(drafter.core.TakeGone(), ElementsAre(other.hold));
  EXPECT_THAT(drafter.core.TakeGone(), IsEmpty());
  // The name is free again.
  EXPECT_EQ(drafter.core.AddModel(again.Model("other")), 0u);
  EXPECT_EQ(drafter.core.stats().num_models, 2u);
}

TEST(ModelChangesTest, AScoreThatWaitsKeepsItsModel) {
  Version other(99);
  Drafter drafter;
  drafter.core.AddModel(other.Model("other"));
  ScoreRequest request{.draft_model = "other", .vocabulary_fingerprint = kFingerprint};
  request.tokens = Prompt(20);
  request.prompt_length = 10;
  request.sampling.temperature = 0.0f;
  drafter.core.OnScore(1, request, absl::InfiniteFuture());
  EXPECT_EQ(drafter.core.RetireModel("other"), 0u);
  EXPECT_THAT(drafter.core.TakeGone(), IsEmpty());
  drafter.RunDry();
  const std::vector<ScoreAnswer> answers = drafter.core.TakeScores();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(answers[0].result.ok()) << answers[0].result.status();
  EXPECT_THAT(drafter.core.TakeGone(), ElementsAre(other.hold));
  drafter.core.OnScore(2, request, absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsNotFound(drafter.core.TakeScores().at(0).result.status()));
}

TEST(ModelChangesTest, TimeByNameNeverFalls) {
  Version next(99);
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(10), kSomeBudget);
  peer.RunDryAndDeliver();
  const double before = drafter.core.stats().step_seconds.at("draft");
  drafter.core.AddModel(next.Model());
  peer.Close();
  (void)drafter.core.TakeGone();
  EXPECT_GE(drafter.core.stats().step_seconds.at("draft"), before);
}

}  // namespace
}  // namespace tandem

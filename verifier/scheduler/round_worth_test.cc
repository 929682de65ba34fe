// What the scheduler thinks is worth drafting, verifying and waiting for.
#include <gmock/gmock.h>

#include "common/speculation/policies/qlearning_state.h"
#include "common/speculation/policies/window_policy.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class RoundWorthTest : public SchedulerTest {
 protected:
  // As Make, but every row of a step costs something.
  void MakeWithCosts(const Scheduler::Options& options) {
    Make(options);
    scheduler_ = std::make_unique<Scheduler>(options, engine_.get(), pool_.get(),
                                             RoundTimeModel({{1, 0.002}, {17, 0.010}}), &clock_, this);
  }
  void Connect() { scheduler_->OnLinkUp(kLink); }
  void RunDrafted(const Ask& ask, uint32_t num_right, uint32_t num_wrong) {
    RunToTheEnd([&] {
      AnswerOpens();
      Draft(ask, num_right, num_wrong);
    });
  }
  uint32_t NumDrafted(SessionId id, size_t from, size_t to) {
    const auto& rounds = records_[id].rounds;
    return static_cast<uint32_t>(
        std::count_if(rounds.begin() + static_cast<ptrdiff_t>(std::min(from, rounds.size())),
                      rounds.begin() + static_cast<ptrdiff_t>(std::min(to, rounds.size())),
                      [](const RoundReport& round) { return round.nodes > 0; }));
  }
};

TEST_F(RoundWorthTest, EveryPolicyGivesTheSameOutput) {
  for (const std::string& policy : WindowPolicyNames()) {
    MakeWithCosts({.limits = {.max_depth = 5}, .window_policy = policy});
    Connect();
    const Ask ask{.rules = {.max_tokens = 60}, .drafted = true};
    ASSERT_TRUE(Submit(1, ask).ok());
    RunDrafted(ask, 2, 1);
    SCOPED_TRACE(policy);
    ExpectReference(1, ask);
    EXPECT_GT(records_[1].summary.accepted_tokens, 0u);
    records_.clear();
    drafts_.clear();
  }
}

TEST_F(RoundWorthTest, WhatAWindowPolicyLearnsGoesFromSessionToSession) {
  std::string learned;
  for (uint32_t prompt = 1; prompt <= 3; ++prompt) {
    MakeWithCosts({.limits = {.max_depth = 5}, .window_policy = "qlearning"});
    Connect();
    const Ask ask{.rules = {.max_tokens = 60}, .drafted = true, .policy_state = learned};
    ASSERT_TRUE(Submit(1, ask).ok());
    RunDrafted(ask, 2, 1);
    ExpectReference(1, ask);
    const absl::StatusOr<QLearningState> after = QLearningState::Parse(records_[1].summary.policy_state);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->prompts, prompt);
    learned = *MergePolicyStates(learned, records_[1].summary.policy_state);
    records_.clear();
    drafts_.clear();
  }
  // Of what nobody can read there is no more than from the beginning, and other policies have nothing to
  // tell.
  for (const char* policy : {"qlearning", "goodput"}) {
    MakeWithCosts({.limits = {.max_depth = 5}, .window_policy = policy});
    Connect();
    const Ask ask{.rules = {.max_tokens = 60}, .drafted = true, .policy_state = "nonsense"};
    ASSERT_TRUE(Submit(1, ask).ok());
    RunDrafted(ask, 2, 1);
    ExpectReference(1, ask);
    const absl::StatusOr<QLearningState> after = QLearningState::Parse(records_[1].summary.policy_state);
    EXPECT_EQ(after.ok() ? after->prompts : 0, std::string(policy) == "qlearning" ? 1u : 0u);
    records_.clear();
    drafts_.clear();
  }
}

TEST_F(RoundWorthTest, CandidatesThatAreNeverRightStopCostingRows) {
  MakeWithCosts({.limits = {.max_depth = 4}});
  Connect();
  const Ask ask{.rules = {.max_tokens = 300}, .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunDrafted(ask, 0, 4);
  ExpectReference(1, ask);
  // Sure of themselves as they are, they are found out, and then only probed.
  EXPECT_GT(NumDrafted(1, 0, 40), 0u);
  EXPECT_LT(NumDrafted(1, 100, 300), 30u);
  EXPECT_EQ(records_[1].summary.accepted_tokens, 0u);
}

TEST_F(RoundWorthTest, OnlyTheCandidatesThatAreWorthTheirRowsAreVerified) {
  MakeWithCosts({.limits = {.max_depth = 4}});
  Connect();
  const Ask ask{.rules = {.max_tokens = 400}, .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunDrafted(ask, 1, 3);
  ExpectReference(1, ask);
  // The first of four is right, always: in the end the others are left alone, most of the time.
  const auto& rounds = records_[1].rounds;
  uint32_t nodes = 0;
  uint32_t accepted = 0;
  for (size_t i = rounds.size() / 2; i < rounds.size(); ++i) {
    nodes += rounds[i].nodes;
    accepted += rounds[i].accepted;
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_LT(nodes, 2 * accepted);
}

// Rows are shared by worth whatever policies clients ask for; those that verify all their windows hold do so
// alone only.
TEST_F(RoundWorthTest, NoPolicyTakesRowsThatOthersUseBetter) {
  for (const char* policy : {"fixed", "fsm", "ema-tiers"}) {
    SCOPED_TRACE(policy);
    const Ask greedy{.rules = {.max_tokens = 160}, .drafted = true, .window_policy = policy};
    const auto late_nodes = [&](SessionId id) {
      uint32_t nodes = 0;
      const auto& rounds = records_[id].rounds;
      for (size_t i = 100; i < std::min<size_t>(rounds.size(), 150); ++i) nodes += rounds[i].nodes;
      return nodes;
    };
    MakeWithCosts({.limits = {.max_depth = 4}});
    Connect();
    ASSERT_TRUE(Submit(1, greedy).ok());
    RunDrafted(greedy, 0, 4);
    const uint32_t alone = late_nodes(1);
    records_.clear();
    drafts_.clear();

    MakeWithCosts({.limits = {.max_depth = 4}});
    Connect();
    const Ask other{.prompt = {5, 4, 3, 2, 1}, .rules = {.max_tokens = 300}, .drafted = true};
    const TokenIds greedy_output = Reference(greedy).tokens;
    const TokenIds other_output = Reference(other).tokens;
    for (SessionId id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id, greedy).ok());
    ASSERT_TRUE(Submit(5, other).ok());
    RunToTheEnd([&] {
      AnswerOpens();
      for (SessionId id = 1; id <= 4; ++id) DraftOutput(id, greedy.prompt, greedy_output, 0, 4);
      DraftOutput(5, other.prompt, other_output, 3, 0);
    });
    for (SessionId id = 1; id <= 4; ++id) {
      ExpectReference(id, greedy);
      EXPECT_LT(late_nodes(id), 10u) << "wrong guesses, which have been found out; alone it verified "
                                     << alone;
    }
    ExpectReference(5, other);
    EXPECT_GT(records_[5].summary.accepted_tokens, 80u);
    if (std::string(policy) == "fixed") {
      EXPECT_GE(alone, 40u);
    }
    records_.clear();
    drafts_.clear();
  }
}

TEST_F(RoundWorthTest, ADrafterIsNotToldOfRoundsThatDraftNothing) {
  MakeWithCosts({.limits = {.max_depth = 4}});
  Connect();
  const Ask ask{.rules = {.max_tokens = 300}, .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunDrafted(ask, 0, 4);
  ExpectReference(1, ask);
  EXPECT_LT(NumSent<Commit>(), 150u);
  EXPECT_GE(NumSent<OpenSession>(), 2u);
  EXPECT_EQ(NumSent<CloseSession>(), NumSent<OpenSession>());
  EXPECT_EQ(records_[1].summary.drafter_lost, "");
  // The drafter's record stands: the next request begins without it.
  const uint32_t opened = NumSent<OpenSession>();
  ASSERT_TRUE(Submit(2, {.rules = {.max_tokens = 10}, .drafted = true}).ok());
  RunToTheEnd();
  EXPECT_EQ(NumSent<OpenSession>(), opened);
}

// Of a chain of five the stop head says that the third is reached rarely: the round does not wait for the
// drafter's last word, and verifies three.
TEST_F(RoundWorthTest, ARoundStopsWhereTheStopHeadSaysSo) {
  MakeWithCosts({.limits = {.max_depth = 8, .nodes_per_level = 1}, .window_policy = "specdec++"});
  Connect();
  const Ask ask{.rules = {.max_tokens = 60}, .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    for (const SessionId id : std::exchange(opened_, {})) {
      Send(id, SessionOpened{.epoch = drafts_.at(id).epoch, .predicts_acceptance = true});
    }
    for (auto& [id, state] : drafts_) {
      if (!std::exchange(state.wants_growth, false)) continue;
      const TokenIds output = Reference(ask).tokens;
      const size_t done = state.tokens.size() - ask.prompt.size();
      Grow grow = Chain(id,
                        TokenIds(output.begin() + static_cast<ptrdiff_t>(done),
                                 output.begin() + static_cast<ptrdiff_t>(std::min(done + 5, output.size()))),
                        /*exhausted=*/false);
      for (size_t i = 0; i < grow.tokens.size(); ++i) {
        grow.predictions.push_back(
            {.node = grow.first_id + static_cast<NodeId>(i), .acceptance = i == 2 ? 0.2f : 0.95f});
      }
      Send(id, grow);
    }
  });
  ExpectReference(1, ask);
  ASSERT_GT(records_[1].rounds.size(), 10u);
  for (const RoundReport& round : records_[1].rounds) EXPECT_LE(round.nodes, 3u);
  EXPECT_EQ(records_[1].rounds[1].nodes, 3u);
  EXPECT_TRUE(std::get<OpenSession>(requests_[0].event).predict_acceptance);
}

TEST_F(RoundWorthTest, PoliciesCanBeChangedWhileRequestsRun) {
  Make({.limits = {.max_depth = 4, .nodes_per_level = 1}, .window_policy = "fixed"});
  Connect();
  const Ask ask{.rules = {.max_tokens = 80}, .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  int turn = 0;
  size_t rounds_before = 0;
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask, 4, 0);
    if (++turn == 8) {
      rounds_before = records_[1].rounds.size();
      EXPECT_TRUE(scheduler_->SetWindowPolicy("fixed", {.fixed = {.depth = 1}}).ok());
    }
  });
  ExpectReference(1, ask);
  const auto& rounds = records_[1].rounds;
  ASSERT_GT(rounds.size(), rounds_before + 4);
  for (size_t i = rounds_before + 1; i < rounds.size(); ++i) EXPECT_LE(rounds[i].depth, 1u) << "round " << i;
  EXPECT_GT(rounds[rounds_before - 1].depth, 1u);
  EXPECT_THAT(std::string(scheduler_->SetWindowPolicy("best", {}).message()), HasSubstr("is not known"));
  EXPECT_EQ(scheduler_->window_policy(), "fixed");
}

// A step costs a hundred times what a draft takes, and one of two sessions has no candidates: the other one
// waits for them.
TEST_F(RoundWorthTest, AStepIsHeldForDraftsThatComeSoon) {
  Make({.limits = {.max_depth = 3, .nodes_per_level = 1}, .window_policy = "fixed"});
  Connect();
  const Ask ask{.rules = {.max_tokens = 60}, .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  ASSERT_TRUE(Submit(2, ask).ok());
  int held = 0;
  RunToTheEnd([&] {
    AnswerOpens();
    const bool both_lack = drafts_.contains(1) && drafts_.contains(2) && drafts_.at(1).wants_growth &&
                           drafts_.at(2).wants_growth;
    if (both_lack) {
      // The first one's drafts come at once, the second one's a little later.
      drafts_.at(2).wants_growth = false;
      Draft(ask, 3, 0);
      drafts_.at(2).wants_growth = true;
      held += scheduler_->NextWake() > clock_.Now() ? 1 : 0;
      clock_.Advance(absl::Microseconds(20));
    }
    Draft(ask, 3, 0);
  });
  ExpectReference(1, ask);
  ExpectReference(2, ask);
  EXPECT_GT(held, 5);
}

TEST_F(RoundWorthTest, NobodyWaitsForADrafterThatTakesLongerThanItSaves) {
  Make({.limits = {.max_depth = 1, .nodes_per_level = 1, .lookahead = 0}, .window_policy = "fixed"});
  Connect();
  const Ask ask{.rules = {.max_tokens = 100}, .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  // Each draft arrives fifty milliseconds, or twenty-five steps, after it was asked for.
  absl::Time due = absl::InfiniteFuture();
  RunToTheEnd([&] {
    AnswerOpens();
    if (!drafts_.contains(1) || !drafts_.at(1).wants_growth) return;
    if (due == absl::InfiniteFuture()) due = clock_.Now() + absl::Milliseconds(50);
    if (clock_.Now() < due) return;
    due = absl::InfiniteFuture();
    Draft(ask, 1, 0);
  });
  ExpectReference(1, ask);
  double waited = 0.0;
  for (const RoundReport& round : records_[1].rounds) waited += round.wait_seconds;
  EXPECT_LT(waited, 0.06);
}

// Of six requests with drafts that are always right, some steps draft nothing, and what the others gain is
// known.
TEST_F(RoundWorthTest, TheControlGroupMeasuresWhatDraftsGain) {
  Make({.limits = {.max_depth = 3, .nodes_per_level = 1, .lookahead = 0}, .control_share = 0.3});
  Connect();
  const Ask ask{.rules = {.max_tokens = 400}, .drafted = true};
  const TokenIds output = Reference(ask).tokens;
  for (SessionId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(Submit(id, ask).ok());
    RunToTheEnd([&] {
      AnswerOpens();
      DraftOutput(id, ask.prompt, output, 3, 0);
    });
    ExpectReference(id, ask);
  }
  EXPECT_GT(num_plain_, 3u * 16);
  ASSERT_FALSE(speedups_.empty());
  const ControlGroup::Estimate& last = speedups_.back();
  EXPECT_EQ(last.drafter, records_[1].summary.drafter);
  EXPECT_EQ(last.load, 1u);
  EXPECT_GE(last.blocks, 3u);
  // Four tokens a step, all steps take the same time.
  EXPECT_NEAR(last.speedup, 4.0, 0.4);
  EXPECT_LT(last.high - last.low, 1.0);
}

// Steps that are mostly prompts are no part of a block, and make it longer. The drafter is needed again
// afterwards all the same.
TEST_F(RoundWorthTest, BlocksOfTheControlGroupCloseNoDrafter) {
  Make({.limits = {.max_depth = 3, .nodes_per_level = 1, .lookahead = 0}, .control_share = 0.3});
  Connect();
  const Ask ask{.rules = {.max_tokens = 400}, .drafted = true};
  const TokenIds output = Reference(ask).tokens;
  SessionId next = 1;
  uint32_t num_prompts = 0;
  uint32_t seen = 0;
  for (int i = 0; i < 6; ++i) {
    const SessionId id = next++;
    ASSERT_TRUE(Submit(id, ask).ok());
    RunToTheEnd([&] {
      AnswerOpens();
      DraftOutput(id, ask.prompt, output, 3, 0);
      if (num_plain_ == seen || num_plain_ % 16 != 5) return;
      seen = num_plain_;
      Ask prompt{.rules = {.max_tokens = 1}, .speculate = false};
      for (uint32_t token = 0; token < 30; ++token)
        prompt.prompt.push_back((token * 7 + num_prompts) % kVocabSize);
      ++num_prompts;
      ASSERT_TRUE(Submit(next++, prompt).ok());
    });
    ExpectReference(id, ask);
  }
  EXPECT_GT(num_prompts, 2u);
  EXPECT_EQ(NumSent<OpenSession>(), 6u);
  EXPECT_EQ(NumSent<CloseSession>(), 6u);
}

// Whoever asks for a policy that does not heed what drafts are worth gets its windows.
TEST_F(RoundWorthTest, OtherPoliciesHaveNoControlGroup) {
  Make({.limits = {.max_depth = 3, .nodes_per_level = 1}, .window_policy = "fixed", .control_share = 0.3});
  Connect();
  const Ask ask{.rules = {.max_tokens = 400}, .drafted = true};
  const TokenIds output = Reference(ask).tokens;
  for (SessionId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(Submit(id, ask).ok());
    RunToTheEnd([&] {
      AnswerOpens();
      DraftOutput(id, ask.prompt, output, 3, 0);
    });
    ExpectReference(id, ask);
  }
  EXPECT_EQ(num_plain_, 0u);
  EXPECT_TRUE(speedups_.empty());
}

}  // namespace
}  // namespace tandem

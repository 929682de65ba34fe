// Requests whose drafts are accepted by ratio: what the scheduler asks of drafters, and of which.

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class VerificationRuleSchedulerTest : public SchedulerTest {
 protected:
  static Scheduler::Options Options(VerificationRuleKind rule) {
    Scheduler::Options options;
    options.verification_rule = rule;
    options.window_policy = "fixed";
    return options;
  }
  static Ask Sampled() {
    Ask ask;
    ask.sampling = {.temperature = 0.8f, .seed = 11};
    ask.drafted = true;
    ask.trusted = true;
    return ask;
  }
  std::vector<OpenSession> Opens() const {
    std::vector<OpenSession> opens;
    for (const DraftRequest& request : requests_) {
      if (const auto* open = std::get_if<OpenSession>(&request.event)) opens.push_back(*open);
    }
    return opens;
  }

  // A drafter whose distribution is `width` tokens from `first` on, alike likely, and who draws them in
  // order.
  void DrawInOrder(TokenId first, uint32_t width) {
    for (auto& [id, state] : drafts_) {
      if (!std::exchange(state.wants_growth, false) || state.budget.depth == 0) continue;
      DraftDistribution all{.parent = 0};
      for (uint32_t i = 0; i < width; ++i) {
        all.tokens.push_back((first + static_cast<TokenId>(i)) % kVocabSize);
        all.probabilities.push_back(1.0f / static_cast<float>(width));
      }
      Grow grow = Chain(id, {all.tokens[0]});
      grow.distributions = {all};
      Send(id, grow);
    }
  }
};

TEST_F(VerificationRuleSchedulerTest, OnlySampledRequestsAskForSampledDrafts) {
  Make(Options(VerificationRuleKind::kRejection));
  scheduler_->OnLinkUp(kLink);
  Ask greedy = Sampled();
  greedy.sampling.temperature = 0.0f;
  ASSERT_TRUE(Submit(1, Sampled()).ok());
  ASSERT_TRUE(Submit(2, greedy).ok());
  RunToTheEnd([&] { AnswerOpens(); });
  ASSERT_EQ(Opens().size(), 2u);
  EXPECT_TRUE(Opens()[0].sampled_drafts);
  EXPECT_FALSE(Opens()[1].sampled_drafts);
  ExpectReference(2, greedy);
  // Nobody drafted for the other one: the target's seeded choice is as good a sample as any.
  ExpectReference(1, Sampled());
}

TEST_F(VerificationRuleSchedulerTest, TheSeededRuleNeverAsks) {
  Make(Options(VerificationRuleKind::kSeeded));
  scheduler_->OnLinkUp(kLink);
  Ask ask = Sampled();
  ask.trusted = false;
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask, 3, 1);
  });
  ASSERT_EQ(Opens().size(), 1u);
  EXPECT_FALSE(Opens()[0].sampled_drafts);
  EXPECT_GT(records_[1].summary.accepted_tokens, 0u);
  ExpectReference(1, ask);
}

TEST_F(VerificationRuleSchedulerTest, BlocksAreChains) {
  Make(Options(VerificationRuleKind::kBlock));
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, Sampled()).ok());
  RunToTheEnd([&] { AnswerOpens(); });
  ASSERT_EQ(Opens().size(), 1u);
  EXPECT_EQ(Opens()[0].budget.shape, TreeShape::kChain);
  EXPECT_EQ(Opens()[0].budget.branching, 1u);
  EXPECT_EQ(Opens()[0].budget.nodes, Opens()[0].budget.depth);
}

TEST_F(VerificationRuleSchedulerTest, ADrafterThatIsNotTrustedDraftsOnlyWhereNothingIsBelieved) {
  for (const auto rule : {VerificationRuleKind::kRejection, VerificationRuleKind::kBlock}) {
    requests_.clear();
    records_.clear();
    Make(Options(rule));
    scheduler_->OnLinkUp(kLink);
    Ask ask = Sampled();
    ask.trusted = false;
    Ask greedy = ask;
    greedy.sampling.temperature = 0.0f;
    ASSERT_TRUE(Submit(1, ask).ok());
    ASSERT_TRUE(Submit(2, greedy).ok());
    RunToTheEnd([&] { AnswerOpens(); });
    ASSERT_EQ(Opens().size(), 1u) << "of the greedy one";
    EXPECT_THAT(records_[1].summary.drafter_lost, HasSubstr("not marked as trusted"));
    EXPECT_THAT(records_[1].summary.drafter_lost, HasSubstr("FAILED_PRECONDITION"));
    EXPECT_EQ(records_[1].summary.drafted_rounds, 0u);
    EXPECT_EQ(records_[2].summary.drafter_lost, "");
    ExpectReference(1, ask);
  }
}

// What the target cannot choose is refused, whatever the drafter says; the first token it is sure of is
// taken.
TEST_F(VerificationRuleSchedulerTest, DraftsAreAcceptedByRatio) {
  Make(Options(VerificationRuleKind::kRejection));
  scheduler_->OnLinkUp(kLink);
  Ask ask = Sampled();
  ask.sampling.top_k =
      1;  // All of p is on one token: the drafts' ratios are 0 or as many as there are drafts.
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    const TokenIds so_far = records_[1].tokens;
    TokenIds text = ask.prompt;
    text.insert(text.end(), so_far.begin(), so_far.end());
    const bool right = so_far.size() % 3 != 1;
    DrawInOrder((model_->ReferenceChoice(text) + (right ? 0 : 1)) % kVocabSize, 4);
  });
  const Record& record = records_[1];
  EXPECT_GT(record.summary.accepted_tokens, 3u);
  EXPECT_GT(record.summary.draft_tokens, record.summary.accepted_tokens + 2);
  ExpectReference(1, ask);
}

TEST_F(VerificationRuleSchedulerTest, DraftsWithoutDistributionsBreakTheProtocol) {
  Make(Options(VerificationRuleKind::kRejection));
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, Sampled()).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    DraftFor(1, Sampled(), 2,
             0);  // The violation ends the session, and with it its entry in what Draft walks.
  });
  EXPECT_FALSE(violations_.empty());
  EXPECT_EQ(records_[1].summary.accepted_tokens, 0u);
  ExpectReference(1, Sampled());
}

// A drafter that is opened again during the pass takes nothing away from the round that is under way.
TEST_F(VerificationRuleSchedulerTest, AResyncDuringThePassKeepsTheRound) {
  Make(Options(VerificationRuleKind::kRejection));
  scheduler_->OnLinkUp(kLink);
  Ask ask = Sampled();
  ask.sampling.top_k = 1;
  ASSERT_TRUE(Submit(1, ask).ok());
  uint32_t accepted = 0;
  for (int turn = 0; turn < 200 && scheduler_->num_running() + scheduler_->num_waiting() > 0; ++turn) {
    AnswerOpens();
    TokenIds text = ask.prompt;
    text.insert(text.end(), records_[1].tokens.begin(), records_[1].tokens.end());
    DrawInOrder(model_->ReferenceChoice(text), 3);
    const absl::Time wake = scheduler_->NextWake();
    if (wake > clock_.Now()) clock_.Advance(wake - clock_.Now());
    if (!scheduler_->Forward()) continue;
    if (drafts_.contains(1) && turn % 3 == 1) Send(1, ResyncNeeded{.epoch = drafts_.at(1).epoch});
    scheduler_->Conclude();
    if (!records_[1].rounds.empty()) accepted += records_[1].rounds.back().accepted;
  }
  EXPECT_GT(NumSent<OpenSession>(), 1u);
  EXPECT_GT(accepted, 3u);
  ExpectReference(1, ask);
}

}  // namespace
}  // namespace tandem

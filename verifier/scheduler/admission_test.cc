// What happens to sessions when there are not enough keys and values for all of them.

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

using AdmissionTest = SchedulerTest;

// Eight requests whose blocks would fit one at a time only, if they were reserved in full.
std::map<SessionId, Ask> ManyAsks(bool drafted) {
  const std::vector<SamplingParameters> samplings = {
      {.temperature = 0.0f},
      {.temperature = 0.8f, .seed = 7},
      {.temperature = 0.8f, .repetition_penalty = 1.2f, .frequency_penalty = 1.0f, .seed = 9}};
  std::map<SessionId, Ask> asks;
  for (SessionId id = 1; id <= 8; ++id) {
    asks[id] = {.prompt = TokenIds(4 * id, static_cast<TokenId>(id)),
                .sampling = samplings[id % samplings.size()],
                .rules = {.max_tokens = static_cast<uint32_t>(96 - 5 * id)},
                .drafted = drafted};
  }
  return asks;
}

TEST_F(AdmissionTest, OutputsUnderPressureAreThoseOfAmpleMemory) {
  for (const bool drafted : {false, true}) {
    for (const bool prefix_cache : {false, true}) {
      for (const uint32_t num_blocks : {7u, 8u, 11u, 16u, 1000u}) {
        SCOPED_TRACE(absl::StrCat(drafted, " ", prefix_cache, " ", num_blocks));
        Make(FixedWindow(4), {.num_blocks = num_blocks}, prefix_cache);
        records_.clear();
        drafts_.clear();
        num_preemptions_ = 0;
        const std::map<SessionId, Ask> asks = ManyAsks(drafted);
        scheduler_->OnLinkUp(kLink);
        for (const auto& [id, ask] : asks) ASSERT_TRUE(Submit(id, ask).ok());
        RunToTheEnd([&] {
          AnswerOpens();
          for (const auto& [id, ask] : asks) DraftFor(id, ask, 3, 1);
        });
        uint32_t told = 0;
        uint32_t accepted = 0;
        for (const auto& [id, ask] : asks) {
          ExpectReference(id, ask);
          told += records_[id].summary.preemptions;
          accepted += records_[id].summary.accepted_tokens;
        }
        EXPECT_EQ(told, num_preemptions_);
        EXPECT_EQ(records_[1].summary.preemptions, 0u);  // The oldest never gives way.
        EXPECT_EQ(num_preemptions_ > 0, num_blocks < 1000);
        EXPECT_EQ(accepted > 0, drafted);
        EXPECT_EQ(violations_.size(), 0u);
        EXPECT_EQ(pool_->num_held(), 0u);
      }
    }
  }
}

// Two sessions with 40 tokens of prompt in eight blocks; the younger one gives way.
class PreemptionTest : public SchedulerTest {
 protected:
  void RunUntilPreempted(const Ask& older, const Ask& younger) {
    Make(FixedWindow(4), {.num_blocks = 8});
    scheduler_->OnLinkUp(kLink);
    ASSERT_TRUE(Submit(1, older).ok());
    ASSERT_TRUE(Submit(2, younger).ok());
    while (num_preemptions_ == 0) {
      AnswerOpens();
      ASSERT_TRUE(scheduler_->Forward());
      scheduler_->Conclude();
      ASSERT_TRUE(scheduler_->CheckBlocks().ok()) << scheduler_->CheckBlocks();
    }
    EXPECT_EQ(scheduler_->num_running(), 1u);
    EXPECT_EQ(scheduler_->num_waiting(), 1u);
    EXPECT_TRUE(records_[2].ends.empty());
    EXPECT_GT(records_[2].tokens.size(), 0u);
  }

  const Ask older_{.prompt = TokenIds(40, 1), .rules = {.max_tokens = 80}};
  const Ask younger_{.prompt = TokenIds(40, 2), .rules = {.max_tokens = 80}};
};

TEST_F(PreemptionTest, CancelEndsAPreemptedRequestAtOnce) {
  RunUntilPreempted(older_, younger_);
  scheduler_->Cancel(2, absl::CancelledError("gone"));
  EXPECT_EQ(records_[2].ends, std::vector<absl::Status>{absl::CancelledError("gone")});
  EXPECT_EQ(records_[2].summary.output_tokens, records_[2].tokens.size());
  RunToTheEnd();
  ExpectReference(1, older_);
}

TEST_F(PreemptionTest, ADeadlineEndsAPreemptedRequest) {
  Ask younger = younger_;
  younger.deadline = clock_.Now() + absl::Milliseconds(120);
  RunUntilPreempted(older_, younger);
  RunToTheEnd();
  ExpectReference(1, older_);
  ASSERT_EQ(records_[2].ends.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(records_[2].ends[0])) << records_[2].ends[0];
}

TEST_F(PreemptionTest, ThePreemptedIsTheFirstToComeBackAndComputesLittle) {
  RunUntilPreempted(older_, younger_);
  ASSERT_TRUE(Submit(3, {.prompt = TokenIds(17, 3)}).ok());
  scheduler_->Cancel(1, absl::CancelledError("gone"));
  const uint64_t rows = model_->num_rows();
  scheduler_->Step();
  // Most of it is still in the prefix cache; the 16 rows and the root of the third are in the same step.
  EXPECT_LE(model_->num_rows() - rows, 2 * kBlockTokens + 17u);
  EXPECT_TRUE(records_[3].started);
  RunToTheEnd();
  ExpectReference(2, younger_);
  ExpectReference(3, {.prompt = TokenIds(17, 3)});
}

TEST_F(PreemptionTest, ItsDrafterIsClosedAndOpenedAgain) {
  Ask younger = younger_;
  younger.drafted = true;
  RunUntilPreempted(older_, younger);
  EXPECT_EQ(NumSent<CloseSession>(), 1u);
  const size_t sent = requests_.size();
  scheduler_->OnLinkDown(kLink, absl::UnavailableError("gone"));
  scheduler_->OnLinkUp(kLink);
  EXPECT_EQ(requests_.size(), sent);  // It waits.
  scheduler_->Cancel(1, absl::CancelledError("gone"));
  scheduler_->Step();
  ASSERT_EQ(NumSent<OpenSession>(), 2u);
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(younger, 4, 0);
  });
  ExpectReference(2, younger);
  EXPECT_GT(records_[2].summary.accepted_tokens, 0u);
  EXPECT_EQ(records_[2].summary.drafter_lost, "");
  EXPECT_EQ(records_[2].summary.preemptions, 1u);
}

TEST_F(AdmissionTest, TreesAreCutBeforeAnyoneIsPreempted) {
  // The prompt and the output need all four blocks, so that in the end none is left for any node.
  Make(FixedWindow(4), {.num_blocks = 4});
  const Ask ask{.prompt = TokenIds(30, 1), .rules = {.max_tokens = 34}, .drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask, 4, 0);
  });
  ExpectReference(1, ask);
  EXPECT_GT(records_[1].summary.accepted_tokens, 0u);
  EXPECT_EQ(records_[1].rounds.back().nodes, 0u);
  EXPECT_EQ(num_preemptions_, 0u);
}

TEST_F(AdmissionTest, ARequestThatDoesNotFitAloneIsRefused) {
  Make({}, {.num_blocks = 4});
  const absl::Status refused = Submit(1, {.prompt = TokenIds(40, 1), .rules = {.max_tokens = 25}});
  EXPECT_EQ(refused, absl::OutOfRangeError("prompt and max_tokens: 65 tokens need 5 blocks of keys and "
                                           "values, expected at most 4 blocks of 16 tokens"));
  const Ask fits{.prompt = TokenIds(40, 1), .rules = {.max_tokens = 24}};
  ASSERT_TRUE(Submit(2, fits).ok());
  RunToTheEnd();
  ExpectReference(2, fits);
}

TEST_F(AdmissionTest, AShortPromptDoesNotWaitForALongOne) {
  Make({.prefill_chunk = 8});
  const Ask long_prompt{.prompt = TokenIds(400, 1), .rules = {.max_tokens = 2}};
  const Ask middle{.prompt = TokenIds(60, 2), .rules = {.max_tokens = 2}};
  const Ask short_prompt{.prompt = TokenIds(9, 3), .rules = {.max_tokens = 2}};
  ASSERT_TRUE(Submit(1, long_prompt).ok());
  scheduler_->Step();
  ASSERT_TRUE(Submit(2, middle).ok());
  ASSERT_TRUE(Submit(3, short_prompt).ok());
  for (int step = 0; step < 2; ++step) scheduler_->Step();  // Four of eight rows each.
  EXPECT_EQ(records_[3].tokens.size(), 1u);
  EXPECT_EQ(records_[2].tokens.size(), 0u);
  for (int step = 0; step < 15; ++step) scheduler_->Step();
  EXPECT_EQ(records_[2].tokens.size(), 1u);
  EXPECT_EQ(records_[1].tokens.size(), 0u);
  // 8 + 17 * 4 rows are done: the long one has lost half of the time, no more.
  for (int step = 0; step < 40; ++step) scheduler_->Step();
  EXPECT_EQ(records_[1].tokens.size(), 0u);
  scheduler_->Step();
  EXPECT_EQ(records_[1].tokens.size(), 1u);
  RunToTheEnd();
  for (const auto& [id, ask] : std::map<SessionId, Ask>{{1, long_prompt}, {2, middle}, {3, short_prompt}}) {
    ExpectReference(id, ask);
  }
}

TEST_F(AdmissionTest, MoreSessionsThanRowsTakeTurns) {
  Make({.prefill_chunk = 3}, {.max_rows = 3});
  std::map<SessionId, Ask> asks;
  for (SessionId id = 1; id <= 7; ++id) {
    asks[id] = {.prompt = {static_cast<TokenId>(id)}, .rules = {.max_tokens = 12}};
    ASSERT_TRUE(Submit(id, asks[id]).ok());
  }
  for (int step = 1; step <= 21; ++step) {
    scheduler_->Step();
    size_t least = 100;
    size_t most = 0;
    for (const auto& [id, ask] : asks) {
      least = std::min(least, records_[id].tokens.size());
      most = std::max(most, records_[id].tokens.size());
    }
    EXPECT_LE(most, least + 1) << "after step " << step;
  }
  RunToTheEnd();
  for (const auto& [id, ask] : asks) ExpectReference(id, ask);
}

}  // namespace
}  // namespace tandem

#include <gtest/gtest.h>

#include "verifier/session/drafter_record.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

using DraftOpeningTest = SchedulerTest;

TEST_F(DraftOpeningTest, ManySessionsAreOpenedOneAfterTheOther) {
  Scheduler::Options options{.window_policy = "fixed"};
  options.max_opening_tokens = 10;
  Make(options);
  const Ask ask{.rules = {.max_tokens = 40}, .drafted = true};
  ASSERT_LT(ask.prompt.size(), 10u);
  ASSERT_GT(4 * ask.prompt.size(), 10u);
  for (SessionId id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id, ask).ok());
  scheduler_->Step();
  scheduler_->OnLinkUp(kLink);
  const size_t at_once = NumSent<OpenSession>();
  EXPECT_GE(at_once, 1u);
  EXPECT_LT(at_once, 4u);
  scheduler_->Step();
  clock_.Advance(absl::Seconds(1));
  scheduler_->Step();
  EXPECT_EQ(NumSent<OpenSession>(), at_once) << "the drafter has not answered";
  for (int turn = 0; turn < 8; ++turn) {
    AnswerOpens();
    clock_.Advance(absl::Milliseconds(20));
    scheduler_->Step();
  }
  EXPECT_EQ(NumSent<OpenSession>(), 4u);
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask, 4, 0);
  });
  for (SessionId id = 1; id <= 4; ++id) ExpectReference(id, ask);
}

// A verifier that stood still learns late that the connection broke. What it sent until then may have arrived
// on the next one.
TEST_F(DraftOpeningTest, ARequestThatEndsBeforeTheNextConnectionLeavesNoSessionThere) {
  Make(FixedWindow(4));
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, {.drafted = true}).ok());
  scheduler_->Step();
  ASSERT_EQ(NumSent<OpenSession>(), 1u);
  scheduler_->OnLinkDown(kLink, absl::UnavailableError("gone"));
  scheduler_->Cancel(1, absl::CancelledError("the client has gone"));
  scheduler_->OnLinkUp(kLink);
  RunToTheEnd();
  EXPECT_EQ(NumSent<OpenSession>(), 1u);
  EXPECT_EQ(NumSent<CloseSession>(), 1u);
  EXPECT_TRUE(drafts_.empty());
}

TEST(DrafterRecordsTest, TheOneAskedForLongestAgoGivesWayUnlessASessionHasIt) {
  DrafterRecords records;
  const auto binding = [](LinkId link) { return DrafterBinding{.link = link, .draft_model = "m"}; };
  const auto nobody = [](const DrafterRecord*) { return false; };
  DrafterRecord* const held = records.Of(binding(0), nobody);
  const auto is_held = [held](const DrafterRecord* record) { return record == held; };
  for (LinkId link = 1; link < DrafterRecords::kMostRecords; ++link) records.Of(binding(link), is_held);
  records.Of(binding(2), is_held)->acceptance.Observe({.depth = 4, .accepted = 4});
  const double known = records.Of(binding(2), is_held)->acceptance.Levels()[0];

  // Pods come and go: the first of them makes room for the next, the one that a session has stays.
  for (LinkId link = 1000; link < 1100; ++link) {
    DrafterRecord* const record = records.Of(binding(link), is_held);
    EXPECT_EQ(records.Of(binding(link), is_held), record);
    EXPECT_NE(record, held);
  }
  EXPECT_EQ(records.Of(binding(0), is_held), held);
  EXPECT_EQ(records.Of(binding(2), is_held)->acceptance.Levels()[0], known);

  // With none to spare, they share one.
  const auto everybody = [](const DrafterRecord*) { return true; };
  EXPECT_EQ(records.Of(binding(5000), everybody), records.Of(binding(5001), everybody));
}

TEST(DrafterRecordsTest, AcceptanceBelongsToThePool) {
  DrafterRecords records;
  const auto nobody = [](const DrafterRecord*) { return false; };
  const DrafterBinding first{.link = 1, .draft_model = "m", .pool = 1};
  const DrafterBinding second{.link = 2, .draft_model = "m", .pool = 1};
  const DrafterBinding alone{.link = 1, .draft_model = "m"};
  EXPECT_EQ(records.Of(first, nobody), records.Of(second, nobody));
  EXPECT_NE(records.Of(first, nobody), records.Of(alone, nobody));
}

}  // namespace
}  // namespace tandem

#include "common/speculation/draft_wait.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;

constexpr DraftWait kAlone{.expected_seconds = 0.2,
                           .plain_seconds = 1.0,
                           .drafted_seconds = 1.0,
                           .first_level = 0.5,
                           .expected_accepted = 1.0};

// One session, drafting ahead: waiting gains 0.5 + 1 tokens at a rate of 2 per second.
TEST(DraftWaitTest, ComparesWithDraftingBehindTheRound) {
  EXPECT_THAT(WorthwhileWait(kAlone), DoubleEq(0.75));
  DraftWait late = kAlone;
  late.expected_seconds = 0.8;
  EXPECT_THAT(WorthwhileWait(late), DoubleEq(0.0));
}

TEST(DraftWaitTest, ComparesWithNoDraftAtAll) {
  DraftWait wait = kAlone;
  wait.drafted_ahead = false;
  wait.drafted_seconds = 1.25;
  EXPECT_THAT(WorthwhileWait(wait), DoubleEq(0.75));  // (1 + 1) tokens in w + 1.25 s, against 1 a second.
  wait.expected_accepted = 0.2;
  EXPECT_THAT(WorthwhileWait(wait), DoubleEq(0.0));
  // A draft that takes longer than a round is never there in time for the next one.
  DraftWait far = kAlone;
  far.expected_seconds = 1.5;
  far.expected_accepted = 2.0;
  EXPECT_THAT(WorthwhileWait(far), DoubleEq(2.0));
}

TEST(DraftWaitTest, CountsWhatOthersLose) {
  DraftWait wait = kAlone;
  wait.others_tokens_per_second = 4.0;
  EXPECT_THAT(WorthwhileWait(wait), DoubleNear(0.25, 1e-12));
  wait.others_tokens_per_second = 40.0;
  EXPECT_THAT(WorthwhileWait(wait), DoubleEq(0.0));
}

TEST(DraftWaitTest, NothingToGainIsNotWaitedFor) {
  DraftWait wait = kAlone;
  wait.expected_accepted = 0.0;
  wait.first_level = 0.0;
  EXPECT_THAT(WorthwhileWait(wait), DoubleEq(0.0));
  EXPECT_THAT(WorthwhileWait({}), DoubleEq(0.0));
}

}  // namespace
}  // namespace tandem

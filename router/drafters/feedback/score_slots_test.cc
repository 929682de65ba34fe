#include "router/drafters/feedback/score_slots.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using Change = ScoreSlots::Change;
using Refusal = ScoreSlots::Refusal;

class ScoreSlotsTest : public ::testing::Test {
 protected:
  ScoreSlots::Slot Take(uint32_t num_tokens = 256) {
    ScoreSlots::Taken taken = slots_.Take(kDrafter, num_tokens, now_);
    EXPECT_TRUE(taken.slot.has_value());
    return taken.slot.value_or(ScoreSlots::Slot());
  }
  Refusal Refused() {
    const ScoreSlots::Taken taken = slots_.Take(kDrafter, 256, now_);
    EXPECT_FALSE(taken.slot.has_value());
    return taken.refusal;
  }
  // A score that takes this long.
  Change Answer(absl::Duration took, uint32_t num_tokens = 256) {
    const ScoreSlots::Slot slot = Take(num_tokens);
    now_ += took;
    return slots_.GiveBack(slot, true, now_);
  }
  Change Fail() { return slots_.GiveBack(Take(), false, now_); }

  const FeedbackDrafter kDrafter = {"code", "c:1", "draft-code"};
  ScoreSlots slots_{{.per_drafter = 3}};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(ScoreSlotsTest, OneAtATimeUntilItHasAnswered) {
  const ScoreSlots::Slot first = Take();
  EXPECT_EQ(first.timeout, absl::Seconds(30));
  EXPECT_EQ(Refused(), Refusal::kBusy);
  EXPECT_TRUE(slots_.Take({"math", "c:1", "draft-math"}, 256, now_).slot.has_value());
  EXPECT_TRUE(slots_.Take({"code", "c:2", "draft-code"}, 256, now_).slot.has_value()) << "at another address";
  EXPECT_EQ(slots_.GiveBack(first, true, now_ += absl::Milliseconds(10)), Change::kNone);
  for (int i = 0; i < 3; ++i) Take();
  EXPECT_EQ(Refused(), Refusal::kBusy);
}

TEST_F(ScoreSlotsTest, TheTimeoutFollowsSpeedAndLength) {
  Answer(absl::Milliseconds(512));  // A millisecond for each of 256 tokens and 256 of the call.
  EXPECT_NEAR(absl::ToDoubleSeconds(Take(744).timeout), 8.0, 1e-6);
  EXPECT_EQ(Take(100'000).timeout, absl::Seconds(30)) << "never longer than at first";
  EXPECT_EQ(Take(4).timeout, absl::Seconds(8 * 0.260));

  ScoreSlots quick({});
  const ScoreSlots::Slot slot = *quick.Take(kDrafter, 256, now_).slot;
  quick.GiveBack(slot, true, now_ + absl::Microseconds(1));
  EXPECT_EQ(quick.Take(kDrafter, 256, now_).slot->timeout, absl::Seconds(1)) << "never shorter than this";
}

TEST_F(ScoreSlotsTest, SlowerCountsAtOnceAndFasterLittleByLittle) {
  Answer(absl::Milliseconds(512));
  Answer(absl::Milliseconds(1024));
  EXPECT_NEAR(absl::ToDoubleSeconds(slots_.Take(kDrafter, 256, now_).slot->timeout), 8 * 1.024, 1e-6);
  Answer(absl::Milliseconds(24));
  EXPECT_NEAR(absl::ToDoubleSeconds(slots_.Take(kDrafter, 256, now_).slot->timeout), 8 * 0.924, 1e-6);
}

TEST_F(ScoreSlotsTest, PausesDoubleAndEndWithAnAnswer) {
  Answer(absl::Milliseconds(512));
  EXPECT_EQ(Fail(), Change::kLeftAlone);
  absl::Duration pause = absl::Seconds(1);
  for (int failures = 1; failures < 12; ++failures) {
    SCOPED_TRACE(absl::StrCat("after ", failures, " failures"));
    now_ += pause - absl::Milliseconds(1);
    EXPECT_EQ(Refused(), Refusal::kLeftAlone);
    now_ += absl::Milliseconds(1);
    const ScoreSlots::Slot probe = Take();
    EXPECT_EQ(Refused(), Refusal::kBusy) << "one probe at a time";
    const double patience = std::min(8 * 0.512 * std::exp2(failures), 30.0);
    EXPECT_NEAR(absl::ToDoubleSeconds(probe.timeout), patience, 1e-6) << "it may only be slow";
    EXPECT_EQ(slots_.GiveBack(probe, false, now_), Change::kNone) << "told once";
    pause = std::min(2 * pause, absl::Minutes(2));
  }
  now_ += absl::Minutes(2);
  EXPECT_EQ(Answer(absl::Milliseconds(512)), Change::kAnswersAgain);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(absl::ToDoubleSeconds(Take().timeout), 8 * 0.512, 1e-6);
}

TEST_F(ScoreSlotsTest, FailuresOfOneTimeCountOnce) {
  Answer(absl::Milliseconds(512));
  std::vector<ScoreSlots::Slot> together;
  for (int i = 0; i < 3; ++i) together.push_back(Take());
  for (const ScoreSlots::Slot& slot : together) {
    slots_.GiveBack(slot, false, now_ += absl::Milliseconds(100));
  }
  now_ += absl::Milliseconds(800);  // A second after the first of them.
  EXPECT_TRUE(slots_.Take(kDrafter, 256, now_).slot.has_value());
}

TEST_F(ScoreSlotsTest, DraftersThatAreGoneDoNotPileUp) {
  const ScoreSlots::Slot kept = Take();
  for (int i = 0; i < 5000; ++i) {
    const FeedbackDrafter drafter = {absl::StrCat("d", i), "e:1", "draft"};
    slots_.GiveBack(*slots_.Take(drafter, 256, now_).slot, true, now_);
  }
  EXPECT_LE(slots_.size(), 1024u);
  EXPECT_EQ(slots_.GiveBack(kept, true, now_), Change::kNone) << "what is under way is kept";
}

}  // namespace
}  // namespace tandem::router

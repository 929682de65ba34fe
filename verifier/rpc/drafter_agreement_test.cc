#include "verifier/rpc/drafter_agreement.h"

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using Change = DrafterAgreement::Change;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A window in which so many rounds agree, and what the last one changed.
Change Window(DrafterAgreement* agreement, const std::string& drafter, uint32_t agreeing) {
  Change last = Change::kNone;
  for (uint32_t i = 0; i < DrafterAgreement::kWindow; ++i) {
    EXPECT_EQ(last, Change::kNone) << "before the window's end";
    last = agreement->RecordRound(drafter, i < agreeing);
  }
  return last;
}

TEST(DrafterAgreementTest, AWindowOfMissesIsToldOnce) {
  DrafterAgreement agreement;
  EXPECT_EQ(Window(&agreement, "wrong", 4), Change::kBecameRandom);
  EXPECT_EQ(Window(&agreement, "wrong", 0), Change::kNone);
  EXPECT_EQ(Window(&agreement, "good", 60), Change::kNone);
  EXPECT_THAT(agreement.random_drafters(), ElementsAre("wrong"));
}

TEST(DrafterAgreementTest, ADrafterThatIsSwappedForABetterOneRecovers) {
  DrafterAgreement agreement;
  Window(&agreement, "swapped", 0);
  EXPECT_EQ(Window(&agreement, "swapped", 5), Change::kRecovered);
  EXPECT_THAT(agreement.random_drafters(), IsEmpty());
}

TEST(DrafterAgreementTest, ADrafterThatIsRightInAFifthOfItsRoundsIsNotRandom) {
  DrafterAgreement agreement;
  std::mt19937 random(7);
  for (int round = 0; round < 100'000; ++round) {
    ASSERT_EQ(agreement.RecordRound("poor", random() % 5 == 0), Change::kNone);
  }
}

TEST(DrafterAgreementTest, NamesWithoutEndTakeNoMemory) {
  DrafterAgreement agreement;
  for (size_t i = 0; i < DrafterAgreement::kMaxDrafters; ++i) agreement.RecordRound(absl::StrCat(i), true);
  EXPECT_EQ(Window(&agreement, "one more", 0), Change::kNone);
  EXPECT_THAT(agreement.random_drafters(), IsEmpty());
}

}  // namespace
}  // namespace tandem

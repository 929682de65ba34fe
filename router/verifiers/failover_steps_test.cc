#include <optional>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/verifiers/failover.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kNow = absl::ZeroDuration();

TEST(FailoverStepsTest, EveryVerifierIsTriedOnceWithoutOutput) {
  Failover failover;
  failover.OnFailed(0, 3);
  EXPECT_EQ(failover.NextAttempt(3, false), kNow);
  failover.OnFailed(1, 3);
  EXPECT_EQ(failover.NextAttempt(3, false), kNow);
  EXPECT_THAT(failover.tried(), ElementsAre(0, 1));
  failover.OnFailed(2, 3);
  EXPECT_EQ(failover.NextAttempt(3, false), std::nullopt);
  EXPECT_THAT(failover.tried(), ElementsAre(1, 2)) << "the one that failed longest ago is next";
}

TEST(FailoverStepsTest, WithOutputTheyAreTriedAgainAfterGrowingPauses) {
  Failover failover;
  failover.OnProgress();
  failover.OnFailed(0, 1);
  EXPECT_EQ(failover.NextAttempt(1, true), kNow) << "it brought tokens";
  for (int pause = 50; pause <= 1600; pause *= 2) {
    failover.OnFailed(0, 1);
    EXPECT_EQ(failover.NextAttempt(1, true), absl::Milliseconds(pause));
  }
  failover.OnFailed(0, 1);
  EXPECT_EQ(failover.NextAttempt(1, true), std::nullopt);
}

TEST(FailoverStepsTest, AskingForAPlaceCountsAsAnAttempt) {
  Failover failover;
  EXPECT_EQ(failover.NextAsking(2, false), std::nullopt);
  for (int pause = 50; pause <= 1600; pause *= 2) {
    EXPECT_EQ(failover.NextAsking(2, true), absl::Milliseconds(pause));
  }
  EXPECT_EQ(failover.NextAsking(2, true), std::nullopt);
  failover.OnVerifierServes();
  EXPECT_EQ(failover.NextAsking(2, true), absl::Milliseconds(50));
}

// Verifiers come and go between the attempts.
TEST(FailoverStepsTest, FewerVerifiersThanWereTriedGiveNoHugePause) {
  Failover failover;
  for (size_t verifier = 0; verifier < 40; ++verifier) failover.OnFailed(verifier, 40);
  EXPECT_EQ(failover.NextAttempt(1, true), std::nullopt);
  EXPECT_EQ(failover.NextAsking(1, true), std::nullopt);
}

TEST(FailoverStepsTest, WaitsAreOneFromTheLastTokenOn) {
  Failover failover;
  const absl::Time start = absl::UnixEpoch();
  const absl::Duration longest = absl::Seconds(10);
  EXPECT_EQ(failover.WaitUntil(start, absl::ZeroDuration()), std::nullopt);
  EXPECT_EQ(failover.WaitUntil(start, longest), start + longest);
  EXPECT_EQ(failover.WaitUntil(start + absl::Seconds(9), longest), start + longest);
  EXPECT_EQ(failover.wait_began(), start);
  failover.OnVerifierServes();
  EXPECT_EQ(failover.WaitUntil(start + absl::Seconds(10), longest), std::nullopt) << "no token came of it";
  failover.OnProgress();
  EXPECT_EQ(failover.WaitUntil(start + absl::Seconds(11), longest), start + absl::Seconds(21));
  EXPECT_THAT(failover.tried(), IsEmpty());
}

}  // namespace
}  // namespace tandem::router

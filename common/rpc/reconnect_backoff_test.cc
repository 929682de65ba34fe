#include "common/rpc/reconnect_backoff.h"

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(ReconnectBackoffTest, GrowsToTheMaximumAndStartsOver) {
  ManualClock clock;
  double uniform = 0.0;
  ReconnectBackoff backoff(
      &clock, [&] { return uniform; },
      {.initial = absl::Seconds(1), .maximum = absl::Seconds(4), .multiplier = 2.0, .jitter = 0.5});
  EXPECT_TRUE(backoff.Ready());
  EXPECT_EQ(backoff.Failed(), clock.Now() + absl::Milliseconds(500));
  EXPECT_FALSE(backoff.Ready());
  clock.Advance(absl::Milliseconds(500));
  EXPECT_TRUE(backoff.Ready());
  uniform = 0.5;
  EXPECT_EQ(backoff.Failed(), clock.Now() + absl::Milliseconds(1500));
  EXPECT_EQ(backoff.Failed(), clock.Now() + absl::Milliseconds(3000));
  EXPECT_EQ(backoff.Failed(), clock.Now() + absl::Milliseconds(3000));
  backoff.Succeeded();
  EXPECT_TRUE(backoff.Ready());
  EXPECT_EQ(backoff.Failed(), clock.Now() + absl::Milliseconds(750));
}

}  // namespace
}  // namespace tandem

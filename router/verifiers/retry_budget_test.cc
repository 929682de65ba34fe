#include "router/verifiers/retry_budget.h"

#include "gtest/gtest.h"

namespace tandem::router {
namespace {

const absl::Time kBudgetStart = absl::FromUnixSeconds(1000);

int TakeAll(RetryBudget& budget, absl::Time now) {
  int taken = 0;
  while (budget.Take(now)) ++taken;
  return taken;
}

TEST(RetryBudgetTest, TheReserveThenAShareOfRequests) {
  RetryBudget budget({.share = 0.1, .per_second = 0.0, .reserve = 20.0}, kBudgetStart);
  EXPECT_EQ(TakeAll(budget, kBudgetStart), 20);
  for (int i = 0; i < 95; ++i) budget.OnRequest(kBudgetStart);
  EXPECT_EQ(TakeAll(budget, kBudgetStart), 9);
  for (int i = 0; i < 100'000; ++i) budget.OnRequest(kBudgetStart);
  EXPECT_EQ(TakeAll(budget, kBudgetStart), 20) << "no more than the reserve is kept";
}

TEST(RetryBudgetTest, SomeEverySecondWhateverTheClockDoes) {
  RetryBudget budget({.share = 0.0, .per_second = 4.0, .reserve = 8.0}, kBudgetStart);
  TakeAll(budget, kBudgetStart);
  EXPECT_EQ(TakeAll(budget, kBudgetStart + absl::Seconds(1)), 4);
  EXPECT_EQ(TakeAll(budget, kBudgetStart), 0) << "a clock that is set back gives nothing";
  EXPECT_EQ(TakeAll(budget, kBudgetStart + absl::Seconds(1)), 0) << "and not the same second twice";
  EXPECT_EQ(TakeAll(budget, kBudgetStart + absl::Hours(1)), 8);
}

}  // namespace
}  // namespace tandem::router

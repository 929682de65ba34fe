#include "bench/serve/statistics.h"

#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

TEST(StatisticsTest, QuantilesInterpolate) {
  EXPECT_EQ(Quantile({}, 0.5), 0.0);
  EXPECT_EQ(Quantile({7.0}, 0.99), 7.0);
  EXPECT_EQ(Quantile({4.0, 1.0, 3.0, 2.0}, 0.0), 1.0);
  EXPECT_EQ(Quantile({4.0, 1.0, 3.0, 2.0}, 1.0), 4.0);
  EXPECT_DOUBLE_EQ(Quantile({4.0, 1.0, 3.0, 2.0}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Quantile({10.0, 20.0, 30.0, 40.0, 50.0}, 0.9), 46.0);
  EXPECT_EQ(Median({3.0, 100.0, 1.0}), 3.0);
}

TEST(StatisticsTest, SpreadIsMedianAndQuartiles) {
  const Spread spread = SpreadOf({1.0, 2.0, 3.0, 4.0, 100.0});
  EXPECT_EQ(spread.count, 5u);
  EXPECT_EQ(spread.median, 3.0);
  EXPECT_EQ(spread.low, 2.0);
  EXPECT_EQ(spread.high, 4.0);
  EXPECT_EQ(SpreadOf({}).count, 0u);
}

}  // namespace
}  // namespace tandem::bench

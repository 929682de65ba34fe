#include "bench/machine_rates.h"

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(PeakRatesTest, AreMeasuredForEveryClassOfThisMachine) {
  const auto team = ThreadTeam::Create(2);
  ASSERT_TRUE(team.ok()) << team.status();
  const std::vector<PeakRate> rates = MeasurePeakRates(team->get());
  ASSERT_FALSE(rates.empty());
  EXPECT_EQ(rates.front().name, "f32-portable");
  // A loop that the compiler left out would take no time at all.
  for (const PeakRate& rate : rates) {
    EXPECT_GT(rate.operations_per_second, 1e6) << rate.name;
    EXPECT_LT(rate.operations_per_second, 1e15) << rate.name;
  }
}

TEST(PeakRatesTest, TheKernelsNameChoosesTheClass) {
  const std::vector<PeakRate> rates = {{"f32-portable", 1}, {"f32-avx2", 2},    {"f32-avx512", 3},
                                       {"bf16-avx512", 4},  {"int8-avx512", 5}, {"bf16-amx", 6},
                                       {"int8-amx", 7}};
  const auto rate = [&](absl::string_view kernels, absl::string_view dtype) {
    return PeakRateFor(kernels, dtype, rates)->operations_per_second;
  };
  EXPECT_EQ(rate("portable", "bf16"), 1);
  EXPECT_EQ(rate("avx2", "bf16"), 2);
  EXPECT_EQ(rate("avx512", "bf16"), 3);
  EXPECT_EQ(rate("avx512", "int8"), 2.5);
  EXPECT_EQ(rate("avx512-bf16", "bf16"), 4);
  EXPECT_EQ(rate("avx512-bf16", "int8"), 2.5);
  EXPECT_EQ(
      PeakRateFor("avx512-bf16", "bf16", {{"f32-avx512", 3}, {"bf16-avx512", 2}})->operations_per_second, 3);
  EXPECT_EQ(PeakRateFor("avx512-bf16", "bf16", {{"f32-avx512", 3}})->operations_per_second, 3);
  EXPECT_EQ(rate("avx512", "w8a8"), 5);
  EXPECT_EQ(rate("avx512-bf16", "w4a8"), 5);
  EXPECT_EQ(PeakRateFor("avx512", "w8a8", {{"f32-avx512", 3}})->operations_per_second, 3);
  EXPECT_EQ(PeakRateFor("avx512", "int8", {{"f32-avx512", 3}})->operations_per_second, 3);
  EXPECT_EQ(rate("amx", "w8a8"), 7);
  EXPECT_EQ(rate("amx", "bf16"), 6);
  EXPECT_EQ(rate("amx", "int4"), 3.5);
  EXPECT_EQ(PeakRateFor("amx", "bf16", {rates[0]}).status().code(), absl::StatusCode::kNotFound);
}

TEST(ReadBandwidthTest, AnySizeHasOne) {
  const auto team = ThreadTeam::Create(2);
  ASSERT_TRUE(team.ok()) << team.status();
  for (const uint64_t size : {uint64_t{0}, uint64_t{1000}, uint64_t{4} << 20}) {
    const auto rate = MeasureReadBandwidth(size, team->get());
    ASSERT_TRUE(rate.ok()) << rate.status();
    EXPECT_GT(*rate, 1e6) << size;
    EXPECT_LT(*rate, 1e14) << size;
  }
}

}  // namespace
}  // namespace tandem

#include "verifier/session/feature_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tandem {
namespace {

constexpr uint32_t kWidth = 3;
constexpr FeatureStore::Options kRoomy = {
    .num_blocks = 4, .hidden_size = kWidth, .num_layers = 12, .max_bytes = 1 << 20};

std::vector<float> Bf16Values(const std::string& row) {
  std::vector<float> values;
  for (size_t i = 0; i + 1 < row.size(); i += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, row.data() + i, sizeof bits);
    values.push_back(std::bit_cast<float>(uint32_t{bits} << 16));
  }
  return values;
}

// Row of `layers` and, with `final_norm`, that: number i of a state is 10 * layer + i (the final norm counts
// as 9), plus `plus`.
void WriteRow(FeatureStore* store, SlotId slot, const std::vector<uint32_t>& layers, bool final_norm,
              float plus = 0.0f) {
  std::vector<float> states;
  std::vector<uint32_t> names = layers;
  if (final_norm) names.push_back(9);
  for (uint32_t layer : names) {
    for (uint32_t i = 0; i < kWidth; ++i)
      states.push_back(10.0f * static_cast<float>(layer) + static_cast<float>(i) + plus);
  }
  store->Write(slot, {.layers = layers, .final_norm = final_norm, .states = states.data()});
}

std::vector<float> ReadRow(const FeatureStore& store, SlotId slot, const FeatureNeeds& needs) {
  std::string row;
  store.AppendRow(slot, needs, &row);
  EXPECT_EQ(row.size(), FeatureRowBytes(needs.type, needs.num_states(), kWidth));
  return Bf16Values(row);
}

TEST(FeatureStoreTest, KeepsWhatWasComputedAndOnlyThat) {
  FeatureStore store(kRoomy);
  const FeatureNeeds needs{.layers = {1, 2}, .final_norm = true};
  EXPECT_TRUE(store.empty());
  ASSERT_EQ(store.Keep(needs).value(), true);
  EXPECT_EQ(store.num_states(), 3u);
  EXPECT_FALSE(store.Has(17, needs));
  WriteRow(&store, 17, {1, 2}, true);
  EXPECT_TRUE(store.Has(17, needs));
  EXPECT_FALSE(store.Has(16, needs));
  EXPECT_FALSE(store.Has(18, needs));
  EXPECT_EQ(ReadRow(store, 17, needs), (std::vector<float>{10, 11, 12, 20, 21, 22, 90, 91, 92}));
  // The slot belongs to another token that was computed without features.
  store.Write(17, {});
  EXPECT_FALSE(store.Has(17, needs));
}

TEST(FeatureStoreTest, AnotherHeadsStatesComeBesideThoseThatAreThere) {
  FeatureStore store(kRoomy);
  const FeatureNeeds first{.layers = {5}};
  const FeatureNeeds second{.layers = {0, 5, 12}, .final_norm = true};
  ASSERT_EQ(store.Keep(first).value(), true);
  WriteRow(&store, 3, {5}, false);
  ASSERT_EQ(store.Keep(second).value(), true);
  EXPECT_EQ(store.Keep(first).value(), false);
  EXPECT_EQ(store.Keep(second).value(), false);
  EXPECT_EQ(store.layers(), absl::MakeConstSpan({0u, 5u, 12u}));
  EXPECT_TRUE(store.final_norm());
  // What one head has is not taken from it.
  EXPECT_TRUE(store.Has(3, first));
  EXPECT_FALSE(store.Has(3, second));
  WriteRow(&store, 4, {0, 5, 12}, true, 0.5f);
  EXPECT_EQ(ReadRow(store, 4, first), (std::vector<float>{50.5, 51.5, 52.5}));
  EXPECT_EQ(ReadRow(store, 3, first), (std::vector<float>{50, 51, 52}));
  EXPECT_EQ(ReadRow(store, 4, second)[9], 90.5f);
  // A step that was planned before the second head came.
  WriteRow(&store, 5, {5}, false);
  EXPECT_TRUE(store.Has(5, first));
  EXPECT_FALSE(store.Has(5, second));
}

TEST(FeatureStoreTest, RefusesWhatTheTargetHasNotAndWhatIsTooMuch) {
  FeatureStore store(kRoomy);
  EXPECT_TRUE(absl::IsInvalidArgument(store.Keep({}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Keep({.layers = {13}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Keep({.layers = {UINT32_MAX}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Keep({.layers = {2, 2}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Keep({.layers = {0, 1, 2, 3, 4, 5, 6, 7, 8}}).status()));
  EXPECT_TRUE(store.empty());
  ASSERT_TRUE(store.Keep({.layers = {0, 1, 2, 3, 4, 5, 6, 7}}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store.Keep({.layers = {8}, .final_norm = true}).status()));
  EXPECT_EQ(store.num_states(), 8u);
  EXPECT_TRUE(store.Keep({.final_norm = true}).ok());
  EXPECT_EQ(store.num_states(), 9u);
  EXPECT_EQ(store.reserved_bytes(), 9u * 64 * kWidth * 2);
}

TEST(FeatureStoreTest, HoldsNoMoreThanItMay) {
  FeatureStore::Options options = kRoomy;
  options.max_bytes = 2 * 64 * kWidth * 2;  // Two states of 64 slots.
  EXPECT_TRUE(FeatureStore::FitsAny(options));
  FeatureStore store(options);
  EXPECT_TRUE(absl::IsResourceExhausted(store.Keep({.layers = {1, 2}, .final_norm = true}).status()));
  EXPECT_TRUE(store.empty());
  EXPECT_TRUE(store.Keep({.layers = {1, 2}}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store.Keep({.final_norm = true}).status()));

  options.max_bytes = 64 * kWidth * 2 - 1;
  EXPECT_FALSE(FeatureStore::FitsAny(options));
  // Sizes that overflow are too large, and not small.
  EXPECT_FALSE(FeatureStore::FitsAny(
      {.num_blocks = UINT32_MAX, .hidden_size = UINT32_MAX, .num_layers = 1, .max_bytes = UINT64_MAX}));
  // A row that no message could hold.
  FeatureStore wide({.num_blocks = 1, .hidden_size = 1 << 19, .num_layers = 12, .max_bytes = UINT64_MAX});
  EXPECT_TRUE(absl::IsResourceExhausted(wide.Keep({.layers = {1, 2}}).status()));
  EXPECT_TRUE(wide.Keep({.layers = {1}}).ok());
}

TEST(FeatureStoreTest, RoundsToTheNearestBf16TiesToEven) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> from = {0.0f,
                                   -0.0f,
                                   1.0f,
                                   1.0f + 0x1p-8f,             // A tie: to 1.
                                   1.0f + 0x3p-8f,             // A tie: up to 1 + 2 / 128.
                                   1.0f + 0x1p-8f + 0x1p-20f,  // Above the tie.
                                   -1.0f - 0x3p-8f,
                                   infinity,
                                   -infinity,
                                   std::numeric_limits<float>::max(),
                                   0x1p-149f};
  const std::vector<float> expected = {
      0.0f,     -0.0f,     1.0f,     1.0f, 1.0f + 0x1p-6f, 1.0f + 0x1p-7f, -1.0f - 0x1p-6f,
      infinity, -infinity, infinity, 0.0f};
  std::vector<uint16_t> rounded(from.size());
  RoundToBf16(from, rounded.data());
  for (size_t i = 0; i < from.size(); ++i) {
    const float value = std::bit_cast<float>(uint32_t{rounded[i]} << 16);
    EXPECT_EQ(value, expected[i]) << from[i];
    EXPECT_EQ(std::signbit(value), std::signbit(expected[i])) << from[i];
  }
  // The payload of this one would overflow if it was rounded.
  const std::vector<float> nans = {nan, std::bit_cast<float>(0x7fffffffu), std::bit_cast<float>(0xff800001u)};
  rounded.resize(nans.size());
  RoundToBf16(nans, rounded.data());
  for (uint16_t bits : rounded) EXPECT_TRUE(std::isnan(std::bit_cast<float>(uint32_t{bits} << 16)));
}

// Rows are rounded in stretches, and what is left of them number by number.
TEST(FeatureStoreTest, LongRowsAreRoundedAsSingleNumbersAre) {
  constexpr uint32_t kLong = 75;
  std::mt19937 random(7);
  FeatureStore store({.num_blocks = 1, .hidden_size = kLong, .num_layers = 2, .max_bytes = 1 << 20});
  const FeatureNeeds needs{.layers = {1}, .type = FeatureType::kInt8};
  ASSERT_TRUE(store.Keep(needs).ok());
  for (int turn = 0; turn < 50; ++turn) {
    std::vector<float> numbers(kLong);
    for (float& number : numbers) number = std::bit_cast<float>(static_cast<uint32_t>(random()));
    std::vector<uint16_t> together(kLong);
    RoundToBf16(numbers, together.data());
    for (uint32_t i = 0; i < kLong; ++i) {
      uint16_t alone = 0;
      RoundToBf16(absl::MakeConstSpan(&numbers[i], 1), &alone);
      ASSERT_EQ(together[i], alone) << numbers[i];
    }

    float largest = 0.0f;
    for (float& number : numbers) {
      number =
          static_cast<float>(random() % 2001) / 256.0f - 3.5f;  // Up to 4.3, exact in bfloat16 or nearly.
      uint16_t bits = 0;
      RoundToBf16(absl::MakeConstSpan(&number, 1), &bits);
      number = std::bit_cast<float>(uint32_t{bits} << 16);
      largest = std::max(largest, std::abs(number));
    }
    store.Write(0, {.layers = needs.layers, .states = numbers.data()});
    std::string row;
    store.AppendRow(0, needs, &row);
    float scale = 0.0f;
    std::memcpy(&scale, row.data(), sizeof scale);
    ASSERT_EQ(scale, largest / 127.0f);
    for (uint32_t i = 0; i < kLong; ++i) {
      const auto steps = static_cast<float>(static_cast<int8_t>(row[sizeof scale + i]));
      ASSERT_LE(std::abs(steps * scale - numbers[i]), 0.5001f * scale) << i;
    }
  }
}

TEST(FeatureStoreTest, Int8HasAScaleForEachState) {
  FeatureStore store(kRoomy);
  const FeatureNeeds needs{.layers = {1, 2, 3}, .type = FeatureType::kInt8};
  ASSERT_TRUE(store.Keep(needs).ok());
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> states = {-127.0f, 63.5f, 1.0f, 0.0f, 0.0f, -0.0f, infinity, 0.5f, -0.25f};
  store.Write(1, {.layers = needs.layers, .states = states.data()});
  std::string row;
  store.AppendRow(1, needs, &row);
  ASSERT_EQ(row.size(), 3u * (4 + kWidth));
  const auto scale_of = [&](size_t state) {
    float scale = 0.0f;
    std::memcpy(&scale, row.data() + state * (4 + kWidth), sizeof scale);
    return scale;
  };
  const auto number = [&](size_t state, size_t i) {
    return static_cast<int>(static_cast<int8_t>(row[state * (4 + kWidth) + 4 + i]));
  };
  EXPECT_EQ(scale_of(0), 1.0f);
  EXPECT_EQ(number(0, 0), -127);
  EXPECT_EQ(number(0, 1), 64);  // 63.5, to the even one.
  EXPECT_EQ(number(0, 2), 1);
  EXPECT_EQ(scale_of(1), 0.0f);
  for (size_t i = 0; i < kWidth; ++i) EXPECT_EQ(number(1, i), 0);
  EXPECT_EQ(scale_of(2), 0.5f / 127.0f);
  EXPECT_EQ(number(2, 0), 0);
  EXPECT_EQ(number(2, 1), 127);
  EXPECT_EQ(number(2, 2), -64);  // -63.5.
}

}  // namespace
}  // namespace tandem

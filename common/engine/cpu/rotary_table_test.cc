#include "common/engine/cpu/rotary_table.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

ModelConfig Config(int32_t head_dim) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = 10000;
  return config;
}

// The angle by which the table turns pair `i` at `position`, found by rotating the unit vector of that pair.
double Angle(const RotaryTable& table, int32_t head_dim, uint32_t position, int32_t i) {
  std::vector<float> head(static_cast<size_t>(head_dim));
  head[static_cast<size_t>(i)] = 1;
  table.Rotate(position, head.data());
  return std::atan2(head[static_cast<size_t>(i + head_dim / 2)], head[static_cast<size_t>(i)]);
}

TEST(RotaryTable, TurnsPairsHalfAHeadApart) {
  auto table = RotaryTable::Build(Config(6), 10);
  ASSERT_TRUE(table.ok()) << table.status();
  table->ExtendTo(10);
  for (uint32_t position = 0; position < 10; ++position) {
    for (int32_t i = 0; i < 3; ++i) {
      const double expected = position * std::pow(10000.0, -2.0 * i / 6);
      EXPECT_NEAR(std::remainder(Angle(*table, 6, position, i) - expected, 2 * std::numbers::pi), 0, 1e-6);
    }
  }
  std::vector<float> head = {1, 2, 3, 4, 5, 6};
  table->Rotate(0, head.data());
  EXPECT_EQ(head, (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

// In any steps, the values are those of one step.
TEST(RotaryTable, IsComputedAsPositionsOccur) {
  auto whole = RotaryTable::Build(Config(6), 1000);
  auto parts = RotaryTable::Build(Config(6), 1000);
  ASSERT_TRUE(whole.ok() && parts.ok());
  EXPECT_TRUE(parts->values().empty());
  whole->ExtendTo(1000);
  for (const uint32_t end : {0, 1, 64, 65, 63, 900, 1000, 10}) {
    parts->ExtendTo(end);
    ASSERT_GE(parts->values().size(), end * 6u);
    ASSERT_LT(parts->values().size(), (1000 + 1) * 6u);
  }
  EXPECT_EQ(parts->values(), whole->values());
  EXPECT_EQ(whole->values().size(), 1000u * 6);
}

TEST(RotaryTable, LinearScalingSlowsEveryFrequency) {
  ModelConfig config = Config(4);
  config.rope_scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4};
  auto plain = RotaryTable::Build(Config(4), 9);
  auto scaled = RotaryTable::Build(config, 9);
  ASSERT_TRUE(plain.ok() && scaled.ok());
  plain->ExtendTo(9);
  scaled->ExtendTo(9);
  for (int32_t i = 0; i < 2; ++i) EXPECT_NEAR(Angle(*scaled, 4, 8, i), Angle(*plain, 4, 2, i), 1e-6);
}

TEST(RotaryTable, Llama3ScalingKeepsHighSlowsLowAndBlendsBetween) {
  ModelConfig config = Config(64);
  config.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                         .factor = 8,
                         .low_frequency_factor = 1,
                         .high_frequency_factor = 4,
                         .original_context = 1024};
  auto table = RotaryTable::Build(config, 2);
  ASSERT_TRUE(table.ok()) << table.status();
  table->ExtendTo(2);
  int num_kept = 0;
  int num_blended = 0;
  int num_slowed = 0;
  for (int32_t i = 0; i < 32; ++i) {
    const double plain = std::pow(10000.0, -2.0 * i / 64);
    const double wavelength = 2 * std::numbers::pi / plain;
    const double ratio = Angle(*table, 64, 1, i) / plain;
    if (wavelength < 1024.0 / 4) {
      EXPECT_NEAR(ratio, 1, 1e-6);
      ++num_kept;
    } else if (wavelength > 1024) {
      EXPECT_NEAR(ratio, 1.0 / 8, 1e-6);
      ++num_slowed;
    } else {
      const double smooth = (1024 / wavelength - 1) / 3;
      EXPECT_NEAR(ratio, (1 - smooth) / 8 + smooth, 1e-6);
      ++num_blended;
    }
  }
  EXPECT_GT(num_kept, 0);
  EXPECT_GT(num_blended, 0);
  EXPECT_GT(num_slowed, 0);
}

}  // namespace
}  // namespace tandem

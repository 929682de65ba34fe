#include "common/engine/cpu/weight_quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/cpu/integer_layouts.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

std::vector<float> NormalWeights(uint64_t seed, float deviation) {
  std::mt19937_64 random(seed);
  std::vector<float> weights(kInputGroup);
  // Near enough to a normal distribution, and the same with every library.
  for (float& weight : weights) {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(random() >> 40) * 0x1p-24f;
    weight = deviation * sum;
  }
  return weights;
}

double SquaredError(const std::vector<float>& weights, const QuantizedGroup& group) {
  double sum = 0;
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    const double error = weights[k] - double{group.scale} * group.values[k];
    sum += error * error;
  }
  return sum;
}

bool Bf16Holds(float value) {
  return (std::bit_cast<uint32_t>(value) & 0xffffu) == 0;
}

TEST(WeightQuantizer, EightBitsLoseAtMostHalfAStep) {
  for (float deviation : {1e-25f, 1e-3f, 1.0f, 1e30f}) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<float> weights = NormalWeights(seed, deviation);
      const QuantizedGroup group = QuantizeInt8(weights.data());
      float greatest = 0;
      for (float weight : weights) greatest = std::max(greatest, std::abs(weight));
      EXPECT_TRUE(Bf16Holds(group.scale));
      EXPECT_GE(group.scale, greatest / 127);
      EXPECT_LE(group.scale, greatest / 127 * (1 + 0x1p-7f));
      for (uint32_t k = 0; k < kInputGroup; ++k) {
        EXPECT_LE(std::abs(group.values[k]), 127);
        EXPECT_NEAR(weights[k], double{group.scale} * group.values[k], 0.50001 * group.scale) << k;
      }
    }
  }
}

TEST(WeightQuantizer, FourBitsSearchForTheBestScale) {
  int num_better = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> weights = NormalWeights(seed, 0.02f);
    const QuantizedGroup group = QuantizeInt4(weights.data());
    EXPECT_TRUE(Bf16Holds(group.scale));
    float greatest = 0;
    for (float weight : weights) greatest = std::max(greatest, std::abs(weight));
    // What no search gives: the greatest weight is 7.
    QuantizedGroup plain;
    plain.scale = greatest / 7;
    for (uint32_t k = 0; k < kInputGroup; ++k) {
      plain.values[k] = static_cast<int8_t>(std::nearbyint(weights[k] / plain.scale));
      EXPECT_LE(std::abs(group.values[k]), 7);
    }
    const double searched = SquaredError(weights, group);
    EXPECT_LE(searched, SquaredError(weights, plain) * 1.02);
    num_better += searched < SquaredError(weights, plain) * 0.95;
  }
  EXPECT_GT(num_better, 50);
}

TEST(WeightQuantizer, KeepsWholeNumbers) {
  std::vector<float> weights(kInputGroup);
  for (uint32_t k = 0; k < kInputGroup; ++k) weights[k] = 0.5f * (static_cast<float>(k % 15) - 7);
  const QuantizedGroup int4 = QuantizeInt4(weights.data());
  EXPECT_EQ(int4.scale, 0.5f);
  EXPECT_EQ(SquaredError(weights, int4), 0.0);
  weights[3] = 0.5f * 127;
  const QuantizedGroup int8 = QuantizeInt8(weights.data());
  EXPECT_EQ(int8.scale, 0.5f);
  EXPECT_EQ(SquaredError(weights, int8), 0.0);
}

TEST(WeightQuantizer, HasAScaleForEveryGroup) {
  for (const auto quantize : {QuantizeInt8, QuantizeInt4}) {
    std::vector<float> weights(kInputGroup, 0.0f);
    EXPECT_EQ(quantize(weights.data()).scale, 0.0f);
    weights[7] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(quantize(weights.data()).scale, 0.0f);
    EXPECT_EQ(quantize(weights.data()).values[7], 0);
    weights[7] = -std::numeric_limits<float>::max();
    EXPECT_TRUE(std::isfinite(quantize(weights.data()).scale));
    EXPECT_LT(quantize(weights.data()).values[7], 0);
    for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                      std::numeric_limits<float>::quiet_NaN()}) {
      weights[63] = bad;
      EXPECT_TRUE(std::isnan(quantize(weights.data()).scale));
      EXPECT_EQ(quantize(weights.data()).values[7], 0);
    }
  }
}

TEST(IntegerLayouts, GiveBackEveryIntegerTimesItsScale) {
  struct Case {
    WeightLayout layout;
    QuantizedGroup (*quantize)(const float*);
    size_t group_bytes;
  };
  for (const Case& each : {Case{Int8Lines(), QuantizeInt8, 2112}, Case{Int8AmxTiles(), QuantizeInt8, 2112},
                           Case{Int4Lines(), QuantizeInt4, 1088}, Case{Int4AmxTiles(), QuantizeInt4, 1088}}) {
    for (uint32_t depth : {1u, 64u, 100u, 192u}) {
      const uint32_t num_groups = (depth + kInputGroup - 1) / kInputGroup;
      ASSERT_EQ(each.layout.tile_bytes(depth), num_groups * each.group_bytes);
      std::vector<uint64_t> tile(each.layout.tile_bytes(depth) / sizeof(uint64_t));
      std::vector<std::vector<float>> weights;
      for (uint32_t output = 0; output < kTileOutputs; ++output) {
        weights.emplace_back();
        for (uint32_t group = 0; group < num_groups; ++group) {
          const std::vector<float> part =
              NormalWeights(output * 10 + group, 1.0f + static_cast<float>(output));
          weights.back().insert(weights.back().end(), part.begin(), part.end());
        }
        std::fill(weights.back().begin() + depth, weights.back().end(), 0.0f);
        each.layout.pack(weights.back().data(), depth, output, tile.data());
      }
      for (uint32_t output = 0; output < kTileOutputs; ++output) {
        std::vector<float> unpacked(depth);
        each.layout.unpack(tile.data(), depth, output, unpacked.data());
        for (uint32_t k = 0; k < depth; ++k) {
          const QuantizedGroup group = each.quantize(weights[output].data() + k / kInputGroup * kInputGroup);
          ASSERT_EQ(unpacked[k], group.scale * static_cast<float>(group.values[k % kInputGroup]))
              << depth << " " << output << " " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem

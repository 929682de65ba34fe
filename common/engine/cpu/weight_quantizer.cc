#include "common/engine/cpu/weight_quantizer.h"

#include <algorithm>
#include <bit>
#include <limits>

// Compiled without contraction of multiplications and additions, so that a model's integers are the same on
// every machine.

namespace tandem {
namespace {

// If no magnitude is greater than this, the group becomes zeros: scales and their inverses would leave
// float's range.
constexpr float kSmallest = 0x1p-100f;
// Adding it rounds to an integer, ties to even.
constexpr float kRounder = 12582912.0f;

// The greatest magnitude; a NaN is greater than all numbers.
float GreatestWeight(const float* weights) {
  uint32_t greatest = 0;
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    greatest = std::max(greatest, std::bit_cast<uint32_t>(weights[k]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(greatest);
}

// The next greater number that bfloat16 holds.
float RoundUp(float scale) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(scale) + 0xffffu) & 0xffff0000u);
}

// weights[k] as a whole number of scales, at most `limit` in magnitude.
float Whole(float weight, float inverse_scale, float limit) {
  const float clamped = std::min(limit, std::max(-limit, weight * inverse_scale));
  return (clamped + kRounder) - kRounder;
}

float SquaredError(const float* weights, float scale, float limit) {
  // Partial sums, which do not wait for one another.
  constexpr uint32_t kSums = 8;
  float sums[kSums] = {};
  const float inverse = 1.0f / scale;
  for (uint32_t k = 0; k < kInputGroup; k += kSums) {
    for (uint32_t i = 0; i < kSums; ++i) {
      // In units of the group's scale, so that squares stay in range.
      const float error = weights[k + i] * inverse - Whole(weights[k + i], inverse, limit);
      sums[i] += error * error;
    }
  }
  float sum = 0.0f;
  for (float each : sums) sum += each;
  return sum;
}

QuantizedGroup Quantize(const float* weights, float scale, float limit) {
  QuantizedGroup group;
  group.scale = scale;
  const float inverse = 1.0f / scale;
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    group.values[k] = static_cast<int8_t>(Whole(weights[k], inverse, limit));
  }
  return group;
}

// The result for a group whose weights are all 0, or not all finite.
QuantizedGroup WithoutIntegers(float greatest) {
  QuantizedGroup group;
  if (greatest >= kSmallest || greatest != greatest) group.scale = std::numeric_limits<float>::quiet_NaN();
  return group;
}

bool HasIntegers(float greatest) {
  return greatest >= kSmallest && greatest <= std::numeric_limits<float>::max();
}

}  // namespace

QuantizedGroup QuantizeInt8(const float* weights) {
  constexpr float kLimit = 127.0f;
  const float greatest = GreatestWeight(weights);
  if (!HasIntegers(greatest)) return WithoutIntegers(greatest);
  return Quantize(weights, RoundUp(greatest / kLimit), kLimit);
}

QuantizedGroup QuantizeInt4(const float* weights) {
  constexpr float kLimit = 7.0f;
  constexpr int kSteps = 16;
  const float greatest = GreatestWeight(weights);
  if (!HasIntegers(greatest)) return WithoutIntegers(greatest);
  const float widest = RoundUp(greatest / kLimit);
  float best_scale = widest;
  float least_error = SquaredError(weights, widest, kLimit);
  for (int step = 1; step <= kSteps; ++step) {
    const float share = 1.0f - static_cast<float>(step) / (2 * kSteps);
    const float scale = RoundUp(greatest / kLimit * share);
    const float relative = scale / widest;
    const float error = SquaredError(weights, scale, kLimit) * (relative * relative);
    if (error < least_error) {
      least_error = error;
      best_scale = scale;
    }
  }
  return Quantize(weights, best_scale, kLimit);
}

}  // namespace tandem

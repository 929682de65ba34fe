#include "common/engine/cuda/packed_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/engine/cpu/weight_quantizer.h"

namespace tandem {
namespace {

constexpr float kGreatestE4m3 = 448.0f;

// [16 outputs][64]
void PackInt8(const QuantizedGroup& group, uint32_t output, uint32_t* words) {
  uint32_t* const to = words + output * (kInputGroup / 4);
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    to[k / 4] |= uint32_t{static_cast<uint8_t>(group.values[k])} << (k % 4 * 8);
  }
}

// [16 outputs][4][8 bytes]
void PackInt4(const QuantizedGroup& group, uint32_t output, uint32_t* words) {
  uint32_t* const to = words + output * (kInputGroup / 8);
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    const uint32_t byte = k / 16 * 8 + k % 8;
    const uint32_t shift = byte % 4 * 8 + (k % 16 < 8 ? 0 : 4);
    to[byte / 4] |= (static_cast<uint32_t>(group.values[k]) & 0xfu) << shift;
  }
}

}  // namespace

uint32_t PackedGroupWords(DeviceFormat format) {
  switch (format) {
    case DeviceFormat::kBf16:
      break;
    case DeviceFormat::kInt8:
      return kInt8GroupWords;
    case DeviceFormat::kFp8:
      return kInt8GroupWords;
    case DeviceFormat::kInt4:
      return kInt4GroupWords;
  }
  return 0;
}

void PackOutput(DeviceFormat format, absl::Span<const float> weights, uint32_t output, uint32_t* words,
                Bf16* scales) {
  for (size_t begin = 0; begin < weights.size(); begin += kInputGroup) {
    float padded[kInputGroup] = {};
    const absl::Span<const float> inputs = weights.subspan(begin, kInputGroup);
    std::copy(inputs.begin(), inputs.end(), padded);
    const QuantizedGroup group = format == DeviceFormat::kInt4 ? QuantizeInt4(padded) : QuantizeInt8(padded);
    if (format == DeviceFormat::kInt4) {
      PackInt4(group, output, words);
    } else {
      PackInt8(group, output, words);
    }
    scales[output] = {static_cast<uint16_t>(std::bit_cast<uint32_t>(group.scale) >> 16)};
    words += PackedGroupWords(format);
    scales += kPackedOutputs;
  }
}

uint32_t GreatestMagnitude(absl::Span<const float> weights) {
  uint32_t greatest = 0;
  for (const float weight : weights) {
    greatest = std::max(greatest, std::bit_cast<uint32_t>(weight) & 0x7fffffffu);
  }
  return greatest;
}

float Fp8Scale(uint32_t greatest_magnitude) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  if (greatest_magnitude >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const auto greatest = std::bit_cast<float>(greatest_magnitude);
  return greatest < 0x1p-100f ? 0.0f : greatest / kGreatestE4m3;
}

uint8_t ToE4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const float magnitude = std::min(std::abs(value), kGreatestE4m3);
  // Below 2^-6, steps have a constant width: adding 2^14 rounds to just these steps.
  if (magnitude < 0x1p-6f) {
    const float shifted = magnitude + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) & 0xffu);
  }
  uint32_t rounded = std::bit_cast<uint32_t>(magnitude);
  rounded += 0x7ffffu + (rounded >> 20 & 1u);
  return sign | static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

void PackFp8Output(absl::Span<const float> weights, float scale, uint32_t output, uint32_t* words) {
  // If all weights are 0 or some are not finite, the scale alone determines the products.
  const bool has_floats = scale > 0.0f;
  for (size_t k = 0; k < weights.size(); ++k) {
    const uint64_t group = k / kInputGroup;
    uint32_t& word = words[group * kInt8GroupWords + output * (kInputGroup / 4) + k % kInputGroup / 4];
    if (has_floats) word |= uint32_t{ToE4m3(weights[k] / scale)} << (k % 4 * 8);
  }
}

}  // namespace tandem

#include "common/engine/cpu/integer_layouts.h"

#include <algorithm>
#include <bit>

#include "common/engine/cpu/weight_quantizer.h"

namespace tandem {
namespace {

// The place of weight (output, k) of a group among its integers: a byte, or half a byte.
struct Place {
  size_t byte = 0;
  bool high = false;
};

Place InLines(uint32_t output, uint32_t k) {
  return {.byte = size_t{k / 2} * 2 * kTileOutputs + 2 * output + k % 2};
}

Place InHalvedLines(uint32_t output, uint32_t k) {
  return {.byte = InLines(output, k % 32).byte, .high = k >= 32};
}

Place InAmxTiles(uint32_t output, uint32_t k) {
  return {.byte = size_t{output / 16} * 1024 + k / 4 * 64 + output % 16 * 4 + k % 4};
}

Place InHalvedAmxTiles(uint32_t output, uint32_t k) {
  return {.byte = size_t{output / 16} * 512 + k % 32 / 4 * 64 + output % 16 * 4 + k % 4, .high = k >= 32};
}

Place InOctets(uint32_t output, uint32_t k) {
  return {.byte = size_t{k / 8} * 8 * kTileOutputs + output * 8 + k % 8};
}

Place InHalvedOctets(uint32_t output, uint32_t k) {
  return {.byte = InOctets(output, k % 32).byte, .high = k >= 32};
}

uint32_t ScaleIndex(uint32_t output) {
  return output < kLanes ? 2 * output : 2 * (output - kLanes) + 1;
}

uint32_t NumGroups(uint32_t depth) {
  return (depth + kInputGroup - 1) / kInputGroup;
}

template <auto kPlace, size_t kGroupBytes, auto kQuantize, int kOffset>
void Pack(const float* weights, uint32_t depth, uint32_t output, void* tile) {
  for (uint32_t group = 0; group < NumGroups(depth); ++group) {
    const uint32_t begin = group * kInputGroup;
    float padded[kInputGroup] = {};
    std::copy(weights + begin, weights + std::min(begin + kInputGroup, depth), padded);
    const QuantizedGroup quantized = kQuantize(padded);
    char* const to = static_cast<char*>(tile) + group * kGroupBytes;
    reinterpret_cast<uint16_t*>(to)[ScaleIndex(output)] =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(quantized.scale) >> 16);
    auto* const integers = reinterpret_cast<uint8_t*>(to + kScaleLineBytes);
    for (uint32_t k = 0; k < kInputGroup; ++k) {
      const auto bits = static_cast<uint8_t>(quantized.values[k] + kOffset);
      const Place place = kPlace(output, k);
      if constexpr (kGroupBytes == kInt8GroupBytes) {
        integers[place.byte] = bits;
      } else {
        integers[place.byte] |= static_cast<uint8_t>(place.high ? bits << 4 : bits & 0x0f);
      }
    }
  }
}

template <auto kPlace, size_t kGroupBytes, int kOffset>
void Unpack(const void* tile, uint32_t depth, uint32_t output, float* weights) {
  for (uint32_t k = 0; k < depth; ++k) {
    const char* const from = static_cast<const char*>(tile) + k / kInputGroup * kGroupBytes;
    const uint16_t scale = reinterpret_cast<const uint16_t*>(from)[ScaleIndex(output)];
    const Place place = kPlace(output, k % kInputGroup);
    const auto bits = static_cast<uint8_t>(from[kScaleLineBytes + place.byte]);
    auto value = static_cast<int8_t>(bits - kOffset);
    if constexpr (kGroupBytes == kInt4GroupBytes) {
      // The offset is the half byte's, and may exceed it.
      const int half = place.high ? bits >> 4 : bits & 0x0f;
      value = static_cast<int8_t>(kOffset == 0 && half >= 8 ? half - 16 : half - kOffset);
    }
    weights[k] = std::bit_cast<float>(static_cast<uint32_t>(scale) << 16) * static_cast<float>(value);
  }
}

template <auto kPlace, size_t kGroupBytes, auto kQuantize, int kOffset = 0>
WeightLayout MakeLayout() {
  WeightLayout layout;
  layout.tile_bytes = [](uint32_t depth) { return uint64_t{NumGroups(depth)} * kGroupBytes; };
  layout.pack = Pack<kPlace, kGroupBytes, kQuantize, kOffset>;
  layout.unpack = Unpack<kPlace, kGroupBytes, kOffset>;
  return layout;
}

}  // namespace

WeightLayout Int8Lines() {
  return MakeLayout<InLines, kInt8GroupBytes, QuantizeInt8>();
}

WeightLayout Int4Lines() {
  return MakeLayout<InHalvedLines, kInt4GroupBytes, QuantizeInt4>();
}

WeightLayout Int8AmxTiles() {
  return MakeLayout<InAmxTiles, kInt8GroupBytes, QuantizeInt8>();
}

WeightLayout Int4AmxTiles() {
  return MakeLayout<InHalvedAmxTiles, kInt4GroupBytes, QuantizeInt4>();
}

WeightLayout Int8Octets() {
  return MakeLayout<InOctets, kInt8GroupBytes, QuantizeInt8>();
}

WeightLayout Int4Octets() {
  return MakeLayout<InHalvedOctets, kInt4GroupBytes, QuantizeInt4>();
}

WeightLayout Int8OffsetTiles() {
  return MakeLayout<InAmxTiles, kInt8GroupBytes, QuantizeInt8, 1 << kInt8OffsetBits>();
}

WeightLayout Int4OffsetTiles() {
  return MakeLayout<InHalvedAmxTiles, kInt4GroupBytes, QuantizeInt4, 1 << kInt4OffsetBits>();
}

}  // namespace tandem

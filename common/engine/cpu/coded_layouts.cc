#include "common/engine/cpu/coded_layouts.h"

#include <cassert>

#include "common/model/quantized_grid.h"

namespace tandem {
namespace {

constexpr uint32_t kInputsPerScale = 16;  // Of a CodedOutput.

uint32_t NumCodedGroups(uint32_t depth) {
  return (depth + kCodedGroup - 1) / kCodedGroup;
}

template <typename Format>
void PackCodes(const CodedOutput& weights, uint32_t depth, uint32_t output, void* tile) {
  for (uint32_t begin = 0; begin < depth; begin += kCodedGroup) {
    char* const to = static_cast<char*>(tile) + begin / kCodedGroup * Format::kGroupBytes;
    auto* const scales = reinterpret_cast<float*>(to);
    for (uint32_t part = 0; part < Format::kNumScales; ++part) {
      const uint32_t from = begin / kInputsPerScale + part;
      if (from * kInputsPerScale >= depth) break;
      scales[part * kTileOutputs + output] = weights.scales[from];
      if constexpr (Format::kMinimums) {
        scales[(Format::kNumScales + part) * kTileOutputs + output] = weights.minimums[from];
      }
    }
    auto* const values = reinterpret_cast<uint8_t*>(to + Format::kValuesOffset);
    const uint32_t count = depth - begin < kCodedGroup ? depth - begin : kCodedGroup;
    if constexpr (Format::kValueBits == 8) {
      for (uint32_t k = 0; k < count; ++k) {
        values[k * kTileOutputs + output] = static_cast<uint8_t>(weights.values[begin + k]);
      }
    } else {
      const int8_t zero = weights.zeros[begin / kInputsPerScale];
      values[output] = static_cast<uint8_t>(zero);
      uint8_t* const codes = values + Format::kZeroBytes;
      for (uint32_t k = 0; k < count; ++k) {
        const int code = weights.values[begin + k] + zero;
        assert(code >= 0 && code < 16);
        uint8_t& place = codes[k % (kCodedGroup / 2) * kTileOutputs + output];
        place |= static_cast<uint8_t>(k < kCodedGroup / 2 ? code : code << 4);
      }
    }
  }
}

template <typename Format>
void UnpackCodes(const void* tile, uint32_t depth, uint32_t output, float* weights) {
  for (uint32_t k = 0; k < depth; ++k) {
    const char* const from = static_cast<const char*>(tile) + k / kCodedGroup * Format::kGroupBytes;
    const auto* const scales = reinterpret_cast<const float*>(from);
    const uint32_t in_group = k % kCodedGroup;
    const uint32_t part = in_group * Format::kNumScales / kCodedGroup;
    const auto* const values = reinterpret_cast<const uint8_t*>(from + Format::kValuesOffset);
    float value;
    if constexpr (Format::kFloats) {
      value = Float8ToFloat(values[in_group * kTileOutputs + output]);
    } else if constexpr (Format::kValueBits == 8) {
      value = static_cast<int8_t>(values[in_group * kTileOutputs + output]);
    } else {
      const uint8_t pair = values[Format::kZeroBytes + in_group % (kCodedGroup / 2) * kTileOutputs + output];
      value = (in_group < kCodedGroup / 2 ? pair & 0xf : pair >> 4) - static_cast<int8_t>(values[output]);
    }
    weights[k] = value * scales[part * kTileOutputs + output];
    if constexpr (Format::kMinimums) {
      weights[k] -= scales[(Format::kNumScales + part) * kTileOutputs + output];
    }
  }
}

template <typename Format>
WeightLayout MakeCodedLayout() {
  WeightLayout layout;
  layout.tile_bytes = [](uint32_t depth) { return uint64_t{NumCodedGroups(depth)} * Format::kGroupBytes; };
  layout.pack_codes = PackCodes<Format>;
  layout.unpack = UnpackCodes<Format>;
  return layout;
}

}  // namespace

WeightLayout CodedLayout(WeightFormat format) {
  switch (format) {
    case WeightFormat::kCoded4:
      return MakeCodedLayout<Coded4>();
    case WeightFormat::kCoded4Minimum:
      return MakeCodedLayout<Coded4Minimum>();
    case WeightFormat::kCoded8:
      return MakeCodedLayout<Coded8>();
    case WeightFormat::kCoded8Minimum:
      return MakeCodedLayout<Coded8Minimum>();
    case WeightFormat::kCoded8Fine:
      return MakeCodedLayout<Coded8Fine>();
    case WeightFormat::kCoded8FineMinimum:
      return MakeCodedLayout<Coded8FineMinimum>();
    case WeightFormat::kCodedFloat8:
      return MakeCodedLayout<CodedFloat8>();
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
    case WeightFormat::kW8A8:
    case WeightFormat::kW4A8:
      break;
  }
  assert(false);
  return {};
}

}  // namespace tandem

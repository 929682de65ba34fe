#include "common/engine/cpu/coded_layouts.h"

#include <cassert>
#include <cstring>

#include "common/engine/cpu/transpose.h"
#include "common/model/quantized_grid.h"

namespace tandem {
namespace {

constexpr uint32_t kInputsPerScale = 16;  // Of CodedOutputs.

uint32_t NumCodedGroups(uint32_t depth) {
  return (depth + kCodedGroup - 1) / kCodedGroup;
}

// The bytes for kTileOutputs outputs: one line for each input of a group, or for each two inputs.
struct ByteBlock {
  alignas(64) uint8_t rows[kTileOutputs][kCodedGroup];
};

// [inputs][kTileOutputs], a multiple of 16 inputs.
void StoreLines(const ByteBlock& block, uint32_t inputs, uint8_t* lines) {
  for (uint32_t output = 0; output < kTileOutputs; output += 16) {
    for (uint32_t k = 0; k < inputs; k += 16) {
      TransposeBytes(&block.rows[output][k], kCodedGroup, lines + k * kTileOutputs + output, kTileOutputs);
    }
  }
}

// Scale or minimum number `at` of every output, from [kTileOutputs][num_all].
void StoreScales(const float* all, uint32_t num_all, uint32_t at, float* line) {
  for (uint32_t output = 0; output < kTileOutputs; ++output) line[output] = all[output * num_all + at];
}

template <typename Format>
void PackCodes(const CodedOutputs& weights, uint32_t depth, void* tile) {
  const uint32_t num_scales = (depth + kInputsPerScale - 1) / kInputsPerScale;
  ByteBlock block = {};
  for (uint32_t begin = 0; begin < depth; begin += kCodedGroup) {
    char* const to = static_cast<char*>(tile) + begin / kCodedGroup * Format::kGroupBytes;
    auto* const scales = reinterpret_cast<float*>(to);
    for (uint32_t part = 0; part < Format::kNumScales; ++part) {
      const uint32_t from = begin / kInputsPerScale + part;
      if (from >= num_scales) break;
      StoreScales(weights.scales, num_scales, from, scales + part * kTileOutputs);
      if constexpr (Format::kMinimums) {
        StoreScales(weights.minimums, num_scales, from, scales + (Format::kNumScales + part) * kTileOutputs);
      }
    }
    auto* const values = reinterpret_cast<uint8_t*>(to + Format::kValuesOffset);
    const uint32_t count = depth - begin < kCodedGroup ? depth - begin : kCodedGroup;
    if (count < kCodedGroup) block = {};
    for (uint32_t output = 0; output < kTileOutputs; ++output) {
      const int8_t* const from = weights.values + size_t{output} * depth + begin;
      uint8_t* const row = block.rows[output];
      // A constant size compiles to faster code.
      count == kCodedGroup ? std::memcpy(row, from, kCodedGroup) : std::memcpy(row, from, count);
      if constexpr (Format::kValueBits == 4) {
        const int8_t zero = weights.zeros[output * num_scales + begin / kInputsPerScale];
        values[output] = static_cast<uint8_t>(zero);
        uint8_t bits = 0;
        const auto make_codes = [&](uint32_t size) {
          for (uint32_t k = 0; k < size; ++k) {
            row[k] = static_cast<uint8_t>(row[k] + zero);
            bits |= row[k];
          }
        };
        count == kCodedGroup ? make_codes(kCodedGroup) : make_codes(count);
        assert(bits < 16);
        for (uint32_t k = 0; k < kCodedGroup / 2; ++k) {
          row[k] = static_cast<uint8_t>(row[k] | row[k + kCodedGroup / 2] << 4);
        }
      }
    }
    StoreLines(block, kCodedGroup * Format::kValueBits / 8, values + Format::kZeroBytes);
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
    case WeightFormat::kFileCodes:
      break;
  }
  assert(false);
  return {};
}

}  // namespace tandem

#pragma once

#include "common/engine/cpu/coded_layouts.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/product_templates.h"
#include "common/engine/cpu/vector_templates.h"

// Products with weights as the integers, or 8-bit floats, of quantised files. The numbers of a few tiles for
// kCodedGroup inputs are computed into the first-level cache, as lines of kF32, and used for all rows. The
// outputs hold the sums meanwhile. Each sum is one chain of fused multiply-adds, as in products with kF32.

namespace tandem {
namespace {

// The number of an F8_E4M3, divided by 2^120: its exponent is 120 less than float32's. Numbers below the
// normal range become right by the multiplication with 2^120.
inline constexpr float kFloat8Scale = 0x1p120f;

TANDEM_INLINE void DecodeFloats(const char* values, float* numbers) {
  constexpr uint32_t kNotANumber = 0x7fc00000;
  alignas(64) uint32_t bits[kCodedGroup * kTileOutputs];
  for (uint32_t i = 0; i < kCodedGroup * kTileOutputs; ++i) {
    const uint32_t code = static_cast<uint8_t>(values[i]);
    const uint32_t magnitude = code & 0x7f;
    bits[i] = magnitude == 0x7f ? kNotANumber : (code & 0x80) << 24 | magnitude << 20;
  }
  __builtin_memcpy(numbers, bits, sizeof(bits));
}

// The values of a group, [kCodedGroup][kTileOutputs], one by one: the group's own bytes, or unpacked into a
// buffer.
template <typename Format>
class GroupValues {
 public:
  GroupValues() = default;
  GroupValues(const GroupValues&) = delete;
  GroupValues& operator=(const GroupValues&) = delete;

  TANDEM_INLINE void Read(const char* group) {
    bytes_ = reinterpret_cast<const int8_t*>(group + Format::kValuesOffset);
    if constexpr (Format::kFloats) DecodeFloats(group + Format::kValuesOffset, floats_);
    if constexpr (Format::kValueBits == 4) Unpair();
  }

  // kLanes values from `at` on, as floats.
  template <typename V>
  TANDEM_INLINE V Load(uint32_t at) const {
    if constexpr (Format::kFloats) return V::Multiply(V::Load(floats_ + at), V::Broadcast(kFloat8Scale));
    return V::LoadInt8(bytes_ + at);
  }

 private:
  TANDEM_INLINE void Unpair() {
    constexpr uint32_t kHalf = kCodedGroup / 2;
    const int8_t* const zeros = bytes_;
    const auto* const codes = reinterpret_cast<const uint8_t*>(zeros + Format::kZeroBytes);
    for (uint32_t k = 0; k < kHalf; ++k) {
      for (uint32_t i = 0; i < kTileOutputs; ++i) {
        const uint8_t pair = codes[k * kTileOutputs + i];
        unpaired_[k * kTileOutputs + i] = static_cast<int8_t>((pair & 0xf) - zeros[i]);
        unpaired_[(kHalf + k) * kTileOutputs + i] = static_cast<int8_t>((pair >> 4) - zeros[i]);
      }
    }
    bytes_ = unpaired_;
  }

  const int8_t* bytes_ = nullptr;
  alignas(64) int8_t unpaired_[Format::kValueBits == 4 ? kCodedGroup * kTileOutputs : 1];
  alignas(64) float floats_[Format::kFloats ? kCodedGroup * kTileOutputs : 1];
};

// The factor for the values of kLanes outputs and the inputs of one scale, and the number to subtract.
template <typename V, typename Format>
struct GroupScales {
  TANDEM_INLINE void Read(const char* group, uint32_t part, uint32_t output) {
    const auto* const scales = reinterpret_cast<const float*>(group);
    scale = V::Load(scales + part * kTileOutputs + output);
    minimum = Format::kMinimums ? V::Load(scales + (Format::kNumScales + part) * kTileOutputs + output)
                                : V::Broadcast(0.0f);
  }
  TANDEM_INLINE V Number(V value) const {
    const V number = V::Multiply(value, scale);
    return Format::kMinimums ? V::Subtract(number, minimum) : number;
  }

  V scale;
  V minimum;
};

// The first `count` lines of a group: [count][kTileOutputs].
template <typename V, typename Format>
TANDEM_INLINE void DecodeGroup(const char* group, uint32_t count, float* lines) {
  GroupValues<Format> values;
  values.Read(group);
  for (uint32_t part = 0; part < Format::kNumScales; ++part) {
    const uint32_t end = (part + 1) * kCodedGroup / Format::kNumScales;
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; ++half) {
      GroupScales<V, Format> scales;
      scales.Read(group, part, half * kLanes);
      for (uint32_t k = part * kCodedGroup / Format::kNumScales; k < (end < count ? end : count); ++k) {
        const uint32_t at = k * kTileOutputs + half * kLanes;
        V::Store(scales.Number(values.template Load<V>(at)), lines + at);
      }
    }
  }
}

// How many groups ahead weights are prefetched.
inline constexpr size_t kPrefetchGroups = 4;

template <typename Format>
TANDEM_INLINE void PrefetchGroup(const char* group) {
  for (size_t at = 0; at < Format::kGroupBytes; at += 64) {
    __builtin_prefetch(group + kPrefetchGroups * Format::kGroupBytes + at);
  }
}

// The first `count` inputs of a group, for `kTiles` tiles `tile_bytes` apart, times one row. Numbers and sums
// stay in registers.
template <typename V, typename Format, int kTiles>
TANDEM_INLINE void AddGroups(const char* group, size_t tile_bytes, const float* inputs, uint32_t count,
                             V (*sums)[2]) {
  GroupValues<Format> values[kTiles];
#pragma GCC unroll 2
  for (int tile = 0; tile < kTiles; ++tile) {
    values[tile].Read(group + tile * tile_bytes);
  }
#pragma GCC unroll 2
  for (uint32_t part = 0; part < Format::kNumScales; ++part) {
    const uint32_t end = (part + 1) * kCodedGroup / Format::kNumScales;
    GroupScales<V, Format> scales[kTiles][2];
#pragma GCC unroll 2
    for (int tile = 0; tile < kTiles; ++tile) {
      scales[tile][0].Read(group + tile * tile_bytes, part, 0);
      scales[tile][1].Read(group + tile * tile_bytes, part, kLanes);
    }
    const uint32_t last = end < count ? end : count;
#pragma GCC unroll 4
    for (uint32_t k = part * kCodedGroup / Format::kNumScales; k < last; ++k) {
      const V input = V::Broadcast(inputs[k]);
#pragma GCC unroll 2
      for (int tile = 0; tile < kTiles; ++tile) {
        // Prefetches evenly, because only a few memory reads can be in flight.
        __builtin_prefetch(group + tile * tile_bytes + kPrefetchGroups * Format::kGroupBytes +
                           k * (Format::kGroupBytes / kCodedGroup));
#pragma GCC unroll 2
        for (uint32_t half = 0; half < 2; ++half) {
          const V value = values[tile].template Load<V>(k * kTileOutputs + half * kLanes);
          sums[tile][half] = V::Fma(input, scales[tile][half].Number(value), sums[tile][half]);
        }
      }
    }
  }
}

template <typename V, typename Format, int kTiles>
TANDEM_INLINE void MultiplyRowOfTiles(const char* tiles, size_t tile_bytes, const ProductArgs& args,
                                      uint32_t first_output) {
  V sums[kTiles][2];
#pragma GCC unroll 2
  for (int tile = 0; tile < kTiles; ++tile) sums[tile][0] = sums[tile][1] = V::Broadcast(0.0f);
  const uint32_t whole = args.depth / kCodedGroup * kCodedGroup;
  for (uint32_t begin = 0; begin < whole; begin += kCodedGroup, tiles += Format::kGroupBytes) {
    AddGroups<V, Format, kTiles>(tiles, tile_bytes, args.inputs + begin, kCodedGroup, sums);
  }
  if (whole < args.depth) {
    AddGroups<V, Format, kTiles>(tiles, tile_bytes, args.inputs + whole, args.depth - whole, sums);
  }
#pragma GCC unroll 2
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint32_t output = first_output + static_cast<uint32_t>(tile) * kTileOutputs;
    StorePiece(sums[tile][0], kLanes, output, args.end_output, args.outputs[0]);
    StorePiece(sums[tile][1], kLanes, output + kLanes, args.end_output, args.outputs[0]);
  }
}

template <typename V, typename Format>
void MultiplyRow(const ProductArgs& args) {
  // A chain of multiply-adds waits for its own results, so there are as many chains as registers allow.
  constexpr uint32_t kTiles = V::kPieces == 1 ? 2 : 1;
  const size_t tile_bytes = size_t{(args.depth + kCodedGroup - 1) / kCodedGroup} * Format::kGroupBytes;
  const auto* const tiles = static_cast<const char*>(args.tiles);
  uint32_t tile = 0;
  for (; tile + kTiles <= args.num_tiles; tile += kTiles) {
    MultiplyRowOfTiles<V, Format, kTiles>(tiles + tile * tile_bytes, tile_bytes, args,
                                          args.first_output + tile * kTileOutputs);
  }
  for (; tile < args.num_tiles; ++tile) {
    MultiplyRowOfTiles<V, Format, 1>(tiles + tile * tile_bytes, tile_bytes, args,
                                     args.first_output + tile * kTileOutputs);
  }
}

template <typename V, typename Format>
void MultiplyCoded(const ProductArgs& args) {
  if (args.num_rows == 1) return MultiplyRow<V, Format>(args);
  constexpr uint32_t kTilesAtOnce = 4;  // Their numbers take 16 KiB.
  alignas(64) float lines[kTilesAtOnce * kCodedGroup * kTileOutputs];
  const size_t tile_bytes = size_t{(args.depth + kCodedGroup - 1) / kCodedGroup} * Format::kGroupBytes;
  for (uint32_t first = 0; first < args.num_tiles; first += kTilesAtOnce) {
    const uint32_t left = args.num_tiles - first;
    const uint32_t num_tiles = left < kTilesAtOnce ? left : kTilesAtOnce;
    const char* tiles = static_cast<const char*>(args.tiles) + first * tile_bytes;
    ProductArgs part = args;
    part.tiles = lines;
    part.num_tiles = num_tiles;
    part.first_output = args.first_output + first * kTileOutputs;
    const uint32_t last = part.first_output + num_tiles * kTileOutputs;
    const uint32_t end = last < args.end_output ? last : args.end_output;
    for (uint32_t row = 0; row < args.num_rows; ++row) {
      for (uint32_t i = part.first_output; i < end; ++i) args.outputs[row][i] = 0.0f;
    }
    for (uint32_t begin = 0; begin < args.depth; begin += kCodedGroup, tiles += Format::kGroupBytes) {
      part.inputs = args.inputs + begin;
      part.depth = args.depth - begin < kCodedGroup ? args.depth - begin : kCodedGroup;
      for (uint32_t tile = 0; tile < num_tiles; ++tile) {
        const char* group = tiles + tile * tile_bytes;
        PrefetchGroup<Format>(group);
        DecodeGroup<V, Format>(group, part.depth, lines + size_t{tile} * part.depth * kTileOutputs);
      }
      MultiplyOnto<V>(part);
    }
  }
}

template <typename V, typename Format>
void SetCodedProduct(WeightFormat format, KernelTable* table) {
  ProductKernel& product = table->products[static_cast<int>(format)];
  product.layout = CodedLayout(format);
  product.multiply = MultiplyCoded<V, Format>;
}

template <typename V>
void SetCodedProducts(KernelTable* table) {
  SetCodedProduct<V, Coded4>(WeightFormat::kCoded4, table);
  SetCodedProduct<V, Coded4Minimum>(WeightFormat::kCoded4Minimum, table);
  SetCodedProduct<V, Coded8>(WeightFormat::kCoded8, table);
  SetCodedProduct<V, Coded8Minimum>(WeightFormat::kCoded8Minimum, table);
  SetCodedProduct<V, Coded8Fine>(WeightFormat::kCoded8Fine, table);
  SetCodedProduct<V, Coded8FineMinimum>(WeightFormat::kCoded8FineMinimum, table);
  SetCodedProduct<V, CodedFloat8>(WeightFormat::kCodedFloat8, table);
}

}  // namespace
}  // namespace tandem

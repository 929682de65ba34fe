#pragma once

#include "common/engine/cpu/coded_layouts.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/product_templates.h"
#include "common/engine/cpu/vector_templates.h"

// Products with weights as the integers, or floats of 8 bits, of quantised files. A few tiles' numbers of
// kCodedGroup inputs are made in the nearest cache, as lines of kF32, and go through all rows, whose sums
// stand in the outputs meanwhile: one chain of fused multiply-adds, as products with kF32 have.

namespace tandem {
namespace {

// The numbers that F8_E4M3 stand for, over 2^120: its exponent is 120 less than float32's. Numbers below the
// normal range come out right, as what is multiplied with 2^120 is.
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

// The first `count` lines of a group: [count][kTileOutputs].
template <typename V, typename Format>
TANDEM_INLINE void DecodeGroup(const char* group, uint32_t count, float* lines) {
  constexpr uint32_t kHalf = kCodedGroup / 2;
  alignas(64) int8_t bytes[kCodedGroup * kTileOutputs];
  const int8_t* values = reinterpret_cast<const int8_t*>(group + Format::kValuesOffset);
  if constexpr (Format::kValueBits == 4) {
    const int8_t* zeros = values;
    const auto* codes = reinterpret_cast<const uint8_t*>(zeros + Format::kZeroBytes);
    for (uint32_t k = 0; k < kHalf; ++k) {
      for (uint32_t i = 0; i < kTileOutputs; ++i) {
        const uint8_t pair = codes[k * kTileOutputs + i];
        bytes[k * kTileOutputs + i] = static_cast<int8_t>((pair & 0xf) - zeros[i]);
        bytes[(kHalf + k) * kTileOutputs + i] = static_cast<int8_t>((pair >> 4) - zeros[i]);
      }
    }
    values = bytes;
  }
  alignas(64) float floats[Format::kFloats ? kCodedGroup * kTileOutputs : 1];
  if constexpr (Format::kFloats) DecodeFloats(group + Format::kValuesOffset, floats);
  const auto* scales = reinterpret_cast<const float*>(group);
  for (uint32_t part = 0; part < Format::kNumScales; ++part) {
    const uint32_t end = (part + 1) * kCodedGroup / Format::kNumScales;
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t output = half * kLanes;
      const V scale = V::Load(scales + part * kTileOutputs + output);
      const V minimum = Format::kMinimums
                            ? V::Load(scales + (Format::kNumScales + part) * kTileOutputs + output)
                            : V::Broadcast(0.0f);
      for (uint32_t k = part * kCodedGroup / Format::kNumScales; k < (end < count ? end : count); ++k) {
        const uint32_t at = k * kTileOutputs + output;
        V number;
        if constexpr (Format::kFloats) {
          number = V::Multiply(V::Multiply(V::Load(floats + at), V::Broadcast(kFloat8Scale)), scale);
        } else {
          number = V::Multiply(V::LoadInt8(values + at), scale);
        }
        if constexpr (Format::kMinimums) number = V::Subtract(number, minimum);
        V::Store(number, lines + at);
      }
    }
  }
}

template <typename V, typename Format>
void MultiplyCoded(const ProductArgs& args) {
  constexpr uint32_t kTilesAtOnce = 4;  // Their numbers take 16 KiB.
  constexpr size_t kPrefetchGroups = 4;
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
        for (size_t at = 0; at < Format::kGroupBytes; at += 64) {
          __builtin_prefetch(group + kPrefetchGroups * Format::kGroupBytes + at);
        }
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

#pragma once

#include "common/engine/cpu/integer_layouts.h"
#include "common/engine/cpu/kernel_templates.h"

// Products with weights of 8 and 4 bits, written once for a vector of floats V (kernel_templates.h) and a
// policy I for the integers, which provides
//
//   kMaxRows                        rows of inputs whose sums stay in registers
//   Halves(rows)                    how many halves of a tile (16 outputs each) to process at a time: 1 or 2
//   Sum, Weights                    16 sums of 32 bits; 16 outputs' pairs of weights, as wide as I multiplies
//   Zero()
//   Widen(line)                     Weights from 32 bytes
//   WidenHalves(line, low, high)    Weights from the low and the high halves of 32 bytes
//   MultiplyAdd(sum, weights, pair) sum + the two products of each output's weights with two 16-bit inputs
//   ToFloat(sum)                    V, correctly rounded

namespace tandem {
namespace {

// Functions of the greatest magnitude of an integer that an input is rounded to: kGreatestInput or
// kGreatestShortInput.

// Inputs of one group: x is about scale * round(x * inverse).
struct InputScale {
  float scale;
  float inverse;  // 0 if all inputs are zeros, or some are not finite.
};

// `greatest` is the greatest magnitude of the group, as a float's bits: infinities and NaNs are greater than
// all other values.
template <int kGreatest>
TANDEM_INLINE InputScale ScaleOfInputs(uint32_t greatest) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kSmallest = 27u << 23;  // 2^-100
  if (greatest >= kInfinity) return {__builtin_nanf(""), 0.0f};
  if (greatest < kSmallest) return {0.0f, 0.0f};
  float magnitude;
  __builtin_memcpy(&magnitude, &greatest, sizeof(magnitude));
  return {magnitude / static_cast<float>(kGreatest), static_cast<float>(kGreatest) / magnitude};
}

TANDEM_INLINE uint32_t NumGroups(uint32_t depth) {
  return (depth + kInputGroup - 1) / kInputGroup;
}

// A row of prepared inputs: the integers as 16 bits, [groups][kInputGroup], then the scales [groups].
constexpr size_t kGroupIntegerBytes = kInputGroup * sizeof(int16_t);

TANDEM_INLINE size_t IntegerRowBytes(uint32_t depth) {
  const size_t groups = NumGroups(depth);
  return groups * kGroupIntegerBytes + (groups * sizeof(float) + 63) / 64 * 64;
}

template <typename V>
uint64_t IntegerPreparedBytes(uint32_t max_rows, uint32_t depth) {
  return uint64_t{max_rows} * IntegerRowBytes(depth);
}

// Rounds a group of inputs; returns its scale.
template <typename V, int kGreatest>
TANDEM_INLINE float RoundInputs(const float* inputs, int16_t* integers) {
  uint32_t bits[kInputGroup];
  __builtin_memcpy(bits, inputs, sizeof(bits));
  uint32_t greatest = 0;
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    const uint32_t magnitude = bits[k] & 0x7fffffffu;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  const InputScale scale = ScaleOfInputs<kGreatest>(greatest);
  if (scale.inverse == 0.0f) {
    __builtin_memset(integers, 0, kGroupIntegerBytes);
    return scale.scale;
  }
  // Adding 1.5 * 2^23 rounds to an integer, in the low bits of the sum.
  constexpr uint32_t kRounderBits = 0x4b400000;
  const V inverse = V::Broadcast(scale.inverse);
  const V rounder = V::Broadcast(12582912.0f);
  alignas(64) float rounded[kInputGroup];
  for (uint32_t k = 0; k < kInputGroup; k += kLanes) {
    V::Store(V::Fma(V::Load(inputs + k), inverse, rounder), rounded + k);
  }
  __builtin_memcpy(bits, rounded, sizeof(bits));
  for (uint32_t k = 0; k < kInputGroup; ++k) integers[k] = static_cast<int16_t>(bits[k] - kRounderBits);
  return scale.scale;
}

template <typename V, int kGreatest>
void PrepareIntegers(const PrepareArgs& args) {
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    const float* input = args.inputs + row * args.input_stride;
    char* to = static_cast<char*>(args.prepared) + row * IntegerRowBytes(args.depth);
    auto* scales = reinterpret_cast<float*>(to + NumGroups(args.depth) * kGroupIntegerBytes);
    for (uint32_t column = args.begin_column; column < args.end_column; column += kInputGroup) {
      const uint32_t group = column / kInputGroup;
      auto* integers = reinterpret_cast<int16_t*>(to + group * kGroupIntegerBytes);
      const uint32_t left = args.end_column - column;
      if (left >= kInputGroup) {
        scales[group] = RoundInputs<V, kGreatest>(input + column, integers);
      } else {
        alignas(64) float padded[kInputGroup] = {};
        for (uint32_t k = 0; k < left; ++k) padded[k] = input[column + k];
        scales[group] = RoundInputs<V, kGreatest>(padded, integers);
      }
    }
  }
}

// Half of a line, for 16 outputs.
constexpr size_t kHalfLineBytes = 32;

// Weights of Int8Lines.
struct Int8Weights {
  static constexpr size_t kGroupBytes = kInt8GroupBytes;
  static constexpr uint32_t kGroupLines = 32;

  // One line, or half of it, times `kRows` rows of inputs.
  template <typename I, int kRows, int kHalves>
  static TANDEM_INLINE void MultiplyLine(const char* line, const char* inputs, size_t row_bytes,
                                         uint32_t index, typename I::Sum (&sums)[kRows][kHalves]) {
    typename I::Weights weights[kHalves];
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) weights[half] = I::Widen(line + half * kHalfLineBytes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const char* pair = inputs + row * row_bytes + index * 4;
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) {
        sums[row][half] = I::MultiplyAdd(sums[row][half], weights[half], pair);
      }
    }
  }
};

// Weights of Int4Lines.
struct Int4Weights {
  static constexpr size_t kGroupBytes = kInt4GroupBytes;
  static constexpr uint32_t kGroupLines = 16;

  template <typename I, int kRows, int kHalves>
  static TANDEM_INLINE void MultiplyLine(const char* line, const char* inputs, size_t row_bytes,
                                         uint32_t index, typename I::Sum (&sums)[kRows][kHalves]) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      typename I::Weights first;
      typename I::Weights second;
      I::WidenHalves(line + half * kHalfLineBytes, &first, &second);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const char* pair = inputs + row * row_bytes + index * 4;
        sums[row][half] = I::MultiplyAdd(sums[row][half], first, pair);
        sums[row][half] = I::MultiplyAdd(sums[row][half], second, pair + kGroupLines * 4);
      }
    }
  }
};

template <typename V>
TANDEM_INLINE void StoreOutputs(V value, uint32_t output, uint32_t end_output, float* row) {
  if (output + kLanes <= end_output) {
    V::Store(value, row + output);
  } else if (output < end_output) {
    StoreFirst(value, end_output - output, row + output);
  }
}

// A tile of weights, or the given half of it, times `kRows` rows.
template <typename V, typename I, typename Weights, int kRows, int kHalves>
TANDEM_INLINE void MultiplyHalves(const char* tile, int first_half, const ProductArgs& args,
                                  const char* inputs, float* const* outputs, uint32_t first_output) {
  constexpr size_t kPrefetchBytes = 2048;
  const uint32_t num_groups = NumGroups(args.depth);
  const size_t row_bytes = IntegerRowBytes(args.depth);
  V totals[kRows][kHalves];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) totals[row][half] = V::Broadcast(0.0f);
  }
  for (uint32_t group = 0; group < num_groups; ++group, tile += Weights::kGroupBytes) {
    typename I::Sum sums[kRows][kHalves];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) sums[row][half] = I::Zero();
    }
    const char* line = tile + kScaleLineBytes + first_half * kHalfLineBytes;
    for (uint32_t index = 0; index < Weights::kGroupLines; ++index, line += 64) {
      __builtin_prefetch(line + kPrefetchBytes);
      Weights::template MultiplyLine<I, kRows, kHalves>(line, inputs + group * kGroupIntegerBytes, row_bytes,
                                                        index, sums);
    }
    V scales[2];
    V::LoadBf16Pairs(reinterpret_cast<const uint16_t*>(tile), &scales[0], &scales[1]);
    const char* scale = inputs + num_groups * kGroupIntegerBytes + group * sizeof(float);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row, scale += row_bytes) {
      const V input_scale = V::Broadcast(*reinterpret_cast<const float*>(scale));
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) {
        const V both = V::Multiply(scales[first_half + half], input_scale);
        totals[row][half] = V::Fma(I::ToFloat(sums[row][half]), both, totals[row][half]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      StoreOutputs(totals[row][half], first_output + (first_half + half) * kLanes, args.end_output,
                   outputs[row]);
    }
  }
}

template <typename V, typename I, typename Weights, int kRows>
void MultiplyIntegerTile(const char* tile, const ProductArgs& args, const char* inputs, float* const* outputs,
                         uint32_t first_output) {
  constexpr int kHalves = I::Halves(kRows);
#pragma GCC unroll 2
  for (int half = 0; half < 2; half += kHalves) {
    MultiplyHalves<V, I, Weights, kRows, kHalves>(tile, half, args, inputs, outputs, first_output);
  }
}

template <typename V, typename I, typename Weights, int kRows>
TANDEM_INLINE void DispatchIntegerRows(uint32_t num_rows, const char* tile, const ProductArgs& args,
                                       const char* inputs, float* const* outputs, uint32_t first_output) {
  if (num_rows == kRows) {
    MultiplyIntegerTile<V, I, Weights, kRows>(tile, args, inputs, outputs, first_output);
  } else if constexpr (kRows > 1) {
    DispatchIntegerRows<V, I, Weights, kRows - 1>(num_rows, tile, args, inputs, outputs, first_output);
  }
}

// Reads the weights once: a tile stays in the cache for all chunks of rows.
template <typename V, typename I, typename Weights>
void MultiplyIntegers(const ProductArgs& args) {
  const size_t tile_bytes = NumGroups(args.depth) * Weights::kGroupBytes;
  const size_t row_bytes = IntegerRowBytes(args.depth);
  const uint32_t num_chunks = (args.num_rows + I::kMaxRows - 1) / I::kMaxRows;
  for (uint32_t tile = 0; tile < args.num_tiles; ++tile) {
    uint32_t row = 0;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      // Chunks as equal as possible.
      const uint32_t num_rows = (args.num_rows - row) / (num_chunks - chunk);
      DispatchIntegerRows<V, I, Weights, I::kMaxRows>(
          num_rows, static_cast<const char*>(args.tiles) + tile * tile_bytes, args,
          static_cast<const char*>(args.prepared) + row * row_bytes, args.outputs + row,
          args.first_output + tile * kTileOutputs);
      row += num_rows;
    }
  }
}

template <typename V, typename I>
void SetIntegerProducts(KernelTable* table) {
  ProductKernel& int8 = table->products[static_cast<int>(WeightFormat::kInt8)];
  int8.layout = Int8Lines();
  int8.prepared_bytes = IntegerPreparedBytes<V>;
  int8.prepare = PrepareIntegers<V, kGreatestInput>;
  int8.multiply = MultiplyIntegers<V, I, Int8Weights>;
  ProductKernel& int4 = table->products[static_cast<int>(WeightFormat::kInt4)];
  int4 = int8;
  int4.layout = Int4Lines();
  int4.multiply = MultiplyIntegers<V, I, Int4Weights>;
  ProductKernel& w8a8 = table->products[static_cast<int>(WeightFormat::kW8A8)];
  w8a8 = int8;
  w8a8.prepare = PrepareIntegers<V, kGreatestShortInput>;
  ProductKernel& w4a8 = table->products[static_cast<int>(WeightFormat::kW4A8)];
  w4a8 = int4;
  w4a8.prepare = w8a8.prepare;
}

}  // namespace
}  // namespace tandem

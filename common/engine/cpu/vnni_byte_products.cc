#include "common/engine/cpu/vnni_byte_products.h"

#include <immintrin.h>

#include "common/engine/cpu/avx512_vectors.h"
#include "common/engine/cpu/integer_layouts.h"
#include "common/engine/cpu/integer_products.h"

// VPDPBUSD adds up products of four pairs of bytes, of which one is unsigned and one signed. Weights w stand
// there as w + 2^b, which is not negative (Int8OffsetTiles), and inputs x as they are, so that
//
//   sum of w * x = sum of (w + 2^b) * x - 2^b * (sum of x)
//
// The last term is the same for all outputs of a row and group, and is what their sums begin with.

namespace tandem {
namespace {

constexpr int kMaxRows = 6;
// Inputs that one instruction takes.
constexpr uint32_t kQuad = 4;
constexpr uint32_t kGroupLines = kInputGroup / kQuad;
constexpr size_t kLineBytes = 64;

// A row of prepared inputs: the integers as 8 bits, [groups][kInputGroup], then the scales [groups], and the
// sums of each group's integers [groups], negated.
TANDEM_INLINE size_t RowBytes(uint32_t depth) {
  const size_t groups = NumGroups(depth);
  return groups * kInputGroup + (groups * (sizeof(float) + sizeof(int32_t)) + 63) / 64 * 64;
}

struct Row {
  char* integers;
  float* scales;
  int32_t* sums;
};

TANDEM_INLINE Row RowAt(char* row, uint32_t depth) {
  const size_t groups = NumGroups(depth);
  auto* scales = reinterpret_cast<float*>(row + groups * kInputGroup);
  return {row, scales, reinterpret_cast<int32_t*>(scales + groups)};
}

uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  return uint64_t{max_rows} * RowBytes(depth);
}

TANDEM_INLINE void PrepareGroup(const float* input, uint32_t count, uint32_t group, const Row& row) {
  constexpr uint32_t kVectors = kInputGroup / kLanes;
  __m512 inputs[kVectors];
  __m512i greatest = _mm512_setzero_si512();
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint32_t begin = i * kLanes;
    const uint32_t left = count > begin ? count - begin : 0;
    const __mmask16 mask = left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    inputs[i] = _mm512_maskz_loadu_ps(mask, input + begin);
    greatest = _mm512_max_epu32(
        greatest, _mm512_and_si512(_mm512_castps_si512(inputs[i]), _mm512_set1_epi32(0x7fffffff)));
  }
  const InputScale scale = ScaleOfInputs<kGreatestShortInput>(_mm512_reduce_max_epu32(greatest));
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
  const __m512 rounder = _mm512_set1_ps(12582912.0f);
  __m512i sum = _mm512_setzero_si512();
  for (uint32_t i = 0; i < kVectors; ++i) {
    const __m512 used = scale.inverse == 0.0f ? _mm512_setzero_ps() : inputs[i];
    const __m512 rounded = _mm512_fmadd_ps(used, _mm512_set1_ps(scale.inverse), rounder);
    const __m512i whole = _mm512_sub_epi32(_mm512_castps_si512(rounded), _mm512_castps_si512(rounder));
    sum = _mm512_sub_epi32(sum, whole);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row.integers + group * kInputGroup + i * kLanes),
                     _mm512_cvtepi32_epi8(whole));
  }
  row.scales[group] = scale.scale;
  row.sums[group] = _mm512_reduce_add_epi32(sum);
}

void Prepare(const PrepareArgs& args) {
  for (uint32_t i = args.begin_row; i < args.end_row; ++i) {
    const float* input = args.inputs + i * args.input_stride;
    const Row row = RowAt(static_cast<char*>(args.prepared) + i * RowBytes(args.depth), args.depth);
    for (uint32_t column = args.begin_column; column < args.end_column; column += kInputGroup) {
      const uint32_t left = args.end_column - column;
      PrepareGroup(input + column, left < kInputGroup ? left : kInputGroup, column / kInputGroup, row);
    }
  }
}

// Of 16 outputs at a time: weights of Int8OffsetTiles, a line per quad.
struct ByteWeights {
  static constexpr size_t kGroupBytes = kInt8GroupBytes;
  static constexpr int kOffsetBits = kInt8OffsetBits;
  // Quads that stand in one line.
  static constexpr uint32_t kQuadsPerLine = 1;
  static TANDEM_INLINE __m512i Quad(__m512i line, uint32_t /*index*/) { return line; }
};

// Of Int4OffsetTiles: quad i in the low, quad i + 8 in the high halves of line i.
struct HalfByteWeights {
  static constexpr size_t kGroupBytes = kInt4GroupBytes;
  static constexpr int kOffsetBits = kInt4OffsetBits;
  static constexpr uint32_t kQuadsPerLine = 2;
  static TANDEM_INLINE __m512i Quad(__m512i line, uint32_t index) {
    return _mm512_and_si512(index == 0 ? line : _mm512_srli_epi16(line, 4), _mm512_set1_epi8(0x0f));
  }
};

template <typename Weights, int kRows, int kTiles>
void MultiplyTiles(const char* tiles, const ProductArgs& args, const char* inputs, float* const* outputs,
                   uint32_t first_output) {
  // How far ahead of their use weights are asked for.
  constexpr size_t kPrefetchBytes = 4096;
  constexpr uint32_t kLines = kGroupLines / Weights::kQuadsPerLine;
  const uint32_t num_groups = NumGroups(args.depth);
  const size_t tile_bytes = num_groups * Weights::kGroupBytes;
  const size_t row_bytes = RowBytes(args.depth);
  __m512 totals[kRows][kTiles][2];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      totals[row][tile][0] = _mm512_setzero_ps();
      totals[row][tile][1] = _mm512_setzero_ps();
    }
  }
  const char* scales = inputs + size_t{num_groups} * kInputGroup;
  for (uint32_t group = 0; group < num_groups;
       ++group, tiles += Weights::kGroupBytes, inputs += kInputGroup, scales += sizeof(float)) {
    __m512i sums[kRows][kTiles][2];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      int32_t negative;
      __builtin_memcpy(&negative, scales + num_groups * sizeof(float) + row * row_bytes, sizeof(negative));
      const __m512i begin = _mm512_slli_epi32(_mm512_set1_epi32(negative), Weights::kOffsetBits);
#pragma GCC unroll 4
      for (int tile = 0; tile < kTiles; ++tile) {
        sums[row][tile][0] = begin;
        sums[row][tile][1] = begin;
      }
    }
#pragma GCC unroll 2
    for (uint32_t line = 0; line < kLines; ++line) {
#pragma GCC unroll 4
      for (int tile = 0; tile < kTiles; ++tile) {
        const char* from = tiles + tile * tile_bytes + kScaleLineBytes + line * kLineBytes;
        __builtin_prefetch(from + kPrefetchBytes);
        __builtin_prefetch(from + kLines * kLineBytes + kPrefetchBytes);
        const __m512i lines[2] = {_mm512_load_si512(from), _mm512_load_si512(from + kLines * kLineBytes)};
#pragma GCC unroll 2
        for (uint32_t index = 0; index < Weights::kQuadsPerLine; ++index) {
          const __m512i weights[2] = {Weights::Quad(lines[0], index), Weights::Quad(lines[1], index)};
#pragma GCC unroll 8
          for (int row = 0; row < kRows; ++row) {
            int32_t quad;
            __builtin_memcpy(&quad, inputs + row * row_bytes + (line + index * kLines) * kQuad, sizeof(quad));
            const __m512i input = _mm512_set1_epi32(quad);
            sums[row][tile][0] = _mm512_dpbusd_epi32(sums[row][tile][0], weights[0], input);
            sums[row][tile][1] = _mm512_dpbusd_epi32(sums[row][tile][1], weights[1], input);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      Avx512 weight_scales[2];
      Avx512::LoadBf16Pairs(reinterpret_cast<const uint16_t*>(tiles + tile * tile_bytes), &weight_scales[0],
                            &weight_scales[1]);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        float scale;
        __builtin_memcpy(&scale, scales + row * row_bytes, sizeof(scale));
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512 both = _mm512_mul_ps(weight_scales[half].v, _mm512_set1_ps(scale));
          totals[row][tile][half] =
              _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[row][tile][half]), both, totals[row][tile][half]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        StoreOutputs(
            Avx512{totals[row][tile][half]},
            first_output + static_cast<uint32_t>(tile) * kTileOutputs + static_cast<uint32_t>(half) * kLanes,
            args.end_output, outputs[row]);
      }
    }
  }
}

// With one row, several tiles keep the multipliers busy, and memory, which gives more to several streams.
// With more, two make the most of an input that was loaded; totals, which are rarely touched, then leave the
// registers.
template <typename Weights, int kRows>
void MultiplyRows(const char* tiles, uint32_t num_tiles, const ProductArgs& args, const char* inputs,
                  float* const* outputs, uint32_t first_output) {
  constexpr int kTiles = kRows == 1 ? 4 : kRows <= 4 ? 2 : 1;
  const size_t tile_bytes = NumGroups(args.depth) * Weights::kGroupBytes;
  uint32_t tile = 0;
  for (; tile + kTiles <= num_tiles; tile += kTiles) {
    MultiplyTiles<Weights, kRows, kTiles>(tiles + tile * tile_bytes, args, inputs, outputs,
                                          first_output + tile * kTileOutputs);
  }
  for (; tile < num_tiles; ++tile) {
    MultiplyTiles<Weights, kRows, 1>(tiles + tile * tile_bytes, args, inputs, outputs,
                                     first_output + tile * kTileOutputs);
  }
}

template <typename Weights, int kRows>
TANDEM_INLINE void DispatchRows(uint32_t num_rows, const char* tiles, uint32_t num_tiles,
                                const ProductArgs& args, const char* inputs, float* const* outputs,
                                uint32_t first_output) {
  if (num_rows == kRows) {
    MultiplyRows<Weights, kRows>(tiles, num_tiles, args, inputs, outputs, first_output);
  } else if constexpr (kRows > 1) {
    DispatchRows<Weights, kRows - 1>(num_rows, tiles, num_tiles, args, inputs, outputs, first_output);
  }
}

// Goes once through the weights: a few tiles at a time, which stay in the cache for all chunks of rows.
template <typename Weights>
void Multiply(const ProductArgs& args) {
  constexpr uint32_t kTilesAtOnce = 4;
  const size_t tile_bytes = NumGroups(args.depth) * Weights::kGroupBytes;
  const size_t row_bytes = RowBytes(args.depth);
  const uint32_t num_chunks = (args.num_rows + kMaxRows - 1) / kMaxRows;
  for (uint32_t tile = 0; tile < args.num_tiles; tile += kTilesAtOnce) {
    const uint32_t num_tiles = args.num_tiles - tile < kTilesAtOnce ? args.num_tiles - tile : kTilesAtOnce;
    uint32_t row = 0;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      // Chunks as equal as possible.
      const uint32_t num_rows = (args.num_rows - row) / (num_chunks - chunk);
      DispatchRows<Weights, kMaxRows>(num_rows, static_cast<const char*>(args.tiles) + tile * tile_bytes,
                                      num_tiles, args,
                                      static_cast<const char*>(args.prepared) + row * row_bytes,
                                      args.outputs + row, args.first_output + tile * kTileOutputs);
      row += num_rows;
    }
  }
}

template <typename Weights>
ProductKernel MakeProduct(const WeightLayout& layout) {
  ProductKernel product;
  product.layout = layout;
  product.prepared_bytes = PreparedBytes;
  product.prepare = Prepare;
  product.multiply = Multiply<Weights>;
  return product;
}

}  // namespace

void SetVnniByteProducts(KernelTable* table) {
  table->products[static_cast<int>(WeightFormat::kW8A8)] = MakeProduct<ByteWeights>(Int8OffsetTiles());
  table->products[static_cast<int>(WeightFormat::kW4A8)] = MakeProduct<HalfByteWeights>(Int4OffsetTiles());
}

}  // namespace tandem

#include <immintrin.h>

#include "common/engine/cpu/amx_integer_products.h"
#include "common/engine/cpu/amx_tiles.h"
#include "common/engine/cpu/integer_layouts.h"
#include "common/engine/cpu/integer_products.h"

// Products of integers on AMX tiles: 16 rows of 64 bytes, and an instruction that multiplies two of them.
//
// An input is an integer of 15 bits, taken as 128 * high + low with high and low of 8 bits. The two stand in
// neighbouring rows of an input tile, so a tile holds 8 rows of inputs for one group of columns, and the sums
// of both stand in neighbouring rows of the output tile. They are whole and exact, so that
//
//   128 * (sum over k of high * weight) + (sum over k of low * weight)
//
// is the sum that every other instruction set finds (kernel_table.h). After each group the sums go through
// memory to vectors, which scale them and add them to the outputs: there are 4 sums under way, so that the
// next tiles are multiplied meanwhile.

namespace tandem {
namespace {

// Rows of inputs in a tile.
constexpr uint32_t kBlockRows = kTileRows / 2;
// A block's tile of inputs for one group, and the line with the scales of its rows.
constexpr size_t kStepBytes = kTileBytes + 64;

using Sums = int32_t[kTileBytes / sizeof(int32_t)];

// Prepared inputs: [rows / 8][groups] of a tile, row 2 r of it the high, row 2 r + 1 the low parts of row r,
// and 8 scales.
TANDEM_INLINE size_t BlockBytes(uint32_t depth) {
  return NumGroups(depth) * kStepBytes;
}

uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  return (uint64_t{max_rows} + kBlockRows - 1) / kBlockRows * BlockBytes(depth);
}

// Rounds 16 inputs and stores their parts.
TANDEM_INLINE void SplitInputs(__m512 inputs, float inverse, char* high_part, char* low_part) {
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
  const __m512 rounder = _mm512_set1_ps(12582912.0f);
  const __m512 rounded = _mm512_fmadd_ps(inputs, _mm512_set1_ps(inverse), rounder);
  const __m512i whole = _mm512_sub_epi32(_mm512_castps_si512(rounded), _mm512_castps_si512(rounder));
  const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
  const __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 7));
  _mm_store_si128(reinterpret_cast<__m128i*>(high_part), _mm512_cvtepi32_epi8(high));
  _mm_store_si128(reinterpret_cast<__m128i*>(low_part), _mm512_cvtepi32_epi8(low));
}

// One row's inputs of one group, `count` of them, to its two rows of a tile. Returns their scale.
TANDEM_INLINE float PrepareGroup(const float* input, uint32_t count, char* to) {
  constexpr int kVectors = kInputGroup / 16;
  __m512 inputs[kVectors];
  __m512i greatest = _mm512_setzero_si512();
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t begin = static_cast<uint32_t>(i) * 16;
    const uint32_t left = count > begin ? count - begin : 0;
    const __mmask16 mask = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    inputs[i] = _mm512_maskz_loadu_ps(mask, input + begin);
    greatest = _mm512_max_epu32(
        greatest, _mm512_and_si512(_mm512_castps_si512(inputs[i]), _mm512_set1_epi32(0x7fffffff)));
  }
  const InputScale scale = ScaleOfInputs(_mm512_reduce_max_epu32(greatest));
  for (int i = 0; i < kVectors; ++i) {
    const __m512 used = scale.inverse == 0.0f ? _mm512_setzero_ps() : inputs[i];
    SplitInputs(used, scale.inverse, to + i * 16, to + kTileStride + i * 16);
  }
  return scale.scale;
}

void Prepare(const PrepareArgs& args) {
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    const float* input = args.inputs + row * args.input_stride;
    char* const block = static_cast<char*>(args.prepared) + row / kBlockRows * BlockBytes(args.depth);
    for (uint32_t column = args.begin_column; column < args.end_column; column += kInputGroup) {
      const uint32_t left = args.end_column - column;
      char* const step = block + column / kInputGroup * kStepBytes;
      reinterpret_cast<float*>(step + kTileBytes)[row % kBlockRows] = PrepareGroup(
          input + column, left < kInputGroup ? left : kInputGroup, step + row % kBlockRows * 2 * kTileStride);
    }
  }
}

// Weights of Int8AmxTiles, which are tiles already.
struct Int8Tiles {
  static constexpr size_t kGroupBytes = kInt8GroupBytes;

  static TANDEM_INLINE const char* Tile(const char* group, uint32_t half, char* /*scratch*/) {
    return group + kScaleLineBytes + half * kTileBytes;
  }
};

// Weights of Int4AmxTiles, made tiles in `scratch`.
struct Int4Tiles {
  static constexpr size_t kGroupBytes = kInt4GroupBytes;

  static TANDEM_INLINE const char* Tile(const char* group, uint32_t half, char* scratch) {
    const char* from = group + kScaleLineBytes + half * (kTileBytes / 2);
    const __m512i mask = _mm512_set1_epi8(0x0f);
    // What the 16 half bytes stand for.
    const __m512i values =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
#pragma GCC unroll 8
    for (int line = 0; line < 8; ++line) {
      const __m512i both = _mm512_load_si512(from + line * 64);
      const __m512i low = _mm512_and_si512(both, mask);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
      _mm512_store_si512(scratch + line * 64, _mm512_shuffle_epi8(values, low));
      _mm512_store_si512(scratch + (line + 8) * 64, _mm512_shuffle_epi8(values, high));
    }
    CompleteWrites();
    return scratch;
  }
};

// The scales of a group's outputs, 16 and 16.
TANDEM_INLINE void LoadScales(const char* group, __m512* first, __m512* second) {
  const __m512i pairs = _mm512_load_si512(group);
  *first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  *second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Scales the sums of a tile and adds them to the outputs so far; rows of `totals` are `stride` floats apart.
TANDEM_INLINE void AddSums(const Sums& sums, __m512 weight_scales, const char* inputs, uint32_t num_rows,
                           float* totals, size_t stride) {
  const auto* input_scales = reinterpret_cast<const float*>(inputs + kTileBytes);
  for (uint32_t row = 0; row < num_rows; ++row, totals += stride) {
    const __m512i high = _mm512_load_si512(sums + row * 2 * kHalfOutputs);
    const __m512i low = _mm512_load_si512(sums + (row * 2 + 1) * kHalfOutputs);
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low));
    const __m512 scales = _mm512_mul_ps(weight_scales, _mm512_set1_ps(input_scales[row]));
    _mm512_store_ps(totals, _mm512_fmadd_ps(sum, scales, _mm512_load_ps(totals)));
  }
}

// The outputs that are not padding, of `width` at most.
TANDEM_INLINE void StoreTotals(const float* totals, uint32_t width, uint32_t num_rows, float* const* outputs,
                               uint32_t first_output, uint32_t end_output) {
  for (uint32_t row = 0; row < num_rows; ++row, totals += width) {
    for (uint32_t i = 0; i < width && first_output + i < end_output; i += kHalfOutputs) {
      _mm512_mask_storeu_ps(outputs[row] + first_output + i, OutputMask(first_output + i, end_output),
                            _mm512_load_ps(totals + i));
    }
  }
}

// How far ahead of their use weights are asked for.
constexpr size_t kPrefetchBytes = 4096;

TANDEM_INLINE void Prefetch(const char* weights, uint32_t num_lines) {
  for (uint32_t line = 0; line < num_lines; ++line) _mm_prefetch(weights + line * 64, _MM_HINT_T0);
}

// Up to 8 rows times kTiles tiles of weights, each in two halves.
template <typename Weights, uint32_t kTiles>
void MultiplyOneBlock(const ProductArgs& args, const char* weights, uint32_t first_output) {
  constexpr uint32_t kWidth = kTiles * kTileOutputs;
  constexpr uint32_t kGroupLines = Weights::kGroupBytes / 64;
  alignas(64) Sums sums[2 * kTiles];
  alignas(64) float totals[kBlockRows * kWidth];
  alignas(64) char scratch[2 * kTiles][kTileBytes];
  const uint32_t num_groups = NumGroups(args.depth);
  const size_t tile_bytes = num_groups * Weights::kGroupBytes;
  const auto* inputs = static_cast<const char*>(args.prepared);
  __builtin_memset(totals, 0, args.num_rows * kWidth * sizeof(float));
  for (uint32_t group = 0; group < num_groups; ++group) {
    _tile_loadd(4, inputs, kTileStride);
    Prefetch(weights + kPrefetchBytes, kGroupLines);
    _tile_zero(0);
    _tile_loadd(6, Weights::Tile(weights, 0, scratch[0]), kTileStride);
    _tile_dpbssd(0, 4, 6);
    _tile_zero(1);
    _tile_loadd(7, Weights::Tile(weights, 1, scratch[1]), kTileStride);
    _tile_dpbssd(1, 4, 7);
    if constexpr (kTiles == 2) {
      const char* second = weights + tile_bytes;
      Prefetch(second + kPrefetchBytes, kGroupLines);
      _tile_zero(2);
      _tile_loadd(6, Weights::Tile(second, 0, scratch[2]), kTileStride);
      _tile_dpbssd(2, 4, 6);
      _tile_zero(3);
      _tile_loadd(7, Weights::Tile(second, 1, scratch[3]), kTileStride);
      _tile_dpbssd(3, 4, 7);
    }
    _tile_stored(0, sums[0], kTileStride);
    _tile_stored(1, sums[1], kTileStride);
    if constexpr (kTiles == 2) {
      _tile_stored(2, sums[2], kTileStride);
      _tile_stored(3, sums[3], kTileStride);
    }
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      __m512 first;
      __m512 second;
      LoadScales(weights + tile * tile_bytes, &first, &second);
      float* const to = totals + tile * kTileOutputs;
      AddSums(sums[2 * tile], first, inputs, args.num_rows, to, kWidth);
      AddSums(sums[2 * tile + 1], second, inputs, args.num_rows, to + kHalfOutputs, kWidth);
    }
    inputs += kStepBytes;
    weights += Weights::kGroupBytes;
  }
  StoreTotals(totals, kWidth, args.num_rows, args.outputs, first_output, args.end_output);
}

template <typename Weights>
void MultiplyFewRows(const ProductArgs& args) {
  const size_t tile_bytes = NumGroups(args.depth) * Weights::kGroupBytes;
  const auto* weights = static_cast<const char*>(args.tiles);
  uint32_t tile = 0;
  for (; tile + 2 <= args.num_tiles; tile += 2) {
    MultiplyOneBlock<Weights, 2>(args, weights + tile * tile_bytes, args.first_output + tile * kTileOutputs);
  }
  for (; tile < args.num_tiles; ++tile) {
    MultiplyOneBlock<Weights, 1>(args, weights + tile * tile_bytes, args.first_output + tile * kTileOutputs);
  }
}

constexpr uint32_t kPairRows = 2 * kBlockRows;
constexpr uint32_t kMostRows = kMostPairs * kPairRows;

// A tile of weights times many rows: all blocks of rows, two at a time, go through a group of weights, which
// stays in two tiles.
template <typename Weights>
void MultiplyTile(const ProductArgs& args, const char* inputs, const char* weights, uint32_t first_row,
                  uint32_t num_rows, uint32_t first_output) {
  constexpr uint32_t kGroupLines = Weights::kGroupBytes / 64;
  alignas(64) static thread_local float totals[kMostRows * kTileOutputs];
  alignas(64) Sums sums[4];
  alignas(64) char scratch[2][kTileBytes];
  const size_t block_bytes = BlockBytes(args.depth);
  const uint32_t num_groups = NumGroups(args.depth);
  const uint32_t num_pairs = (num_rows + kPairRows - 1) / kPairRows;
  const uint32_t lines_ahead = (kGroupLines + num_pairs - 1) / num_pairs;
  __builtin_memset(totals, 0, num_rows * kTileOutputs * sizeof(float));
  for (uint32_t group = 0; group < num_groups; ++group) {
    const char* ahead = weights + kPrefetchBytes;
    _tile_loadd(6, Weights::Tile(weights, 0, scratch[0]), kTileStride);
    _tile_loadd(7, Weights::Tile(weights, 1, scratch[1]), kTileStride);
    __m512 first;
    __m512 second;
    LoadScales(weights, &first, &second);
    for (uint32_t row = 0; row < num_rows; row += kPairRows) {
      Prefetch(ahead, lines_ahead);
      ahead += lines_ahead * 64;
      const char* block = inputs + row / kBlockRows * block_bytes;
      const char* next = block + block_bytes;
      const uint32_t left = num_rows - row;
      _tile_loadd(4, block, kTileStride);
      _tile_zero(0);
      _tile_dpbssd(0, 4, 6);
      _tile_zero(1);
      _tile_dpbssd(1, 4, 7);
      if (left > kBlockRows) {
        _tile_loadd(5, next, kTileStride);
        _tile_zero(2);
        _tile_dpbssd(2, 5, 6);
        _tile_zero(3);
        _tile_dpbssd(3, 5, 7);
      }
      _tile_stored(0, sums[0], kTileStride);
      _tile_stored(1, sums[1], kTileStride);
      float* to = totals + row * kTileOutputs;
      const uint32_t block_rows = left < kBlockRows ? left : kBlockRows;
      if (left > kBlockRows) {
        _tile_stored(2, sums[2], kTileStride);
        _tile_stored(3, sums[3], kTileStride);
      }
      AddSums(sums[0], first, block, block_rows, to, kTileOutputs);
      AddSums(sums[1], second, block, block_rows, to + kHalfOutputs, kTileOutputs);
      if (left > kBlockRows) {
        to += kBlockRows * kTileOutputs;
        const uint32_t next_rows = left - kBlockRows < kBlockRows ? left - kBlockRows : kBlockRows;
        AddSums(sums[2], first, next, next_rows, to, kTileOutputs);
        AddSums(sums[3], second, next, next_rows, to + kHalfOutputs, kTileOutputs);
      }
    }
    inputs += kStepBytes;
    weights += Weights::kGroupBytes;
  }
  StoreTotals(totals, kTileOutputs, num_rows, args.outputs + first_row, first_output, args.end_output);
}

template <typename Weights>
void MultiplyManyRows(const ProductArgs& args) {
  const size_t tile_bytes = NumGroups(args.depth) * Weights::kGroupBytes;
  const uint32_t most_rows = PairsAtOnce(BlockBytes(args.depth)) * kPairRows;
  for (uint32_t row = 0; row < args.num_rows; row += most_rows) {
    const uint32_t num_rows = args.num_rows - row < most_rows ? args.num_rows - row : most_rows;
    const char* inputs = static_cast<const char*>(args.prepared) + row / kBlockRows * BlockBytes(args.depth);
    for (uint32_t tile = 0; tile < args.num_tiles; ++tile) {
      MultiplyTile<Weights>(args, inputs, static_cast<const char*>(args.tiles) + tile * tile_bytes, row,
                            num_rows, args.first_output + tile * kTileOutputs);
    }
  }
}

template <typename Weights>
void Multiply(const ProductArgs& args) {
  ConfigureTiles(2 * args.num_rows);
  if (args.num_rows <= kBlockRows) {
    MultiplyFewRows<Weights>(args);
  } else {
    MultiplyManyRows<Weights>(args);
  }
  // Empty tiles need not be saved when the kernel switches threads.
  _tile_release();
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

ProductKernel AmxInt8Product() {
  return MakeProduct<Int8Tiles>(Int8AmxTiles());
}

ProductKernel AmxInt4Product() {
  return MakeProduct<Int4Tiles>(Int4AmxTiles());
}

}  // namespace tandem

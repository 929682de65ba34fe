#include <immintrin.h>

#include "common/engine/cpu/avx512_vectors.h"
#include "common/engine/cpu/file_code_products.h"
#include "common/engine/cpu/integer_layouts.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/product_blocks.h"

// Products with weights of 8 and 4 bits, with VPDPBUSD.
//
// VPDPBUSD adds up the products of four pairs of bytes, one unsigned and one signed. Weights w are stored as
// w + 2^b, which is not negative (Int8OffsetTiles), and inputs x unchanged, so that
//
//   sum of w * x = sum of (w + 2^b) * x - 2^b * (sum of x)
//
// The last term is the same for all outputs of a row and group. Their sums begin with it.
//
// A 15-bit input has two parts of 8 bits, x = 128 * high + low, with separate sums; an 8-bit input has one
// part. Sums are exact, so every other way to add gives the same.

namespace tandem {
namespace {

// Rows whose sums stay in registers.
template <int kParts>
constexpr int kMaxRows = kParts == 1 ? 8 : 5;
// Inputs that one instruction takes.
constexpr uint32_t kQuad = 4;
constexpr uint32_t kGroupLines = kInputGroup / kQuad;
constexpr size_t kLineBytes = 64;

// A row of prepared inputs: the integers as 8 bits, [groups][parts][kInputGroup], the high part first, then
// the scales [groups], and the number with which each group's sums begin [groups].
template <int kParts>
constexpr size_t kGroupInputBytes = size_t{kParts} * kInputGroup;

template <int kParts>
TANDEM_INLINE size_t RowBytes(uint32_t depth) {
  const size_t groups = NumGroups(depth);
  return groups * kGroupInputBytes<kParts> + (groups * (sizeof(float) + sizeof(int32_t)) + 63) / 64 * 64;
}

struct Row {
  char* integers;
  float* scales;
  int32_t* begins;
};

template <int kParts>
TANDEM_INLINE Row RowAt(char* row, uint32_t depth) {
  const size_t groups = NumGroups(depth);
  auto* scales = reinterpret_cast<float*>(row + groups * kGroupInputBytes<kParts>);
  return {row, scales, reinterpret_cast<int32_t*>(scales + groups)};
}

template <int kParts>
uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  return uint64_t{max_rows} * RowBytes<kParts>(depth);
}

TANDEM_INLINE void StoreBytes(__m512i integers, char* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(integers));
}

template <int kParts, int kOffsetBits>
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
  constexpr int kGreatest = kParts == 1 ? kGreatestShortInput : kGreatestInput;
  const InputScale scale = ScaleOfInputs<kGreatest>(_mm512_reduce_max_epu32(greatest));
  // Adding 1.5 * 2^23 rounds to an integer, in the low bits of the sum.
  const __m512 rounder = _mm512_set1_ps(12582912.0f);
  char* const to = row.integers + group * kGroupInputBytes<kParts>;
  __m512i sum = _mm512_setzero_si512();
  for (uint32_t i = 0; i < kVectors; ++i) {
    const __m512 used = scale.inverse == 0.0f ? _mm512_setzero_ps() : inputs[i];
    const __m512 rounded = _mm512_fmadd_ps(used, _mm512_set1_ps(scale.inverse), rounder);
    const __m512i whole = _mm512_sub_epi32(_mm512_castps_si512(rounded), _mm512_castps_si512(rounder));
    sum = _mm512_sub_epi32(sum, whole);
    if constexpr (kParts == 1) {
      StoreBytes(whole, to + i * kLanes);
    } else {
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
      StoreBytes(high, to + i * kLanes);
      StoreBytes(_mm512_sub_epi32(whole, _mm512_slli_epi32(high, 7)), to + kInputGroup + i * kLanes);
    }
  }
  row.scales[group] = scale.scale;
  row.begins[group] = _mm512_reduce_add_epi32(sum) * (1 << kOffsetBits);
}

template <int kParts, int kOffsetBits>
void Prepare(const PrepareArgs& args) {
  for (uint32_t i = args.begin_row; i < args.end_row; ++i) {
    const float* input = args.inputs + i * args.input_stride;
    const Row row =
        RowAt<kParts>(static_cast<char*>(args.prepared) + i * RowBytes<kParts>(args.depth), args.depth);
    for (uint32_t column = args.begin_column; column < args.end_column; column += kInputGroup) {
      const uint32_t left = args.end_column - column;
      PrepareGroup<kParts, kOffsetBits>(input + column, left < kInputGroup ? left : kInputGroup,
                                        column / kInputGroup, row);
    }
  }
}

// For 16 outputs at a time: weights of Int8OffsetTiles, one line per quad.
struct ByteWeights {
  static constexpr size_t kGroupBytes = kInt8GroupBytes;
  static constexpr int kOffsetBits = kInt8OffsetBits;
  // Quads in one line.
  static constexpr uint32_t kQuadsPerLine = 1;
  static TANDEM_INLINE __m512i Quad(__m512i line, uint32_t /*index*/) { return line; }
};

// For Int4OffsetTiles: quad i in the low halves of line i, quad i + 8 in the high halves.
struct HalfByteWeights {
  static constexpr size_t kGroupBytes = kInt4GroupBytes;
  static constexpr int kOffsetBits = kInt4OffsetBits;
  static constexpr uint32_t kQuadsPerLine = 2;
  static TANDEM_INLINE __m512i Quad(__m512i line, uint32_t index) {
    return _mm512_and_si512(index == 0 ? line : _mm512_srli_epi16(line, 4), _mm512_set1_epi8(0x0f));
  }
};

// The sums of a group. They begin with what corrects the weights' offsets.
template <int kParts, int kRows, int kTiles>
struct GroupSums {
  __m512i sums[kParts][kRows][kTiles][2];

  TANDEM_INLINE void Begin(const char* begins, size_t row_bytes) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      int32_t begin;
      __builtin_memcpy(&begin, begins + row * row_bytes, sizeof(begin));
#pragma GCC unroll 4
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          if constexpr (kParts == 2) sums[0][row][tile][half] = _mm512_setzero_si512();
          sums[kParts - 1][row][tile][half] = _mm512_set1_epi32(begin);
        }
      }
    }
  }

  // `inputs`: the quad of the first row's first part that belongs to the weights.
  TANDEM_INLINE void Add(int tile, const __m512i (&weights)[2], const char* inputs, size_t row_bytes) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        int32_t quad;
        __builtin_memcpy(&quad, inputs + row * row_bytes + part * size_t{kInputGroup}, sizeof(quad));
        const __m512i input = _mm512_set1_epi32(quad);
        __m512i(&of_row)[2] = sums[part][row][tile];
        of_row[0] = _mm512_dpbusd_epi32(of_row[0], weights[0], input);
        of_row[1] = _mm512_dpbusd_epi32(of_row[1], weights[1], input);
      }
    }
  }

  // totals += sums * scales of the tile's weights * scales of the inputs
  TANDEM_INLINE void AddTo(__m512 (&totals)[kRows][kTiles][2], int tile, const char* weight_scales,
                           const char* input_scales, size_t row_bytes) const {
    Avx512 scales[2];
    Avx512::LoadBf16Pairs(reinterpret_cast<const uint16_t*>(weight_scales), &scales[0], &scales[1]);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      float input_scale;
      __builtin_memcpy(&input_scale, input_scales + row * row_bytes, sizeof(input_scale));
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        __m512i sum = sums[kParts - 1][row][tile][half];
        if constexpr (kParts == 2) {
          sum = _mm512_add_epi32(_mm512_slli_epi32(sums[0][row][tile][half], 7), sum);
        }
        const __m512 both = _mm512_mul_ps(scales[half].v, _mm512_set1_ps(input_scale));
        __m512& total = totals[row][tile][half];
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), both, total);
      }
    }
  }
};

// The first rows load the weights for all rows, and prefetch them some way ahead. The other rows find them in
// the cache, and prefetch the next group of tiles, so that memory is never idle.
template <typename Weights, int kParts, int kRows, int kTiles, bool kAreFirst>
void MultiplyBlock(const ProductArgs& args, const ProductBlock& block) {
  constexpr size_t kPrefetchBytes = 4096;
  constexpr int kLocality = kAreFirst ? 3 : 2;
  constexpr uint32_t kLines = kGroupLines / Weights::kQuadsPerLine;
  const uint32_t num_groups = NumGroups(args.depth);
  const size_t tile_bytes = num_groups * Weights::kGroupBytes;
  const size_t row_bytes = RowBytes<kParts>(args.depth);
  const char* tiles = block.tiles;
  const char* inputs = static_cast<const char*>(args.prepared) + block.first_row * row_bytes;
  const char* scales = inputs + num_groups * kGroupInputBytes<kParts>;
  __m512 totals[kRows][kTiles][2];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      totals[row][tile][0] = _mm512_setzero_ps();
      totals[row][tile][1] = _mm512_setzero_ps();
    }
  }
  for (uint32_t group = 0; group < num_groups;
       ++group, tiles += Weights::kGroupBytes, inputs += kGroupInputBytes<kParts>, scales += sizeof(float)) {
    GroupSums<kParts, kRows, kTiles> sums;
    // After the end of its tile, a stream continues kTiles tiles further.
    const size_t left = (num_groups - group) * Weights::kGroupBytes;
    const size_t jump = left > kPrefetchBytes ? 0 : (kTiles - 1) * tile_bytes;
    const size_t ahead = kAreFirst ? kPrefetchBytes + jump : kTileGroup * tile_bytes;
    sums.Begin(scales + num_groups * sizeof(float), row_bytes);
#pragma GCC unroll 2
    for (uint32_t line = 0; line < kLines; ++line) {
#pragma GCC unroll 4
      for (int tile = 0; tile < kTiles; ++tile) {
        const char* from = tiles + tile * tile_bytes + kScaleLineBytes + line * kLineBytes;
        __builtin_prefetch(from + ahead, 0, kLocality);
        __builtin_prefetch(from + kLines * kLineBytes + ahead, 0, kLocality);
        const __m512i lines[2] = {_mm512_load_si512(from), _mm512_load_si512(from + kLines * kLineBytes)};
#pragma GCC unroll 2
        for (uint32_t index = 0; index < Weights::kQuadsPerLine; ++index) {
          const __m512i weights[2] = {Weights::Quad(lines[0], index), Weights::Quad(lines[1], index)};
          sums.Add(tile, weights, inputs + (line + index * kLines) * kQuad, row_bytes);
        }
      }
    }
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      __builtin_prefetch(tiles + tile * tile_bytes + ahead, 0, kLocality);
      sums.AddTo(totals, tile, tiles + tile * tile_bytes, scales, row_bytes);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        StoreOutputs(Avx512{totals[row][tile][half]},
                     block.first_output + static_cast<uint32_t>(tile * 2 + half) * kLanes, args.end_output,
                     block.outputs[row]);
      }
    }
  }
}

// With few rows, several tiles keep the multipliers busy, and memory too: several streams get more of its
// bandwidth. With more rows, one or two tiles make the most of each loaded input; totals, which are rarely
// used, then leave the registers.
template <int kParts>
struct TilesAtOnce {
  template <int kRows>
  static constexpr int kAtOnce = kRows* kParts <= 2   ? 4
                                 : kRows* kParts <= 4 ? 2
                                                      : 1;
};

template <typename Weights, int kParts>
void Multiply(const ProductArgs& args) {
  ForProductBlocks<kMaxRows<kParts>, TilesAtOnce<kParts>>(
      args, NumGroups(args.depth) * Weights::kGroupBytes,
      [&](auto rows, auto tiles, const ProductBlock& block) {
        constexpr int kRows = decltype(rows)::kValue;
        constexpr int kTiles = decltype(tiles)::kValue;
        if (block.first_row == 0) {
          MultiplyBlock<Weights, kParts, kRows, kTiles, true>(args, block);
        } else {
          MultiplyBlock<Weights, kParts, kRows, kTiles, false>(args, block);
        }
      });
}

template <typename Weights, int kParts>
ProductKernel MakeProduct(const WeightLayout& layout) {
  ProductKernel product;
  product.layout = layout;
  product.prepared_bytes = PreparedBytes<kParts>;
  product.prepare = Prepare<kParts, Weights::kOffsetBits>;
  product.multiply = Multiply<Weights, kParts>;
  return product;
}

// Codes of files. Those of 8 bits are signed: their sign is turned, and sums begin with what that adds.
struct VnniCodes {
  static constexpr uint32_t kOutputs = 16;
  static constexpr int kVectors = 2;
  using Codes = __m512i;
  using Sums = __m512i;
  using Floats = __m512;

  static TANDEM_INLINE Codes Load(const char* line) { return _mm512_loadu_si512(line); }
  static TANDEM_INLINE Codes And(Codes codes, uint8_t byte) {
    return _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(byte)));
  }
  static TANDEM_INLINE Codes Or(Codes a, Codes b) { return _mm512_or_si512(a, b); }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftLeft(Codes codes) {
    return _mm512_slli_epi16(codes, kBits);
  }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftRight(Codes codes) {
    return _mm512_srli_epi16(codes, kBits);
  }

  static TANDEM_INLINE Codes Signed(Codes codes) { return _mm512_xor_si512(codes, _mm512_set1_epi8(-128)); }
  template <int kBits, int kFirst, int kCount>
  static TANDEM_INLINE void Dot(const Codes (&codes)[kVectors][kQuads], const int8_t* inputs,
                                const int32_t* begin, Sums (&sums)[kVectors]) {
    sums[0] = sums[1] = kBits == 8 ? _mm512_set1_epi32(*begin) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int quad = kFirst; quad < kFirst + kCount; ++quad) {
      int32_t word;
      __builtin_memcpy(&word, inputs + quad * 4, sizeof(word));
      const __m512i input = _mm512_set1_epi32(word);
      sums[0] = _mm512_dpbusd_epi32(sums[0], codes[0][quad], input);
      sums[1] = _mm512_dpbusd_epi32(sums[1], codes[1][quad], input);
    }
  }

  static TANDEM_INLINE Floats ToFloats(Sums sums) {
    return _mm512_cvtepi32_ps(sums);
  }
  static TANDEM_INLINE Floats LoadFloats(const float* from) {
    return _mm512_loadu_ps(from);
  }
  static TANDEM_INLINE Floats BroadcastFloat(const float* from) {
    return _mm512_set1_ps(*from);
  }
  static TANDEM_INLINE Floats Multiply(Floats a, Floats b) {
    return _mm512_mul_ps(a, b);
  }
  static TANDEM_INLINE Floats Fma(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static TANDEM_INLINE Floats NegativeFma(Floats a, Floats b, Floats c) {
    return _mm512_fnmadd_ps(a, b, c);
  }
  static TANDEM_INLINE void StoreFloats(Floats x, float* to) {
    _mm512_storeu_ps(to, x);
  }
};

}  // namespace

const KernelTable& Avx512VnniKernels() {
  static const KernelTable kTable = [] {
    KernelTable table = Avx512Kernels();
    const auto product = [&](WeightFormat format) -> ProductKernel& {
      return table.products[static_cast<int>(format)];
    };
    product(WeightFormat::kInt8) = MakeProduct<ByteWeights, 2>(Int8OffsetTiles());
    product(WeightFormat::kInt4) = MakeProduct<HalfByteWeights, 2>(Int4OffsetTiles());
    product(WeightFormat::kW8A8) = MakeProduct<ByteWeights, 1>(Int8OffsetTiles());
    product(WeightFormat::kW4A8) = MakeProduct<HalfByteWeights, 1>(Int4OffsetTiles());
    SetFileCodeProduct<Avx512, VnniCodes>(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem

#include <immintrin.h>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/product_blocks.h"
#include "common/engine/cpu/vector_templates.h"
#include "common/engine/cpu/weight_layouts.h"

// Products of bfloat16 pairs (kernel_table.h) on AVX-512, written once for a way P to multiply. One way is
// VDPBF16PS, which adds the second product of a pair and then the first, each rounded. The other is two fused
// multiply-adds, which are twice as fast on Intel's processors, whose VDPBF16PS takes four times as long as a
// multiply-add.
//
// Both treat numbers below the normal range as zeros: VDPBF16PS always, multiply-adds if MXCSR says so.

namespace tandem {
namespace {

// Inputs of a block. Its even and odd inputs have separate sums.
constexpr uint32_t kBlockInputs = 32;
// A row has sums for 2 chains and the 2 halves of a tile. 24 sums stay in registers.
constexpr int kMaxRows = 6;
constexpr int kMaxSums = 24;
constexpr uint32_t kPairsPerChain = kBlockInputs / 4;
// A line of weights: pairs of 16 outputs.
constexpr size_t kLineBytes = 64;
constexpr size_t kBlockBytes = kBlockInputs * kTileOutputs * sizeof(uint16_t);

constexpr uint32_t NumBlocks(uint32_t depth) {
  return (depth + kBlockInputs - 1) / kBlockInputs;
}

// 32 inputs rounded to bfloat16, the nearest, ties to even.
TANDEM_INLINE __m512i RoundBlock(const float* inputs, uint32_t count) {
  const __mmask16 first = count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
  const __mmask16 second = count >= 32   ? 0xffff
                           : count <= 16 ? __mmask16{0}
                                         : static_cast<__mmask16>((1u << (count - 16)) - 1);
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(second, inputs + 16),
                                      _mm512_maskz_loadu_ps(first, inputs));
}

// The inputs of a block in the order of the lines of weights: for j, then chain, the pair of inputs 4 j +
// chain + 2 and 4 j + chain.
TANDEM_INLINE __m512i InChains(__m512i block) {
  alignas(64) static constexpr uint16_t kOrder[32] = {2,  0,  3,  1,  6,  4,  7,  5,  10, 8,  11,
                                                      9,  14, 12, 15, 13, 18, 16, 19, 17, 22, 20,
                                                      23, 21, 26, 24, 27, 25, 30, 28, 31, 29};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), block);
}

// Multiplies with VDPBF16PS. Prepared inputs of a block: its pairs.
struct DotProducts {
  static constexpr size_t kPairBytes = 4;
  struct Weights {
    __m512bh pairs;
  };

  static TANDEM_INLINE void StorePairs(__m512i pairs, char* to) { _mm512_storeu_si512(to, pairs); }
  static TANDEM_INLINE Weights Load(const char* line) { return {(__m512bh)_mm512_load_si512(line)}; }
  static TANDEM_INLINE __m512 Add(__m512 sum, const Weights& weights, const char* pair) {
    int32_t both;
    __builtin_memcpy(&both, pair, sizeof(both));
    return _mm512_dpbf16_ps(sum, weights.pairs, (__m512bh)_mm512_set1_epi32(both));
  }
};

// Multiplies with fused multiply-adds. Prepared inputs of a block: its pairs, as floats.
struct MultiplyAdds {
  static constexpr size_t kPairBytes = 8;
  struct Weights {
    __m512 first;
    __m512 second;
  };

  static TANDEM_INLINE void StorePairs(__m512i pairs, char* to) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(pairs, 1));
    _mm512_storeu_si512(to, _mm512_slli_epi32(low, 16));
    _mm512_storeu_si512(to + 64, _mm512_slli_epi32(high, 16));
  }
  static TANDEM_INLINE Weights Load(const char* line) {
    const __m512i pairs = _mm512_load_si512(line);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  static TANDEM_INLINE __m512 Add(__m512 sum, const Weights& weights, const char* pair) {
    float inputs[2];
    __builtin_memcpy(inputs, pair, sizeof(inputs));
    sum = _mm512_fmadd_ps(_mm512_set1_ps(inputs[1]), weights.second, sum);
    return _mm512_fmadd_ps(_mm512_set1_ps(inputs[0]), weights.first, sum);
  }
};

template <typename P>
constexpr size_t RowBytes(uint32_t depth) {
  return NumBlocks(depth) * (kBlockInputs / 2) * P::kPairBytes;
}

template <typename P>
uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  return uint64_t{max_rows} * RowBytes<P>(depth);
}

template <typename P>
void Prepare(const PrepareArgs& args) {
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    const float* input = args.inputs + row * args.input_stride;
    char* to = static_cast<char*>(args.prepared) + row * RowBytes<P>(args.depth);
    for (uint32_t column = args.begin_column; column < args.end_column; column += kBlockInputs) {
      P::StorePairs(InChains(RoundBlock(input + column, args.end_column - column)),
                    to + column / 2 * P::kPairBytes);
    }
  }
}

// While an object of this class exists, numbers below the normal range are zeros.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZeros); }
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZeros = 0x0040;
  const unsigned before_;
};

// `kTiles` tiles times `kRows` rows: the sums of a block stay in registers.
template <typename P, int kRows, int kTiles>
void MultiplyBlock(const ProductArgs& args, const ProductBlock& block_of_rows) {
  // How many bytes ahead weights are prefetched.
  constexpr size_t kPrefetchBytes = 1024;
  constexpr size_t kPairBytes = P::kPairBytes;
  const uint32_t num_blocks = NumBlocks(args.depth);
  const size_t tile_bytes = num_blocks * kBlockBytes;
  const size_t row_bytes = RowBytes<P>(args.depth);
  const char* const inputs = static_cast<const char*>(args.prepared) + block_of_rows.first_row * row_bytes;
  __m512 totals[kRows][kTiles][2];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      totals[row][tile][0] = _mm512_setzero_ps();
      totals[row][tile][1] = _mm512_setzero_ps();
    }
  }
  for (uint32_t block = 0; block < num_blocks; ++block) {
    __m512 sums[2][kRows][kTiles][2];
#pragma GCC unroll 2
    for (int chain = 0; chain < 2; ++chain) {
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
        for (int tile = 0; tile < kTiles; ++tile) {
          sums[chain][row][tile][0] = _mm512_setzero_ps();
          sums[chain][row][tile][1] = _mm512_setzero_ps();
        }
      }
    }
    const char* line = block_of_rows.tiles + block * kBlockBytes;
    const char* pair = inputs + block * (kBlockInputs / 2) * kPairBytes;
    // Two rounds at a time leave fewer loop instructions between the multiplications.
#pragma GCC unroll 2
    for (uint32_t j = 0; j < kPairsPerChain; ++j, line += 4 * kLineBytes, pair += 2 * kPairBytes) {
#pragma GCC unroll 2
      for (int chain = 0; chain < 2; ++chain) {
#pragma GCC unroll 4
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            const char* from = line + tile * tile_bytes + (chain * 2 + half) * kLineBytes;
            __builtin_prefetch(from + kPrefetchBytes);
            const typename P::Weights weights = P::Load(from);
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) {
              __m512& sum = sums[chain][row][tile][half];
              sum = P::Add(sum, weights, pair + row * row_bytes + chain * kPairBytes);
            }
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
          totals[row][tile][half] = _mm512_add_ps(
              totals[row][tile][half], _mm512_add_ps(sums[0][row][tile][half], sums[1][row][tile][half]));
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
        const uint32_t output = block_of_rows.first_output + static_cast<uint32_t>(tile * 2 + half) * kLanes;
        if (output >= args.end_output) continue;
        const uint32_t left = args.end_output - output;
        const __mmask16 mask = left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
        _mm512_mask_storeu_ps(block_of_rows.outputs[row] + output, mask, totals[row][tile][half]);
      }
    }
  }
}

// With few rows, several tiles keep the multipliers busy.
struct TilesAtOnce {
  template <int kRows>
  static constexpr int kAtOnce = kMaxSums / (4 * kRows) >= 4   ? 4
                                 : kMaxSums / (4 * kRows) >= 2 ? 2
                                                               : 1;
};

// Not inlined, so that the compiler moves no operation to a place where numbers below the normal range are
// not zeros.
template <typename P>
__attribute__((noinline)) void MultiplyAll(const ProductArgs& args) {
  ForProductBlocks<kMaxRows, TilesAtOnce>(
      args, NumBlocks(args.depth) * kBlockBytes, [&](auto rows, auto tiles, const ProductBlock& block) {
        MultiplyBlock<P, decltype(rows)::kValue, decltype(tiles)::kValue>(args, block);
      });
}

template <typename P>
void Multiply(const ProductArgs& args) {
  const WithoutSubnormals without_subnormals;
  MultiplyAll<P>(args);
}

template <typename P>
KernelTable MakeTable() {
  KernelTable table = Avx512VnniKernels();
  table.name = "avx512-bf16";
  ProductKernel& product = table.products[static_cast<int>(WeightFormat::kBf16)];
  product.layout = Bf16Chains();
  product.input_bits = 8;
  product.prepared_bytes = PreparedBytes<P>;
  product.prepare = Prepare<P>;
  product.multiply = Multiply<P>;
  return table;
}

}  // namespace

const KernelTable& Avx512Bf16Kernels() {
  static const KernelTable kTable = MakeTable<DotProducts>();
  return kTable;
}

const KernelTable& Avx512Bf16MultiplyAddKernels() {
  static const KernelTable kTable = MakeTable<MultiplyAdds>();
  return kTable;
}

}  // namespace tandem

#include <immintrin.h>

#include <new>

#include "common/engine/cpu/amx_integer_products.h"
#include "common/engine/cpu/amx_tiles.h"
#include "common/engine/cpu/integer_layouts.h"
#include "common/engine/cpu/integer_products.h"

// Products of integers on AMX tiles. A tile has 16 rows of 64 bytes, and an instruction multiplies two tiles.
//
// An input is a 15-bit integer, 128 * high + low, with high and low of 8 bits. The two are in neighbouring
// rows of an input tile, so a tile holds 8 rows of inputs for one group of columns, and their sums are in
// neighbouring rows of the output tile. The sums are exact integers, so
//
//   128 * (sum over k of high * weight) + (sum over k of low * weight)
//
// is the sum that every other instruction set computes (kernel_table.h). After each group, the sums are
// stored and loaded into vectors, which scale them and add them to the outputs, while the tiles compute the
// next sums.

namespace tandem {
namespace {

// Rows of inputs in a tile.
constexpr uint32_t kBlockRows = kTileRows / 2;
// A block's tile of inputs for one group, and the line with the scales of its rows.
constexpr size_t kStepBytes = kTileBytes + 64;

// Prepared inputs: for each [rows / 8][groups] a tile and 8 scales. Row 2 r of the tile has the high parts of
// row r, row 2 r + 1 the low parts.
TANDEM_INLINE size_t BlockBytes(uint32_t depth) {
  return NumGroups(depth) * kStepBytes;
}

uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  return (uint64_t{max_rows} + kBlockRows - 1) / kBlockRows * BlockBytes(depth);
}

// Rounds 16 inputs and stores their parts.
TANDEM_INLINE void SplitInputs(__m512 inputs, float inverse, char* high_part, char* low_part) {
  // Adding 1.5 * 2^23 rounds to an integer, in the low bits of the sum.
  const __m512 rounder = _mm512_set1_ps(12582912.0f);
  const __m512 rounded = _mm512_fmadd_ps(inputs, _mm512_set1_ps(inverse), rounder);
  const __m512i whole = _mm512_sub_epi32(_mm512_castps_si512(rounded), _mm512_castps_si512(rounder));
  const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
  const __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 7));
  _mm_store_si128(reinterpret_cast<__m128i*>(high_part), _mm512_cvtepi32_epi8(high));
  _mm_store_si128(reinterpret_cast<__m128i*>(low_part), _mm512_cvtepi32_epi8(low));
}

// Writes one row's `count` inputs of one group to its two rows of a tile. Returns their scale.
template <int kGreatest>
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
  const InputScale scale = ScaleOfInputs<kGreatest>(_mm512_reduce_max_epu32(greatest));
  for (int i = 0; i < kVectors; ++i) {
    const __m512 used = scale.inverse == 0.0f ? _mm512_setzero_ps() : inputs[i];
    SplitInputs(used, scale.inverse, to + i * 16, to + kTileStride + i * 16);
  }
  return scale.scale;
}

template <int kGreatest>
void Prepare(const PrepareArgs& args) {
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    const float* input = args.inputs + row * args.input_stride;
    char* const block = static_cast<char*>(args.prepared) + row / kBlockRows * BlockBytes(args.depth);
    for (uint32_t column = args.begin_column; column < args.end_column; column += kInputGroup) {
      const uint32_t left = args.end_column - column;
      char* const step = block + column / kInputGroup * kStepBytes;
      reinterpret_cast<float*>(step + kTileBytes)[row % kBlockRows] = PrepareGroup<kGreatest>(
          input + column, left < kInputGroup ? left : kInputGroup, step + row % kBlockRows * 2 * kTileStride);
    }
  }
}

// The two tiles of a group of weights. They are stored as tiles.
struct Int8Tiles {
  static constexpr size_t kGroupBytes = kInt8GroupBytes;
  struct Scratch {};

  static TANDEM_INLINE const char* Make(const char* group, Scratch* /*scratch*/) {
    return group + kScaleLineBytes;
  }
};

// The same for Int4AmxTiles, which are unpacked to tiles in scratch memory.
struct Int4Tiles {
  static constexpr size_t kGroupBytes = kInt4GroupBytes;
  struct Scratch {
    alignas(64) char tiles[2 * kTileBytes];
  };

  static TANDEM_INLINE const char* Make(const char* group, Scratch* scratch) {
    const __m512i mask = _mm512_set1_epi8(0x0f);
    // The values of the 16 half bytes.
    const __m512i values =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const char* from = group + kScaleLineBytes + half * (kTileBytes / 2);
      char* to = scratch->tiles + half * kTileBytes;
#pragma GCC unroll 8
      for (int line = 0; line < 8; ++line) {
        const __m512i both = _mm512_load_si512(from + line * 64);
        const __m512i low = _mm512_and_si512(both, mask);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        _mm512_store_si512(to + line * 64, _mm512_shuffle_epi8(values, low));
        _mm512_store_si512(to + (line + 8) * 64, _mm512_shuffle_epi8(values, high));
      }
    }
    CompleteWrites();
    return scratch->tiles;
  }
};

// Sums of the two halves of a tile of outputs.
struct GroupSums {
  alignas(64) int32_t halves[2][kTileBytes / sizeof(int32_t)];
};

TANDEM_INLINE void LoadWeights(const char* tiles) {
  _tile_loadd(6, tiles, kTileStride);
  _tile_loadd(7, tiles + kTileBytes, kTileStride);
}

// The sums of a group for a block of rows, in tiles 0 and 1 or 2 and 3.
template <int kPair>
TANDEM_INLINE void MultiplyGroup(const char* inputs) {
  if constexpr (kPair == 0) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(4, inputs, kTileStride);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
  } else {
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(5, inputs, kTileStride);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
}

template <int kPair>
TANDEM_INLINE void StoreGroup(GroupSums* sums) {
  if constexpr (kPair == 0) {
    _tile_stored(0, sums->halves[0], kTileStride);
    _tile_stored(1, sums->halves[1], kTileStride);
  } else {
    _tile_stored(2, sums->halves[0], kTileStride);
    _tile_stored(3, sums->halves[1], kTileStride);
  }
}

// One step of MultiplyPart: a group of weights and a block of rows, and where to add their sums.
struct Item {
  const char* group;   // Begins with the scales of its outputs, 16 and 16.
  const char* inputs;  // A tile, then the scales of its rows.
  float* totals;       // [kBlockRows][kTileOutputs]
};

template <uint32_t kRows>
TANDEM_INLINE void AddSums(const GroupSums& sums, const Item& item) {
  const __m512i pairs = _mm512_load_si512(item.group);
  const __m512 scales[2] = {
      _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
      _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  const auto* input_scales = reinterpret_cast<const float*>(item.inputs + kTileBytes);
#pragma GCC unroll 8
  for (uint32_t row = 0; row < kRows; ++row) {
    const __m512 input_scale = _mm512_set1_ps(input_scales[row]);
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; ++half) {
      const int32_t* const parts = sums.halves[half] + row * 2 * kHalfOutputs;
      float* const total = item.totals + row * kTileOutputs + half * kHalfOutputs;
      const __m512i high = _mm512_slli_epi32(_mm512_load_si512(parts), 7);
      const __m512i sum = _mm512_add_epi32(high, _mm512_load_si512(parts + kHalfOutputs));
      _mm512_store_ps(total,
                      _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scales[half], input_scale),
                                      _mm512_load_ps(total)));
    }
  }
}

// Stores the outputs that are not padding.
TANDEM_INLINE void StoreTotals(const float* totals, uint32_t num_rows, float* const* outputs,
                               uint32_t first_output, uint32_t end_output) {
  for (uint32_t row = 0; row < num_rows; ++row, totals += kTileOutputs) {
    for (uint32_t i = 0; i < kTileOutputs && first_output + i < end_output; i += kHalfOutputs) {
      _mm512_mask_storeu_ps(outputs[row] + first_output + i, OutputMask(first_output + i, end_output),
                            _mm512_load_ps(totals + i));
    }
  }
}

// How many bytes ahead weights are prefetched: two groups of int8.
constexpr size_t kPrefetchBytes = 2 * kInt8GroupBytes;
constexpr uint32_t kMostRows = kMostPairs * 2 * kBlockRows;
// How many tiles of weights few rows go through together: several streams get more of the memory's bandwidth.
constexpr uint32_t kMostTiles = 4;

// Some rows and some tiles of weights.
struct Part {
  const char* inputs;  // The first block's.
  uint32_t num_rows;
  const char* weights;  // The first tile.
  uint32_t num_tiles;
  float* const* outputs;  // The first row's, and so on.
  uint32_t first_output;
};

// A thread's sums of a part. They are allocated on first use. Thread-local storage itself would take room in
// the stack of every thread, also of those that never multiply, and some libraries' threads have small
// stacks.
class Totals {
 public:
  Totals() : data_(static_cast<float*>(::operator new(kNumBytes, kAlignment))) {}
  ~Totals() { ::operator delete(data_, kAlignment); }
  Totals(const Totals&) = delete;
  Totals& operator=(const Totals&) = delete;

  static float* OfThread() {
    static thread_local Totals totals;
    return totals.data_;
  }

 private:
  static constexpr size_t kNumBytes = size_t{kMostRows} * kTileOutputs * sizeof(float);
  static constexpr std::align_val_t kAlignment{64};

  float* const data_;
};

// Goes through the groups of a part's weights in order, in each group through all tiles, and for each tile
// through all blocks of rows, while its weights stay in two tiles. While the sums of one item are computed,
// those of the previous item are stored, and those of the one before that are scaled and added, so that none
// waits for another.
template <typename Weights, uint32_t kRows>
void MultiplyPart(const ProductArgs& args, const Part& part) {
  constexpr uint32_t kGroupLines = Weights::kGroupBytes / 64;
  constexpr size_t kBlockTotals = size_t{kBlockRows} * kTileOutputs;
  float* const totals = Totals::OfThread();
  typename Weights::Scratch scratch;
  GroupSums sums[2];
  const size_t block_bytes = BlockBytes(args.depth);
  const uint32_t num_groups = NumGroups(args.depth);
  const size_t tile_bytes = num_groups * Weights::kGroupBytes;
  const uint32_t num_blocks = (part.num_rows + kBlockRows - 1) / kBlockRows;
  const uint32_t lines_at_once = (kGroupLines + num_blocks - 1) / num_blocks;
  const uint32_t num_items = num_groups * part.num_tiles * num_blocks;
  __builtin_memset(totals, 0, part.num_tiles * num_blocks * kBlockTotals * sizeof(float));
  Item next = {part.weights, part.inputs, totals};
  uint32_t block = 0;
  uint32_t tile = 0;
  const char* ahead = nullptr;
  const auto start = [&]() __attribute__((always_inline)) {
    if (block == 0) {
      LoadWeights(Weights::Make(next.group, &scratch));
      ahead = next.group + kPrefetchBytes;
    }
    for (uint32_t line = 0; line < lines_at_once; ++line) _mm_prefetch(ahead + line * 64, _MM_HINT_T0);
    ahead += lines_at_once * 64;
  };
  const auto go_on = [&]() __attribute__((always_inline)) {
    next.inputs += block_bytes;
    next.totals += kBlockTotals;
    if (++block < num_blocks) return;
    block = 0;
    next.inputs -= num_blocks * block_bytes;
    next.group += tile_bytes;
    if (++tile < part.num_tiles) return;
    tile = 0;
    next.inputs += kStepBytes;
    next.group += Weights::kGroupBytes - part.num_tiles * tile_bytes;
    next.totals = totals;
  };
  Item even = next;
  Item odd = next;
  for (uint32_t item = 0; item < num_items + 2; item += 2) {
    const Item even_before = even;
    if (item < num_items) {
      start();
      MultiplyGroup<0>(next.inputs);
      even = next;
      go_on();
    }
    if (item > 0) {
      if (item - 1 < num_items) StoreGroup<1>(&sums[1]);
      AddSums<kRows>(sums[0], even_before);
    }
    const Item odd_before = odd;
    if (item + 1 < num_items) {
      start();
      MultiplyGroup<1>(next.inputs);
      odd = next;
      go_on();
    }
    if (item < num_items) StoreGroup<0>(&sums[0]);
    if (item > 0 && item - 1 < num_items) AddSums<kRows>(sums[1], odd_before);
  }
  for (uint32_t i = 0; i < part.num_tiles; ++i) {
    StoreTotals(totals + i * num_blocks * kBlockTotals, part.num_rows, part.outputs,
                part.first_output + i * kTileOutputs, args.end_output);
  }
}

// Instantiates the number of rows. With several blocks, all rows of every block are computed, and rows beyond
// the last are not stored.
template <typename Weights, uint32_t kRows = kBlockRows>
TANDEM_INLINE void DispatchRows(const ProductArgs& args, const Part& part) {
  if (part.num_rows >= kRows) {
    MultiplyPart<Weights, kRows>(args, part);
  } else if constexpr (kRows > 1) {
    DispatchRows<Weights, kRows - 1>(args, part);
  }
}

template <typename Weights>
void Multiply(const ProductArgs& args) {
  ConfigureTiles(2 * args.num_rows);
  const size_t tile_bytes = NumGroups(args.depth) * Weights::kGroupBytes;
  const uint32_t most_rows = PairsAtOnce(BlockBytes(args.depth)) * 2 * kBlockRows;
  const uint32_t most_tiles = args.num_rows <= 2 * kBlockRows ? kMostTiles : 1;
  for (uint32_t row = 0; row < args.num_rows; row += most_rows) {
    Part part;
    part.inputs = static_cast<const char*>(args.prepared) + row / kBlockRows * BlockBytes(args.depth);
    part.num_rows = args.num_rows - row < most_rows ? args.num_rows - row : most_rows;
    part.outputs = args.outputs + row;
    for (uint32_t tile = 0; tile < args.num_tiles; tile += most_tiles) {
      part.weights = static_cast<const char*>(args.tiles) + tile * tile_bytes;
      part.num_tiles = args.num_tiles - tile < most_tiles ? args.num_tiles - tile : most_tiles;
      part.first_output = args.first_output + tile * kTileOutputs;
      DispatchRows<Weights>(args, part);
    }
  }
  // Empty tiles need not be saved when the kernel switches threads.
  _tile_release();
}

template <typename Weights, int kGreatest>
ProductKernel MakeProduct(const WeightLayout& layout) {
  ProductKernel product;
  product.layout = layout;
  product.prepared_bytes = PreparedBytes;
  product.prepare = Prepare<kGreatest>;
  product.multiply = Multiply<Weights>;
  return product;
}

}  // namespace

void SetAmxIntegerProducts(KernelTable* table) {
  const auto product = [&](WeightFormat format) -> ProductKernel& {
    return table->products[static_cast<int>(format)];
  };
  product(WeightFormat::kInt8) = MakeProduct<Int8Tiles, kGreatestInput>(Int8AmxTiles());
  product(WeightFormat::kInt4) = MakeProduct<Int4Tiles, kGreatestInput>(Int4AmxTiles());
  product(WeightFormat::kW8A8) = MakeProduct<Int8Tiles, kGreatestShortInput>(Int8AmxTiles());
  product(WeightFormat::kW4A8) = MakeProduct<Int4Tiles, kGreatestShortInput>(Int4AmxTiles());
}

}  // namespace tandem

#include <immintrin.h>

#include "common/engine/cpu/amx_integer_products.h"
#include "common/engine/cpu/amx_tiles.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/weight_layouts.h"

// Products on AMX tiles. A tile has 16 rows of 64 bytes, and an instruction multiplies two tiles.
//
// The tiles hold bfloat16 numbers; inputs are rounded to them. A sum takes the columns 32 at a time,
// ascending. How the instruction adds the 32 terms is up to the processor, and the same for every row of a
// tile. Rows do not influence one another: a row's result does not depend on its place in the tile or on the
// other rows (law 1).

namespace tandem {
namespace {

// Rows of inputs in a tile.
constexpr uint32_t kBlockRows = kTileRows;
// Columns that a tile of inputs spans, and inputs that a tile of weights spans.
constexpr uint32_t kTileDepth = 32;

constexpr uint32_t NumSteps(uint32_t depth) {
  return (depth + kTileDepth - 1) / kTileDepth;
}

// Prepared inputs: [rows / kBlockRows][steps][16][32].
constexpr size_t BlockBytes(uint32_t depth) {
  return NumSteps(depth) * kTileBytes;
}

uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  // Products read two blocks at a time.
  return (uint64_t{max_rows} + 2 * kBlockRows - 1) / (2 * kBlockRows) * 2 * BlockBytes(depth);
}

void Prepare(const PrepareArgs& args) {
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    const float* input = args.inputs + row * args.input_stride;
    char* block = static_cast<char*>(args.prepared) + row / kBlockRows * BlockBytes(args.depth) +
                  row % kBlockRows * kTileStride;
    for (uint32_t column = args.begin_column; column < args.end_column; column += kTileDepth) {
      const uint32_t left = args.end_column - column;
      const __mmask16 first_mask = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
      const __mmask16 second_mask = left >= 32  ? 0xffff
                                    : left > 16 ? static_cast<__mmask16>((1u << (left - 16)) - 1)
                                                : __mmask16{0};
      const __m512 first = _mm512_maskz_loadu_ps(first_mask, input + column);
      const __m512 second = _mm512_maskz_loadu_ps(second_mask, input + column + 16);
      const __m512i high = (__m512i)_mm512_cvtne2ps_pbh(second, first);
      char* to = block + column / kTileDepth * kTileBytes;
      _mm512_store_si512(to, high);
    }
  }
}

// Stores the outputs of a tile's rows that are not padding.
inline void StoreSums(const float* sums, uint32_t num_rows, float* const* outputs, uint32_t first_output,
                      uint32_t end_output) {
  const __mmask16 mask = OutputMask(first_output, end_output);
  for (uint32_t row = 0; row < num_rows; ++row) {
    const __m512 sum = _mm512_load_ps(sums + row * kHalfOutputs);
    _mm512_mask_storeu_ps(outputs[row] + first_output, mask, sum);
  }
}

// Where the tiles of sums go: to outputs themselves, or to scratch memory.
struct SumsPlace {
  float* first;        // Of the first tile.
  size_t row_bytes;    // From one row of a tile to the next.
  size_t half_stride;  // Floats from a tile to the tile of the next 16 outputs.
};

using Sums = float[4][kTileBytes / sizeof(float)];

inline SumsPlace InScratch(Sums& sums) {
  return {sums[0], kTileStride, kTileBytes / sizeof(float)};
}

// The bytes from each row of outputs to the next, or 0 if they are not all equal.
inline size_t RowBytes(float* const* outputs, uint32_t num_rows) {
  if (num_rows < 2) return sizeof(float);
  if (outputs[1] <= outputs[0]) return 0;
  const auto stride = static_cast<size_t>(outputs[1] - outputs[0]);
  for (uint32_t row = 2; row < num_rows; ++row) {
    if (outputs[row] != outputs[0] + row * stride) return 0;
  }
  return stride * sizeof(float);
}

// How many bytes ahead weights are prefetched that come from beyond the second-level cache.
constexpr size_t kPrefetchBytes = 1024;
// Lines of weights that a step uses.
constexpr uint32_t kStepLines = 32;

inline void PrefetchStep(const char* weights) {
  for (uint32_t line = 0; line < kStepLines; ++line) {
    _mm_prefetch(weights + kPrefetchBytes + line * 64, _MM_HINT_T0);
  }
}

// A block of rows times one or two tiles of weights. With two, there are four sums, which keep the multiplier
// busy.
template <int kTiles>
void MultiplyOneBlock(const char* inputs, const char* weights, size_t tile_bytes, uint32_t num_steps,
                      const SumsPlace& place) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const char* second = weights + tile_bytes;
  for (uint32_t step = 0; step < num_steps; ++step) {
    _tile_loadd(4, inputs, kTileStride);
    PrefetchStep(weights);
    _tile_loadd(6, weights, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kTileBytes, kTileStride);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTiles == 2) {
      PrefetchStep(second);
      _tile_loadd(6, second, kTileStride);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, second + kTileBytes, kTileStride);
      _tile_dpbf16ps(3, 4, 7);
    }
    inputs += kTileBytes;
    weights += 2 * kTileBytes;
    second += 2 * kTileBytes;
  }
  _tile_stored(0, place.first, place.row_bytes);
  _tile_stored(1, place.first + place.half_stride, place.row_bytes);
  if constexpr (kTiles == 2) {
    _tile_stored(2, place.first + 2 * place.half_stride, place.row_bytes);
    _tile_stored(3, place.first + 3 * place.half_stride, place.row_bytes);
  }
}

// Two blocks of rows times a tile of weights. `prefetch(step)` prefetches weights that are needed later.
template <typename Prefetch>
inline void MultiplyTwoBlocks(const char* inputs, size_t block_bytes, const char* weights, uint32_t num_steps,
                              float (*sums)[kTileBytes / sizeof(float)], Prefetch prefetch) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const char* second = inputs + block_bytes;
  for (uint32_t step = 0; step < num_steps; ++step) {
    prefetch(step);
    _tile_loadd(4, inputs, kTileStride);
    _tile_loadd(6, weights, kTileStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kTileBytes, kTileStride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, second, kTileStride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    inputs += kTileBytes;
    second += kTileBytes;
    weights += 2 * kTileBytes;
  }
  _tile_stored(0, sums[0], kTileStride);
  _tile_stored(1, sums[1], kTileStride);
  _tile_stored(2, sums[2], kTileStride);
  _tile_stored(3, sums[3], kTileStride);
}

// As many rows as fill one block, or fewer.
void MultiplyOneBlockOfRows(const ProductArgs& args) {
  const uint32_t num_steps = NumSteps(args.depth);
  const size_t tile_bytes = num_steps * 2 * kTileBytes;
  const char* inputs = static_cast<const char*>(args.prepared);
  const char* weights = static_cast<const char*>(args.tiles);
  alignas(64) Sums sums;
  // Sums are outputs, and tiles have as many rows as the product.
  const size_t row_bytes = RowBytes(args.outputs, args.num_rows);
  uint32_t output = args.first_output;
  uint32_t tile = 0;
  for (; tile + 2 <= args.num_tiles; tile += 2) {
    if (row_bytes > 0 && output + 2 * kTileOutputs <= args.end_output) {
      MultiplyOneBlock<2>(inputs, weights, tile_bytes, num_steps,
                          {args.outputs[0] + output, row_bytes, kHalfOutputs});
    } else {
      MultiplyOneBlock<2>(inputs, weights, tile_bytes, num_steps, InScratch(sums));
      for (uint32_t i = 0; i < 4; ++i) {
        StoreSums(sums[i], args.num_rows, args.outputs, output + i * kHalfOutputs, args.end_output);
      }
    }
    weights += 2 * tile_bytes;
    output += 2 * kTileOutputs;
  }
  if (tile == args.num_tiles) return;
  MultiplyOneBlock<1>(inputs, weights, tile_bytes, num_steps, InScratch(sums));
  for (uint32_t i = 0; i < 2; ++i) {
    StoreSums(sums[i], args.num_rows, args.outputs, output + i * kHalfOutputs, args.end_output);
  }
}

constexpr uint32_t kPairRows = 2 * kBlockRows;

// Rows [begin_row, end_row) times one tile of weights. The first rows load the weights into the second-level
// cache. The others find them there, and prefetch the next tile's.
void MultiplyTile(const ProductArgs& args, const char* weights, uint32_t begin_row, uint32_t end_row,
                  uint32_t first_output) {
  constexpr uint32_t kLinesAhead = 8;
  const uint32_t num_steps = NumSteps(args.depth);
  const size_t block_bytes = BlockBytes(args.depth);
  const char* inputs = static_cast<const char*>(args.prepared) + begin_row / kBlockRows * block_bytes;
  const char* next = weights + num_steps * 2 * kTileBytes;
  alignas(64) Sums sums;
  for (uint32_t row = begin_row; row < end_row; row += kPairRows) {
    if (row == begin_row) {
      MultiplyTwoBlocks(inputs, block_bytes, weights, num_steps, sums,
                        [&](uint32_t step) { PrefetchStep(weights + step * 2 * kTileBytes); });
    } else {
      const char* ahead = next + size_t{(row - begin_row) / kPairRows - 1} * num_steps * kLinesAhead * 64;
      MultiplyTwoBlocks(inputs, block_bytes, weights, num_steps, sums, [&](uint32_t step) {
        for (uint32_t line = 0; line < kLinesAhead; ++line) {
          _mm_prefetch(ahead + (step * kLinesAhead + line) * 64, _MM_HINT_T1);
        }
      });
    }
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t first = row + i / 2 * kBlockRows;
      if (first >= end_row) break;
      StoreSums(sums[i], end_row - first < kBlockRows ? end_row - first : kBlockRows, args.outputs + first,
                first_output + i % 2 * kHalfOutputs, args.end_output);
    }
    inputs += 2 * block_bytes;
  }
}

void MultiplyManyRows(const ProductArgs& args) {
  const size_t tile_bytes = NumSteps(args.depth) * 2 * kTileBytes;
  const uint32_t rows_at_once = PairsAtOnce(BlockBytes(args.depth)) * kPairRows;
  for (uint32_t row = 0; row < args.num_rows; row += rows_at_once) {
    const uint32_t end_row = args.num_rows - row < rows_at_once ? args.num_rows : row + rows_at_once;
    for (uint32_t tile = 0; tile < args.num_tiles; ++tile) {
      MultiplyTile(args, static_cast<const char*>(args.tiles) + tile * tile_bytes, row, end_row,
                   args.first_output + tile * kTileOutputs);
    }
  }
}

void Multiply(const ProductArgs& args) {
  ConfigureTiles(args.num_rows < kBlockRows ? args.num_rows : kTileRows);
  if (args.num_rows <= kBlockRows) {
    MultiplyOneBlockOfRows(args);
  } else {
    MultiplyManyRows(args);
  }
  // Empty tiles need not be saved when the kernel switches threads.
  _tile_release();
}

KernelTable MakeAmxKernels() {
  // Every processor with AMX has VNNI, which multiplies the codes of files.
  KernelTable table = Avx512VnniKernels();
  table.name = "amx";
  ProductKernel& product = table.products[static_cast<int>(WeightFormat::kBf16)];
  product.layout = Bf16AmxTiles();
  product.input_bits = 8;
  product.prepared_bytes = PreparedBytes;
  product.prepare = Prepare;
  product.multiply = Multiply;
  SetAmxIntegerProducts(&table);
  return table;
}

}  // namespace

const KernelTable& AmxKernels() {
  static const KernelTable kTable = MakeAmxKernels();
  return kTable;
}

}  // namespace tandem

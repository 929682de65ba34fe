#pragma once

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/vector_templates.h"

// Products with float weights: one chain of fused multiply-adds over k ascending for each output. See
// kernel_templates.h.

namespace tandem {
namespace {

// How many lines ahead weights are prefetched.
inline constexpr uint32_t kPrefetchLines = 16;

// Weights as stored in a packed matrix: one line holds a tile's outputs for one k. LoadPiece reads piece
// `piece` of the line's two vectors.
struct Bf16Weights {
  using Element = uint16_t;
  template <typename V>
  static TANDEM_INLINE void LoadPiece(const Element* line, int piece, typename V::Piece* low,
                                      typename V::Piece* high) {
    V::Piece::LoadBf16Pairs(line + piece * 2 * (kLanes / V::kPieces), low, high);
  }
};

struct F32Weights {
  using Element = float;
  template <typename V>
  static TANDEM_INLINE void LoadPiece(const Element* line, int piece, typename V::Piece* low,
                                      typename V::Piece* high) {
    *low = V::Piece::Load(line + piece * (kLanes / V::kPieces));
    *high = V::Piece::Load(line + kLanes + piece * (kLanes / V::kPieces));
  }
};

// Stores a piece of sums for the outputs from `output` on, without those from `end_output` on.
template <typename Piece>
TANDEM_INLINE void StorePiece(Piece sums, uint32_t lanes, uint32_t output, uint32_t end_output,
                              float* outputs) {
  if (output + lanes <= end_output) {
    Piece::Store(sums, outputs + output);
  } else if (output < end_output) {
    StoreFirst(sums, end_output - output, outputs + output);
  }
}

// Loads the outputs that StorePiece stores; 0 for the others.
template <typename Piece>
TANDEM_INLINE Piece LoadPiece(uint32_t lanes, uint32_t output, uint32_t end_output, const float* outputs) {
  if (output + lanes <= end_output) return Piece::Load(outputs + output);
  if (output < end_output) return LoadFirst<Piece>(outputs + output, end_output - output);
  return Piece::Broadcast(0.0f);
}

// `kRows` rows times pieces `first_piece` to `first_piece` + kPieces - 1 of the vectors of `kTiles` tiles.
// All sums are in registers. They begin with 0 or, if kIsOnto, with the values of the outputs.
template <typename V, typename Weights, bool kIsOnto, int kRows, int kTiles, int kPieces>
TANDEM_INLINE void MultiplyTiles(const typename Weights::Element* tiles, int first_piece,
                                 const ProductArgs& args, const float* inputs, float* const* outputs,
                                 uint32_t first_output) {
  using Element = typename Weights::Element;
  using Piece = typename V::Piece;
  constexpr uint32_t kPieceLanes = kLanes / V::kPieces;
  Piece sums[kRows][kTiles][kPieces][2];
  const float* rows[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    rows[row] = inputs + row * args.input_stride;
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 4
      for (int piece = 0; piece < kPieces; ++piece) {
        if constexpr (kIsOnto) {
          const uint32_t output = first_output + tile * kTileOutputs + (first_piece + piece) * kPieceLanes;
          sums[row][tile][piece][0] = LoadPiece<Piece>(kPieceLanes, output, args.end_output, outputs[row]);
          sums[row][tile][piece][1] =
              LoadPiece<Piece>(kPieceLanes, output + kLanes, args.end_output, outputs[row]);
        } else {
          sums[row][tile][piece][0] = Piece::Broadcast(0.0f);
          sums[row][tile][piece][1] = Piece::Broadcast(0.0f);
        }
      }
    }
  }
  const uint32_t depth = args.depth;
  const size_t tile_size = size_t{depth} * kTileOutputs;
  const Element* line = tiles;
  // Two rounds at a time leave fewer loop instructions between the multiplications.
#pragma GCC unroll 2
  for (uint32_t k = 0; k < depth; ++k, line += kTileOutputs) {
    // After the end of its tile, a stream continues kTiles tiles further.
    const size_t jump = k + kPrefetchLines < depth ? 0 : (kTiles - 1) * tile_size;
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      const Element* tile_line = line + tile * tile_size;
      // The weights come from beyond the nearest caches, one line after another, so they are prefetched.
      __builtin_prefetch(tile_line + kPrefetchLines * kTileOutputs + jump);
#pragma GCC unroll 4
      for (int piece = 0; piece < kPieces; ++piece) {
        Piece low;
        Piece high;
        Weights::template LoadPiece<V>(tile_line, first_piece + piece, &low, &high);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          const Piece input = Piece::Broadcast(rows[row][k]);
          sums[row][tile][piece][0] = Piece::Fma(input, low, sums[row][tile][piece][0]);
          sums[row][tile][piece][1] = Piece::Fma(input, high, sums[row][tile][piece][1]);
        }
        // Loads inputs again for the next piece: keeping them would push sums out of registers.
        if constexpr (kPieces > 1) asm volatile("" ::: "memory");
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 4
      for (int piece = 0; piece < kPieces; ++piece) {
        const uint32_t output = first_output + tile * kTileOutputs + (first_piece + piece) * kPieceLanes;
        StorePiece(sums[row][tile][piece][0], kPieceLanes, output, args.end_output, outputs[row]);
        StorePiece(sums[row][tile][piece][1], kPieceLanes, output + kLanes, args.end_output, outputs[row]);
      }
    }
  }
}

// Chooses how much of a tile, or how many tiles at a time, leave all sums in registers. With few rows, many
// tiles keep the multipliers busy; with many rows, there is room for a piece of a tile.
template <typename V, typename Weights, bool kIsOnto, int kRows>
void MultiplyRows(const typename Weights::Element* tiles, uint32_t num_tiles, const ProductArgs& args,
                  const float* inputs, float* const* outputs, uint32_t first_output) {
  constexpr int kFit = V::kMaxSums / (2 * kRows);
  constexpr int kPieces = kFit >= V::kPieces ? V::kPieces : 1;
  constexpr int kTiles = kFit >= 4 * kPieces ? 4 : kFit >= 2 * kPieces ? 2 : 1;
  const size_t tile_size = size_t{args.depth} * kTileOutputs;
  uint32_t tile = 0;
  for (; tile + kTiles <= num_tiles; tile += kTiles) {
    for (int piece = 0; piece < V::kPieces; piece += kPieces) {
      MultiplyTiles<V, Weights, kIsOnto, kRows, kTiles, kPieces>(
          tiles + tile * tile_size, piece, args, inputs, outputs, first_output + tile * kTileOutputs);
    }
  }
  for (; tile < num_tiles; ++tile) {
    for (int piece = 0; piece < V::kPieces; piece += kPieces) {
      MultiplyTiles<V, Weights, kIsOnto, kRows, 1, kPieces>(tiles + tile * tile_size, piece, args, inputs,
                                                            outputs, first_output + tile * kTileOutputs);
    }
  }
}

template <typename V, typename Weights, bool kIsOnto, int kRows>
TANDEM_INLINE void DispatchRows(int num_rows, const typename Weights::Element* tiles, uint32_t num_tiles,
                                const ProductArgs& args, const float* inputs, float* const* outputs,
                                uint32_t first_output) {
  if (num_rows == kRows) {
    MultiplyRows<V, Weights, kIsOnto, kRows>(tiles, num_tiles, args, inputs, outputs, first_output);
  } else if constexpr (kRows > 1) {
    DispatchRows<V, Weights, kIsOnto, kRows - 1>(num_rows, tiles, num_tiles, args, inputs, outputs,
                                                 first_output);
  }
}

// Reads the weights once: a few tiles at a time, which stay in the cache for all chunks of rows.
template <typename V, typename Weights, bool kIsOnto>
TANDEM_INLINE void MultiplyFloats(const ProductArgs& args) {
  constexpr uint32_t kGroup = 4;
  const auto* tiles = static_cast<const typename Weights::Element*>(args.tiles);
  const uint32_t num_chunks = (args.num_rows + V::kMaxRows - 1) / V::kMaxRows;
  for (uint32_t tile = 0; tile < args.num_tiles; tile += kGroup) {
    const uint32_t num_tiles = args.num_tiles - tile < kGroup ? args.num_tiles - tile : kGroup;
    uint32_t row = 0;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      // Chunks as equal as possible.
      const uint32_t num_rows = (args.num_rows - row) / (num_chunks - chunk);
      DispatchRows<V, Weights, kIsOnto, V::kMaxRows>(
          static_cast<int>(num_rows), tiles + size_t{tile} * args.depth * kTileOutputs, num_tiles, args,
          args.inputs + row * args.input_stride, args.outputs + row, args.first_output + tile * kTileOutputs);
      row += num_rows;
    }
  }
}

template <typename V, typename Weights>
void Multiply(const ProductArgs& args) {
  MultiplyFloats<V, Weights, false>(args);
}

// outputs[row][n] continues its chain with the given inputs and weights.
template <typename V>
void MultiplyOnto(const ProductArgs& args) {
  MultiplyFloats<V, F32Weights, true>(args);
}

}  // namespace
}  // namespace tandem

#pragma once

#include "common/engine/cpu/attention_templates.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/vector_templates.h"
#include "common/engine/cpu/weight_layouts.h"

// The kernels, written once over a vector of kLanes floats. Each instruction set's source includes this
// inside its own unnamed namespace-scoped vector type V, so that no two of them share an instantiation.
//
// V provides kMaxRows and kMaxAccumulators (how many rows and vectors a product keeps in registers) and the
// static functions used below, each lane by lane and correctly rounded. A Piece is one of the kPieces parts
// of a V that a product's inner loop works on, itself a vector with the same functions; Join makes a V of
// them.

namespace tandem {
namespace {

// How many lines ahead of their use weights are asked for.
inline constexpr uint32_t kPrefetchLines = 16;

// Weights as they lie in a packed matrix: one line holds a tile's outputs for one k. LoadPiece reads piece
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

// `kTiles` tiles, of their vectors the pieces from `first_piece` on to the number of kPieces, times `kRows`
// rows: all sums in registers.
template <typename V, typename Weights, int kRows, int kTiles, int kPieces>
TANDEM_INLINE void MultiplyTiles(const typename Weights::Element* tiles, int first_piece,
                                 const ProductArgs& args, const float* inputs, float* const* outputs,
                                 uint32_t first_output) {
  using Element = typename Weights::Element;
  using Piece = typename V::Piece;
  Piece sums[kRows][kTiles][kPieces][2];
  const float* rows[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    rows[row] = inputs + row * args.input_stride;
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 4
      for (int piece = 0; piece < kPieces; ++piece) {
        sums[row][tile][piece][0] = Piece::Broadcast(0.0f);
        sums[row][tile][piece][1] = Piece::Broadcast(0.0f);
      }
    }
  }
  const uint32_t depth = args.depth;
  const size_t tile_size = size_t{depth} * kTileOutputs;
  const Element* line = tiles;
  // Twice at a time takes the loop's own instructions out of the multipliers' way.
#pragma GCC unroll 2
  for (uint32_t k = 0; k < depth; ++k, line += kTileOutputs) {
    // Behind the end of its tile a stream goes on kTiles further.
    const size_t jump = k + kPrefetchLines < depth ? 0 : (kTiles - 1) * tile_size;
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      const Element* tile_line = line + tile * tile_size;
      // The weights come from beyond the nearest caches, one line after another: ask for them in time.
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
        // Inputs are loaded again for the next piece rather than kept, which would push sums out of
        // registers.
        if constexpr (kPieces > 1) asm volatile("" ::: "memory");
      }
    }
  }
  constexpr uint32_t kPieceLanes = kLanes / V::kPieces;
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

// As much of a tile, or as many tiles at a time, as leave the sums in registers: with few rows, many tiles
// keep the multipliers busy; many rows leave room for a piece of a tile.
template <typename V, typename Weights, int kRows>
void MultiplyRows(const typename Weights::Element* tiles, uint32_t num_tiles, const ProductArgs& args,
                  const float* inputs, float* const* outputs, uint32_t first_output) {
  constexpr int kFit = V::kMaxSums / (2 * kRows);
  constexpr int kPieces = kFit >= V::kPieces ? V::kPieces : 1;
  constexpr int kTiles = kFit >= 4 * kPieces ? 4 : kFit >= 2 * kPieces ? 2 : 1;
  const size_t tile_size = size_t{args.depth} * kTileOutputs;
  uint32_t tile = 0;
  for (; tile + kTiles <= num_tiles; tile += kTiles) {
    for (int piece = 0; piece < V::kPieces; piece += kPieces) {
      MultiplyTiles<V, Weights, kRows, kTiles, kPieces>(tiles + tile * tile_size, piece, args, inputs,
                                                        outputs, first_output + tile * kTileOutputs);
    }
  }
  for (; tile < num_tiles; ++tile) {
    for (int piece = 0; piece < V::kPieces; piece += kPieces) {
      MultiplyTiles<V, Weights, kRows, 1, kPieces>(tiles + tile * tile_size, piece, args, inputs, outputs,
                                                   first_output + tile * kTileOutputs);
    }
  }
}

template <typename V, typename Weights, int kRows>
TANDEM_INLINE void DispatchRows(int num_rows, const typename Weights::Element* tiles, uint32_t num_tiles,
                                const ProductArgs& args, const float* inputs, float* const* outputs,
                                uint32_t first_output) {
  if (num_rows == kRows) {
    MultiplyRows<V, Weights, kRows>(tiles, num_tiles, args, inputs, outputs, first_output);
  } else if constexpr (kRows > 1) {
    DispatchRows<V, Weights, kRows - 1>(num_rows, tiles, num_tiles, args, inputs, outputs, first_output);
  }
}

// Goes once through the weights: a few tiles at a time, which stay in the cache for all chunks of rows.
template <typename V, typename Weights>
void Multiply(const ProductArgs& args) {
  constexpr uint32_t kGroup = 4;
  const auto* tiles = static_cast<const typename Weights::Element*>(args.tiles);
  const uint32_t num_chunks = (args.num_rows + V::kMaxRows - 1) / V::kMaxRows;
  for (uint32_t tile = 0; tile < args.num_tiles; tile += kGroup) {
    const uint32_t num_tiles = args.num_tiles - tile < kGroup ? args.num_tiles - tile : kGroup;
    uint32_t row = 0;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      // Chunks as equal as possible.
      const uint32_t num_rows = (args.num_rows - row) / (num_chunks - chunk);
      DispatchRows<V, Weights, V::kMaxRows>(
          static_cast<int>(num_rows), tiles + size_t{tile} * args.depth * kTileOutputs, num_tiles, args,
          args.inputs + row * args.input_stride, args.outputs + row, args.first_output + tile * kTileOutputs);
      row += num_rows;
    }
  }
}

template <typename V>
void RmsNorm(const float* input, const float* weight, size_t size, float epsilon, float* output) {
  const size_t whole = size - size % kLanes;
  V squares = V::Broadcast(0.0f);
  for (size_t i = 0; i < whole; i += kLanes) {
    const V x = V::Load(input + i);
    squares = V::Fma(x, x, squares);
  }
  if (whole < size) {
    const V x = LoadFirst<V>(input + whole, size - whole);
    squares = V::Fma(x, x, squares);
  }
  const float mean = SumLanes(squares) / static_cast<float>(size);
  const float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
  const V factors = V::Broadcast(factor);
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Multiply(V::Load(weight + i), V::Multiply(V::Load(input + i), factors)), output + i);
  }
  for (size_t i = whole; i < size; ++i) output[i] = weight[i] * (input[i] * factor);
}

template <typename V>
void LayerNorm(const float* input, const float* weight, const float* bias, size_t size, float epsilon,
               float* output) {
  const size_t whole = size - size % kLanes;
  V sum = V::Broadcast(0.0f);
  for (size_t i = 0; i < whole; i += kLanes) sum = V::Add(sum, V::Load(input + i));
  if (whole < size) sum = V::Add(sum, LoadFirst<V>(input + whole, size - whole));
  const float mean = SumLanes(sum) / static_cast<float>(size);
  const V means = V::Broadcast(mean);
  V squares = V::Broadcast(0.0f);
  for (size_t i = 0; i < whole; i += kLanes) {
    const V x = V::Subtract(V::Load(input + i), means);
    squares = V::Fma(x, x, squares);
  }
  if (whole < size) {
    // What is not there is no distance from the mean.
    alignas(64) float distances[kLanes] = {};
    for (size_t i = whole; i < size; ++i) distances[i - whole] = input[i] - mean;
    const V x = V::Load(distances);
    squares = V::Fma(x, x, squares);
  }
  const float variance = SumLanes(squares) / static_cast<float>(size);
  const float factor = 1.0f / __builtin_sqrtf(variance + epsilon);
  const V factors = V::Broadcast(factor);
  for (size_t i = 0; i < whole; i += kLanes) {
    const V x = V::Multiply(V::Subtract(V::Load(input + i), means), factors);
    V::Store(V::Fma(V::Load(weight + i), x, V::Load(bias + i)), output + i);
  }
  for (size_t i = whole; i < size; ++i) {
    output[i] = __builtin_fmaf(weight[i], (input[i] - mean) * factor, bias[i]);
  }
}

// values[i] = f(values[i])
template <typename V, typename F>
TANDEM_INLINE void ForAll(size_t size, float* values, F f) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) V::Store(f(V::Load(values + i)), values + i);
  if (whole < size) {
    StoreFirst(f(LoadFirst<V>(values + whole, size - whole)), size - whole, values + whole);
  }
}

template <typename V>
TANDEM_INLINE V Silu(V x) {
  const V one = V::Broadcast(1.0f);
  return V::Divide(x, V::Add(one, Exponential(V::Subtract(V::Broadcast(0.0f), x))));
}

template <typename V>
void SiluOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) { return Silu(x); });
}

// max(x, 0) - |x| e(|x| / sqrt(2)) / 2, where e is 1 - erf by Abramowitz and Stegun, 7.1.26: to 1.5e-7.
template <typename V>
void GeluOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) {
    const V zero = V::Broadcast(0.0f);
    const V magnitude = V::Max(V::Subtract(zero, x), x);
    const V z = V::Multiply(magnitude, V::Broadcast(0.70710678118654752f));
    const V one = V::Broadcast(1.0f);
    const V t = V::Divide(one, V::Fma(V::Broadcast(0.3275911f), z, one));
    V sum = V::Broadcast(1.061405429f);
    sum = V::Fma(sum, t, V::Broadcast(-1.453152027f));
    sum = V::Fma(sum, t, V::Broadcast(1.421413741f));
    sum = V::Fma(sum, t, V::Broadcast(-0.284496736f));
    sum = V::Fma(sum, t, V::Broadcast(0.254829592f));
    const V e = V::Multiply(V::Multiply(sum, t), Exponential(V::Subtract(zero, V::Multiply(z, z))));
    return V::Subtract(V::Max(zero, x), V::Multiply(V::Multiply(magnitude, V::Broadcast(0.5f)), e));
  });
}

// x / (1 + exp(-2 y)), y = sqrt(2 / pi) (x + 0.044715 x^3): what x / 2 (1 + tanh(y)) is.
template <typename V>
void GeluTanhOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) {
    const V one = V::Broadcast(1.0f);
    const V inner = V::Fma(V::Multiply(x, x), V::Broadcast(0.044715f), one);
    const V y = V::Multiply(V::Multiply(x, inner), V::Broadcast(-2 * 0.79788456080286536f));
    return V::Divide(x, V::Add(one, Exponential(y)));
  });
}

template <typename V>
void ReluOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) { return V::Max(V::Broadcast(0.0f), x); });
}

template <typename V>
void SiluMultiply(const float* up, size_t size, float* gate) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Multiply(Silu(V::Load(gate + i)), V::Load(up + i)), gate + i);
  }
  if (whole < size) {
    const size_t rest = size - whole;
    const V value = V::Multiply(Silu(LoadFirst<V>(gate + whole, rest)), LoadFirst<V>(up + whole, rest));
    StoreFirst(value, rest, gate + whole);
  }
}

template <typename V>
void AddInto(const float* addend, size_t size, float* sum) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Add(V::Load(sum + i), V::Load(addend + i)), sum + i);
  }
  for (size_t i = whole; i < size; ++i) sum[i] += addend[i];
}

template <typename V>
void MultiplyInto(const float* factor, size_t size, float* product) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    V::Store(V::Multiply(V::Load(product + i), V::Load(factor + i)), product + i);
  }
  for (size_t i = whole; i < size; ++i) product[i] *= factor[i];
}

template <typename V>
void ScaleOf(float factor, size_t size, float* values) {
  ForAll<V>(size, values, [factor](V x) { return V::Multiply(x, V::Broadcast(factor)); });
}

template <typename V>
void CapOf(float cap, size_t size, float* values) {
  ForAll<V>(size, values, [cap](V x) { return Cap(cap, x); });
}

template <typename V>
void ExponentialOf(size_t size, float* values) {
  ForAll<V>(size, values, [](V x) { return Exponential(x); });
}

template <typename V>
KernelTable MakeKernelTable(const char* name) {
  KernelTable table;
  table.name = name;
  ProductKernel& f32 = table.products[static_cast<int>(WeightFormat::kF32)];
  f32.layout = F32Lines();
  f32.multiply = Multiply<V, F32Weights>;
  ProductKernel& bf16 = table.products[static_cast<int>(WeightFormat::kBf16)];
  bf16.layout = Bf16Lines();
  bf16.multiply = Multiply<V, Bf16Weights>;
  table.rms_norm = RmsNorm<V>;
  table.layer_norm = LayerNorm<V>;
  table.activations[0] = SiluOf<V>;
  table.activations[1] = GeluOf<V>;
  table.activations[2] = GeluTanhOf<V>;
  table.activations[3] = ReluOf<V>;
  table.silu_multiply = SiluMultiply<V>;
  table.add = AddInto<V>;
  table.multiply = MultiplyInto<V>;
  table.scale = ScaleOf<V>;
  table.cap = CapOf<V>;
  table.exponential = ExponentialOf<V>;
  table.attend = Attend<V>;
  return table;
}

}  // namespace
}  // namespace tandem

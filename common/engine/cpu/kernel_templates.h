#pragma once

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/weight_layouts.h"

// The kernels, written once over a vector of kLanes floats. Each instruction set's source includes this
// inside its own unnamed namespace-scoped vector type V, so that no two of them share an instantiation.
//
// V provides kMaxRows and kMaxAccumulators (how many rows and vectors a product keeps in registers) and the
// static functions used below, each lane by lane and correctly rounded.

#define TANDEM_INLINE inline __attribute__((always_inline))

namespace tandem {
namespace {

// How many lines ahead of their use weights are asked for.
inline constexpr uint32_t kPrefetchLines = 16;

// Reads the first `count` (< kLanes) floats, the rest being 0.
template <typename V>
TANDEM_INLINE V LoadFirst(const float* from, size_t count) {
  alignas(64) float lanes[kLanes] = {};
  for (size_t i = 0; i < count; ++i) lanes[i] = from[i];
  return V::Load(lanes);
}

template <typename V>
TANDEM_INLINE void StoreFirst(V value, size_t count, float* to) {
  alignas(64) float lanes[kLanes];
  V::Store(value, lanes);
  for (size_t i = 0; i < count; ++i) to[i] = lanes[i];
}

// Adds the lanes in halves: 16 -> 8 -> 4 -> 2 -> 1.
template <typename V>
TANDEM_INLINE float SumLanes(V value) {
  alignas(64) float lanes[kLanes];
  V::Store(value, lanes);
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// exp(x) to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, the Taylor polynomial of degree 7 in r
// (remainder below 6e-9 of the result), times 2^n. Above 88 it stays at exp(88); below the smallest normal
// number it is 0.
template <typename V>
TANDEM_INLINE V Exponential(V x) {
  constexpr float kSmallest = -87.33654f;  // ln(2^-126), rounded towards 0.
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
  const V magic = V::Broadcast(12582912.0f);
  const V clamped = V::Min(V::Broadcast(88.0f), V::Max(V::Broadcast(kSmallest), x));
  const V shifted = V::Fma(clamped, V::Broadcast(1.44269504088896341f), magic);
  const V n = V::Subtract(shifted, magic);
  // ln 2 in two parts; the first has few enough bits that n times it is exact.
  V r = V::Fma(n, V::Broadcast(-0.693359375f), clamped);
  r = V::Fma(n, V::Broadcast(2.12194440054690583e-4f), r);
  V sum = V::Broadcast(1.0f / 5040);
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 720));
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 120));
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 24));
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 6));
  sum = V::Fma(sum, r, V::Broadcast(0.5f));
  sum = V::Fma(sum, r, V::Broadcast(1.0f));
  sum = V::Fma(sum, r, V::Broadcast(1.0f));
  return V::ZeroWhereLess(x, V::Broadcast(kSmallest), V::Multiply(sum, V::PowerOfTwo(shifted)));
}

// Weights as they lie in a packed matrix: one line holds a tile's outputs for one k.
struct Bf16Weights {
  using Element = uint16_t;
  template <typename V>
  static TANDEM_INLINE void LoadLine(const Element* line, V* low, V* high) {
    V::LoadBf16Pairs(line, low, high);
  }
};

struct F32Weights {
  using Element = float;
  template <typename V>
  static TANDEM_INLINE void LoadLine(const Element* line, V* low, V* high) {
    *low = V::Load(line);
    *high = V::Load(line + kLanes);
  }
};

// `kTiles` tiles times `kRows` rows, all sums in registers.
template <typename V, typename Weights, int kRows, int kTiles>
TANDEM_INLINE void MultiplyTiles(const typename Weights::Element* tiles, const ProductArgs& args,
                                 const float* inputs, float* const* outputs, uint32_t first_output) {
  using Element = typename Weights::Element;
  V sums[kRows][kTiles][2];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      sums[row][tile][0] = V::Broadcast(0.0f);
      sums[row][tile][1] = V::Broadcast(0.0f);
    }
  }
  const size_t tile_size = size_t{args.depth} * kTileOutputs;
  const size_t input_stride = args.input_stride;
  const Element* line = tiles;
  // Twice at a time takes the loop's own instructions out of the multipliers' way.
#pragma GCC unroll 2
  for (uint32_t k = 0; k < args.depth; ++k, line += kTileOutputs) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      const Element* tile_line = line + tile * tile_size;
      // The weights come from beyond the nearest caches, one line after another: ask for them in time.
      __builtin_prefetch(tile_line + kPrefetchLines * kTileOutputs);
      V low;
      V high;
      Weights::template LoadLine<V>(tile_line, &low, &high);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const V input = V::Broadcast(inputs[row * input_stride + k]);
        sums[row][tile][0] = V::Fma(input, low, sums[row][tile][0]);
        sums[row][tile][1] = V::Fma(input, high, sums[row][tile][1]);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint32_t output = first_output + tile * kTileOutputs;
      float* to = outputs[row] + output;
      if (output + kTileOutputs <= args.end_output) {
        V::Store(sums[row][tile][0], to);
        V::Store(sums[row][tile][1], to + kLanes);
      } else {
        const uint32_t rest = args.end_output - output;
        StoreFirst(sums[row][tile][0], rest < kLanes ? rest : kLanes, to);
        if (rest > kLanes) StoreFirst(sums[row][tile][1], rest - kLanes, to + kLanes);
      }
    }
  }
}

// As many tiles at a time as leave the sums in registers: with few rows, many tiles keep the multipliers
// busy.
template <typename V, typename Weights, int kRows>
void MultiplyRows(const typename Weights::Element* tiles, uint32_t num_tiles, const ProductArgs& args,
                  const float* inputs, float* const* outputs, uint32_t first_output) {
  constexpr int kFit = V::kMaxAccumulators / (2 * kRows);
  constexpr int kTiles = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  const size_t tile_size = size_t{args.depth} * kTileOutputs;
  uint32_t tile = 0;
  for (; tile + kTiles <= num_tiles; tile += kTiles) {
    MultiplyTiles<V, Weights, kRows, kTiles>(tiles + tile * tile_size, args, inputs, outputs,
                                             first_output + tile * kTileOutputs);
  }
  for (; tile < num_tiles; ++tile) {
    MultiplyTiles<V, Weights, kRows, 1>(tiles + tile * tile_size, args, inputs, outputs,
                                        first_output + tile * kTileOutputs);
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
TANDEM_INLINE V Silu(V x) {
  const V one = V::Broadcast(1.0f);
  return V::Divide(x, V::Add(one, Exponential(V::Subtract(V::Broadcast(0.0f), x))));
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
void ExponentialOf(size_t size, float* values) {
  const size_t whole = size - size % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) V::Store(Exponential(V::Load(values + i)), values + i);
  if (whole < size) {
    StoreFirst(Exponential(LoadFirst<V>(values + whole, size - whole)), size - whole, values + whole);
  }
}

// Some query heads that share their keys and values, and where the walk through the context puts their
// scores.
struct HeadGroup {
  const float* queries;  // [heads, head_dim]
  float* scores;         // [heads, score_stride]
  float* outputs;        // [heads, head_dim]
};

// Scores of the 16 keys in each of `kBlocks` key blocks [head_dim][16], for positions from `position` on:
// lane i, the dot product with key i, is one chain over head_dim ascending, then scaled.
template <typename V, int kHeads, int kBlocks>
TANDEM_INLINE void ScoreBlocks(const AttentionArgs& args, const HeadGroup& group, const float* const* blocks,
                               uint32_t position) {
  V sums[kHeads][kBlocks];
#pragma GCC unroll 4
  for (int head = 0; head < kHeads; ++head) {
#pragma GCC unroll 8
    for (int block = 0; block < kBlocks; ++block) sums[head][block] = V::Broadcast(0.0f);
  }
  for (uint32_t d = 0; d < args.head_dim; ++d) {
    V queries[kHeads];
#pragma GCC unroll 4
    for (int head = 0; head < kHeads; ++head) {
      queries[head] = V::Broadcast(group.queries[head * size_t{args.head_dim} + d]);
    }
#pragma GCC unroll 8
    for (int block = 0; block < kBlocks; ++block) {
      const V keys = V::Load(blocks[block] + size_t{d} * kLanes);
#pragma GCC unroll 4
      for (int head = 0; head < kHeads; ++head) {
        sums[head][block] = V::Fma(queries[head], keys, sums[head][block]);
      }
    }
  }
  const V scale = V::Broadcast(args.scale);
#pragma GCC unroll 4
  for (int head = 0; head < kHeads; ++head) {
#pragma GCC unroll 8
    for (int block = 0; block < kBlocks; ++block) {
      V::Store(V::Multiply(sums[head][block], scale),
               group.scores + head * args.score_stride + position + block * kLanes);
    }
  }
}

// Committed blocks from `block` to `end`, kBlocks at a time and then fewer.
template <typename V, int kHeads, int kBlocks>
TANDEM_INLINE void ScoreCommitted(const AttentionArgs& args, const HeadGroup& group, uint32_t block,
                                  uint32_t end) {
  for (; block + kBlocks <= end; block += kBlocks) {
    const float* blocks[kBlocks];
    for (uint32_t i = 0; i < kBlocks; ++i)
      blocks[i] = args.keys + args.blocks[block + i] * args.key_block_stride;
    ScoreBlocks<V, kHeads, kBlocks>(args, group, blocks, block * kLanes);
  }
  if constexpr (kBlocks > 1) ScoreCommitted<V, kHeads, kBlocks / 2>(args, group, block, end);
}

// Fills scores[p] for the positions of the context from the block of first_position on. Writes whole vectors:
// what lies beyond the context is the caller's to overwrite.
template <typename V, int kHeads>
TANDEM_INLINE void ScoreContext(const AttentionArgs& args, const HeadGroup& group) {
  constexpr int kFit = V::kMaxAttentionSums / kHeads;
  ScoreCommitted<V, kHeads,
                 kFit >= 8   ? 8
                 : kFit >= 4 ? 4
                 : kFit >= 2 ? 2
                             : 1>(args, group, args.first_position / kLanes,
                                  (args.num_committed + kLanes - 1) / kLanes);
  // Tail slots lie anywhere: gather 16 of them into one block, and go on as before.
  for (uint32_t first = 0; first < args.num_tail; first += kLanes) {
    const uint32_t count = args.num_tail - first < kLanes ? args.num_tail - first : kLanes;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t slot = args.tail[first + i];
      const float* key = args.keys + slot / kLanes * args.key_block_stride + slot % kLanes;
      for (uint32_t d = 0; d < args.head_dim; ++d) args.tail_keys[d * kLanes + i] = key[size_t{d} * kLanes];
    }
    const float* block = args.tail_keys;
    ScoreBlocks<V, kHeads, 1>(args, group, &block, args.num_committed + first);
  }
}

// Turns one head's scores into exp(score - greatest) and returns their sum; position p belongs to partial sum
// p % 16.
template <typename V>
TANDEM_INLINE float Softmax(const AttentionArgs& args, float* scores) {
  const uint32_t length = args.num_committed + args.num_tail;
  const uint32_t begin = args.first_position - args.first_position % kLanes;
  const uint32_t end = (length + kLanes - 1) / kLanes * kLanes;
  for (uint32_t i = begin; i < args.first_position; ++i) scores[i] = -__builtin_inff();
  for (uint32_t i = length; i < end; ++i) scores[i] = -__builtin_inff();
  V greatest = V::Broadcast(-__builtin_inff());
  for (uint32_t i = begin; i < end; i += kLanes) greatest = V::Max(greatest, V::Load(scores + i));
  alignas(64) float lanes[kLanes];
  V::Store(greatest, lanes);
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  }
  greatest = V::Broadcast(lanes[0]);
  V sum = V::Broadcast(0.0f);
  for (uint32_t i = begin; i < end; i += kLanes) {
    const V weight = Exponential(V::Subtract(V::Load(scores + i), greatest));
    V::Store(weight, scores + i);
    sum = V::Add(sum, weight);
  }
  return SumLanes(sum);
}

template <typename V, int kHeads, int kVectors>
TANDEM_INLINE void WeighOne(const AttentionArgs& args, const HeadGroup& group, uint32_t position,
                            const float* value, V (&sums)[kHeads][kVectors]) {
  V weights[kHeads];
#pragma GCC unroll 4
  for (int head = 0; head < kHeads; ++head) {
    weights[head] = V::Broadcast(group.scores[head * args.score_stride + position]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const V values = V::Load(value + i * kLanes);
#pragma GCC unroll 4
    for (int head = 0; head < kHeads; ++head) sums[head][i] = V::Fma(weights[head], values, sums[head][i]);
  }
}

// output[d] = (sum over positions ascending of weight[p] * value[p][d]) / total, for kVectors vectors of d.
template <typename V, int kHeads, int kVectors>
TANDEM_INLINE void WeighValues(const AttentionArgs& args, const HeadGroup& group, const float* totals,
                               uint32_t first_d) {
  V sums[kHeads][kVectors];
#pragma GCC unroll 4
  for (int head = 0; head < kHeads; ++head) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) sums[head][i] = V::Broadcast(0.0f);
  }
  const float* values = args.values + first_d;
  for (uint32_t position = args.first_position; position < args.num_committed;) {
    const float* value = values + args.blocks[position / kLanes] * args.value_block_stride +
                         position % kLanes * args.value_stride;
    const uint32_t block_end = position - position % kLanes + kLanes;
    const uint32_t end = block_end < args.num_committed ? block_end : args.num_committed;
    for (; position < end; ++position, value += args.value_stride) {
      WeighOne<V, kHeads, kVectors>(args, group, position, value, sums);
    }
  }
  const uint32_t first_tail =
      args.first_position > args.num_committed ? args.first_position - args.num_committed : 0;
  for (uint32_t t = first_tail; t < args.num_tail; ++t) {
    const uint32_t slot = args.tail[t];
    WeighOne<V, kHeads, kVectors>(
        args, group, args.num_committed + t,
        values + slot / kLanes * args.value_block_stride + slot % kLanes * args.value_stride, sums);
  }
#pragma GCC unroll 4
  for (int head = 0; head < kHeads; ++head) {
    float* output = group.outputs + head * size_t{args.head_dim};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const uint32_t d = first_d + i * kLanes;
      const V result = V::Divide(sums[head][i], V::Broadcast(totals[head]));
      if (d + kLanes <= args.head_dim) {
        V::Store(result, output + d);
      } else {
        StoreFirst(result, args.head_dim - d, output + d);
      }
    }
  }
}

// All of head_dim from vector `vector` on, kVectors at a time and then fewer.
template <typename V, int kHeads, int kVectors>
TANDEM_INLINE void WeighContext(const AttentionArgs& args, const HeadGroup& group, const float* totals,
                                uint32_t vector) {
  const uint32_t num_vectors = (args.head_dim + kLanes - 1) / kLanes;
  for (; vector + kVectors <= num_vectors; vector += kVectors) {
    WeighValues<V, kHeads, kVectors>(args, group, totals, vector * kLanes);
  }
  if constexpr (kVectors > 1) WeighContext<V, kHeads, kVectors / 2>(args, group, totals, vector);
}

template <typename V, int kHeads>
void AttendHeads(const AttentionArgs& args, const HeadGroup& group) {
  constexpr int kFit = V::kMaxAttentionSums / kHeads;
  ScoreContext<V, kHeads>(args, group);
  float totals[kHeads];
  for (int head = 0; head < kHeads; ++head)
    totals[head] = Softmax<V>(args, group.scores + head * args.score_stride);
  WeighContext<V, kHeads, kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1>(args, group, totals, 0);
}

// Heads that share their keys and values go through them together, kMaxHeadsAtOnce at a time: each vector
// that is loaded serves all of them, and their chains of sums overlap.
template <typename V>
void Attend(const AttentionArgs& args) {
  static_assert(kMaxHeadsAtOnce == 4, "one case for each");
  for (uint32_t head = 0; head < args.num_heads; head += kMaxHeadsAtOnce) {
    const HeadGroup group = {args.queries + head * size_t{args.head_dim}, args.scores,
                             args.outputs + head * size_t{args.head_dim}};
    switch (args.num_heads - head) {
      case 1:
        AttendHeads<V, 1>(args, group);
        break;
      case 2:
        AttendHeads<V, 2>(args, group);
        break;
      case 3:
        AttendHeads<V, 3>(args, group);
        break;
      default:
        AttendHeads<V, 4>(args, group);
    }
  }
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
  table.silu_multiply = SiluMultiply<V>;
  table.add = AddInto<V>;
  table.exponential = ExponentialOf<V>;
  table.attend = Attend<V>;
  return table;
}

}  // namespace
}  // namespace tandem

#pragma once

#include "common/engine/cpu/attention_args.h"
#include "common/engine/cpu/attention_blocks.h"
#include "common/engine/cpu/vector_templates.h"

// Attention over paged keys and values, once per instruction set (kernel_templates.h says how). For each row
// and head by itself, whatever else is in the call, the result is
//
//   score[p]  = scale * (one chain of fused multiply-adds over head_dim ascending); with a cap, then
//               cap * tanh(score / cap); with a slope, then fma(slope, p - the row's position, score)
//   and for each chunk of kAttentionChunk positions, counted from position 0:
//     greatest = the greatest score so far; if it rose, sums and totals are multiplied by exp(before - after)
//     weight[p] = exp(score[p] - greatest)
//     totals[p % 16] += weight[p]
//     sum[d] = one chain of fused multiply-adds of weight[p] * value[p][d] over p ascending
//   output[d] = sum[d] / (totals, added in halves)
//
// A sink is a score that comes before all positions: `greatest` begins with it and totals[0] with 1.
//
// A step's work is to load keys and values, so rows that share blocks go through them together: a few blocks
// at a time, which stay in the first-level cache for all queries.

namespace tandem {
namespace {

inline constexpr uint32_t kQueryTile = 4;
inline constexpr float kNoScore = -__builtin_inff();

// The vectors of up to kQueryTile queries from query `first` on.
template <int kQueries>
TANDEM_INLINE void LocateQueries(const AttentionArgs& args, uint32_t first,
                                 const float* (&queries)[kQueries]) {
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const uint32_t query = first + static_cast<uint32_t>(q);
    queries[q] = args.rows[query / args.num_heads].queries +
                 (args.first_head + query % args.num_heads) * args.query_stride;
  }
}

// Scores of the 16 keys in each of `kBlocks` key blocks [head_dim][16]: lane i is the dot product with key i.
template <typename V, int kQueries, int kBlocks, bool kAsks>
TANDEM_INLINE void ScoreBlocks(const AttentionArgs& args, const float* const (&queries)[kQueries],
                               const float* const* blocks, const float* const* ahead, float* scores) {
  V sums[kQueries][kBlocks];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int block = 0; block < kBlocks; ++block) sums[q][block] = V::Broadcast(0.0f);
  }
  for (uint32_t d = 0; d < args.head_dim; ++d) {
    V elements[kQueries];
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) elements[q] = V::Broadcast(queries[q][d]);
#pragma GCC unroll 4
    for (int block = 0; block < kBlocks; ++block) {
      if constexpr (kAsks) AskFor(ahead[block] + size_t{d} * kLanes);
      const V keys = V::Load(blocks[block] + size_t{d} * kLanes);
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) sums[q][block] = V::Fma(elements[q], keys, sums[q][block]);
    }
  }
  const V scale = V::Broadcast(args.scale);
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int block = 0; block < kBlocks; ++block) {
      V::Store(V::Multiply(sums[q][block], scale), scores + q * kScoreStride + block * kLanes);
    }
  }
}

// Blocks from `block` to `end`, kBlocks at a time and then fewer. `scores` is that of the chunk's first
// position. If keys need no conversion, the first queries of a run prefetch the next ones, and the others
// find them in the cache.
template <typename V, int kQueries, int kBlocks, bool kAsks>
TANDEM_INLINE void ScoreUpTo(const AttentionArgs& args, const RowRun& run, const WideBlocks& keys,
                             const float* const (&queries)[kQueries], uint32_t block, uint32_t end,
                             float* scores) {
  for (; block + kBlocks <= end; block += kBlocks) {
    const float* blocks[kBlocks];
    const float* ahead[kBlocks];
    for (uint32_t i = 0; i < kBlocks; ++i) {
      blocks[i] = keys.at(block + i);
      if constexpr (kAsks) {
        ahead[i] =
            reinterpret_cast<const float*>(args.keys + BlockAhead(run, block + i) * args.key_block_bytes);
      }
    }
    ScoreBlocks<V, kQueries, kBlocks, kAsks>(args, queries, blocks, ahead,
                                             scores + (block * kLanes - run.chunk));
  }
  if constexpr (kBlocks > 1)
    ScoreUpTo<V, kQueries, kBlocks / 2, kAsks>(args, run, keys, queries, block, end, scores);
}

// Processes as many vectors at a time as fit in registers with their sums.
template <typename V, int kQueries>
constexpr int VectorsAtOnce() {
  constexpr int kFit = V::kMaxAttentionSums / kQueries;
  return kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
}

// Scores of some queries with `cached` (positions of whole blocks), as far as their rows' contexts go.
// Computes whole vectors: lanes outside the context are overwritten later.
template <typename V, int kQueries>
void ScoreTile(const AttentionArgs& args, const RowRun& run, const WideBlocks& keys, uint32_t first_query,
               Positions cached) {
  const Positions wanted = WantedByRows(args, first_query / args.num_heads,
                                        (first_query + kQueries - 1) / args.num_heads + 1, cached);
  if (wanted.empty()) return;
  const float* queries[kQueries];
  LocateQueries(args, first_query, queries);
  constexpr int kBlocks = VectorsAtOnce<V, kQueries>();
  const uint32_t block = wanted.begin / kLanes;
  const uint32_t end = (wanted.end + kLanes - 1) / kLanes;
  float* scores = args.scores + first_query * size_t{kScoreStride};
  if (args.format == KvFormat::kF32 && first_query == run.begin * args.num_heads) {
    ScoreUpTo<V, kQueries, kBlocks, true>(args, run, keys, queries, block, end, scores);
  } else {
    ScoreUpTo<V, kQueries, kBlocks, false>(args, run, keys, queries, block, end, scores);
  }
}

// Scores of some queries of one row with the `count` tail slots `slots`, which all lie in the block of
// `keys`. Computes scores for the whole block, and takes those of the slots.
template <typename V, int kQueries>
void ScoreTailTile(const AttentionArgs& args, const float* keys, uint32_t first_query, const uint32_t* slots,
                   uint32_t count, float* scores) {
  const float* queries[kQueries];
  LocateQueries(args, first_query, queries);
  alignas(64) float lanes[kQueries * kScoreStride];
  ScoreBlocks<V, kQueries, 1, false>(args, queries, &keys, &keys, lanes);
  for (int q = 0; q < kQueries; ++q) {
    for (uint32_t i = 0; i < count; ++i) {
      scores[q * kScoreStride + i] = lanes[q * kScoreStride + slots[i] % kLanes];
    }
  }
}

template <int kCount>
struct Queries {
  static constexpr int kNum = kCount;
};

// Calls body(Queries<n>, first query) for the queries from `begin` to `end`, n = kQueryTile as long as it
// fits.
template <typename Body>
TANDEM_INLINE void ForQueryTiles(uint32_t begin, uint32_t end, Body body) {
  static_assert(kQueryTile == 4, "one case for each");
  for (; begin + kQueryTile <= end; begin += kQueryTile) body(Queries<4>(), begin);
  switch (end - begin) {
    case 1:
      body(Queries<1>(), begin);
      break;
    case 2:
      body(Queries<2>(), begin);
      break;
    case 3:
      body(Queries<3>(), begin);
      break;
  }
}

// Fills scores[p - chunk] of all queries of the run, for the positions of the chunk that their rows have.
template <typename V>
void ScoreRun(const AttentionArgs& args, const RowRun& run) {
  for (uint32_t i = 0; i < kAttentionChunk; i += kAttentionBlocks * kLanes) {
    const Positions cached = {run.chunk + i, run.chunk + i + kAttentionBlocks * kLanes};
    const WideBlocks keys = KeysOf<V>(args, run, cached);
    ForQueryTiles(run.begin * args.num_heads, run.end * args.num_heads, [&](auto queries, uint32_t first) {
      ScoreTile<V, decltype(queries)::kNum>(args, run, keys, first, cached);
    });
  }
  for (uint32_t r = run.begin; r < run.end; ++r) {
    const AttentionRow& row = args.rows[r];
    const Positions tail = Common(InTail(row), ChunkFrom(run.chunk));
    for (uint32_t position = tail.begin; position < tail.end;) {
      const uint32_t* slots = row.tail + (position - row.num_committed);
      uint32_t count = 1;
      while (position + count < tail.end && slots[count] / kLanes == slots[0] / kLanes) ++count;
      const float* const keys = KeysOfTail<V>(args, slots[0] / kLanes);
      ForQueryTiles(r * args.num_heads, (r + 1) * args.num_heads, [&](auto queries, uint32_t first) {
        ScoreTailTile<V, decltype(queries)::kNum>(
            args, keys, first, slots, count,
            args.scores + first * size_t{kScoreStride} + (position - run.chunk));
      });
      position += count;
    }
  }
}

// V may have its own implementation.
template <typename V>
TANDEM_INLINE float GreatestLane(V value) {
  if constexpr (requires { V::GreatestLane(value); }) return V::GreatestLane(value);
  alignas(64) float lanes[kLanes];
  V::Store(value, lanes);
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  }
  return lanes[0];
}

// Caps a query's scores of the chunk, from `begin` to `end` in it, and lowers them by their distance.
// Computes whole vectors: lanes outside the context are overwritten later.
template <typename V>
void BendScores(const AttentionArgs& args, const AttentionRow& row, uint32_t chunk, uint32_t query,
                uint32_t begin, uint32_t end) {
  float* scores = args.scores + query * size_t{kScoreStride};
  const uint32_t own_position = row.num_committed + row.num_tail - 1;
  alignas(64) float places[kLanes];
  for (uint32_t i = 0; i < kLanes; ++i) places[i] = static_cast<float>(i);
  for (uint32_t i = begin - begin % kLanes; i < end; i += kLanes) {
    V score = V::Load(scores + i);
    if (args.score_cap != 0.0f) score = Cap(args.score_cap, score);
    if (args.slopes != nullptr) {
      // Whole numbers below 2^24: exact.
      const float first = static_cast<float>(chunk + i) - static_cast<float>(own_position);
      const V distances = V::Add(V::Broadcast(first), V::Load(places));
      score = V::Fma(V::Broadcast(args.slopes[query % args.num_heads]), distances, score);
    }
    V::Store(score, scores + i);
  }
}

// Turns a query's scores in the chunk, from `begin` to `end`, into weights.
template <typename V>
TANDEM_INLINE void WeighScores(const AttentionArgs& args, uint32_t query, uint32_t begin, uint32_t end) {
  float* scores = args.scores + query * size_t{kScoreStride};
  const uint32_t first = begin - begin % kLanes;
  const uint32_t last = (end + kLanes - 1) / kLanes * kLanes;
  for (uint32_t i = first; i < begin; ++i) scores[i] = kNoScore;
  for (uint32_t i = end; i < last; ++i) scores[i] = kNoScore;
  const float before = args.greatest[query];
  V greatest = V::Broadcast(before);
  for (uint32_t i = first; i < last; i += kLanes) greatest = V::Max(greatest, V::Load(scores + i));
  const float after = GreatestLane(greatest);
  float* totals = args.totals + query * kLanes;
  V total = V::Load(totals);
  if (after != before) {
    // Before the first chunk there is nothing to scale: all are 0.
    if (before != kNoScore) {
      const V factor = Exponential(V::Broadcast(before - after));
      total = V::Multiply(total, factor);
      float* sums = args.sums + query * args.value_stride;
      for (uint32_t d = 0; d < args.value_stride; d += kLanes) {
        V::Store(V::Multiply(V::Load(sums + d), factor), sums + d);
      }
    }
    args.greatest[query] = after;
  }
  greatest = V::Broadcast(after);
  for (uint32_t i = first; i < last; i += kLanes) {
    const V weight = Exponential(V::Subtract(V::Load(scores + i), greatest));
    V::Store(weight, scores + i);
    total = V::Add(total, weight);
  }
  V::Store(total, totals);
}

// sums[q][d] of some queries, for kVectors vectors of d. The weights are those at the chunk's first position.
template <typename V, int kQueries, int kVectors>
struct ValueSums {
  V sums[kQueries][kVectors];

  TANDEM_INLINE void Load(const float* from, size_t stride) {
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) sums[q][i] = V::Load(from + q * stride + i * kLanes);
    }
  }
  TANDEM_INLINE void Store(float* to, size_t stride) const {
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) V::Store(sums[q][i], to + q * stride + i * kLanes);
    }
  }
  TANDEM_INLINE void Add(const float* weights, const float* value) {
    V factors[kQueries];
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) factors[q] = V::Broadcast(weights[q * kScoreStride]);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const V values = V::Load(value + i * kLanes);
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) sums[q][i] = V::Fma(factors[q], values, sums[q][i]);
    }
  }
};

// Adds the values at `positions`, which lie in blocks, from element `d` on. Prefetches like ScoreUpTo.
template <typename V, int kQueries, int kVectors, bool kAsks>
TANDEM_INLINE void AddPositions(const AttentionArgs& args, const RowRun& run, const WideBlocks& values,
                                uint32_t first_query, Positions positions, uint32_t d) {
  const float* weights = args.scores + first_query * size_t{kScoreStride};
  float* to = args.sums + first_query * args.value_stride + d;
  ValueSums<V, kQueries, kVectors> sums;
  sums.Load(to, args.value_stride);
  for (uint32_t position = positions.begin; position < positions.end;) {
    const size_t offset = position % kLanes * args.value_stride + d;
    const float* value = values.at(position / kLanes) + offset;
    const float* ahead = nullptr;
    if constexpr (kAsks) {
      ahead = reinterpret_cast<const float*>(args.values +
                                             BlockAhead(run, position / kLanes) * args.value_block_bytes) +
              offset;
    }
    const uint32_t end = Least(position - position % kLanes + kLanes, positions.end);
    for (; position < end; ++position) {
      if constexpr (kAsks) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) AskFor(ahead + i * kLanes);
        ahead += args.value_stride;
      }
      sums.Add(weights + position - run.chunk, value);
      value += args.value_stride;
    }
  }
  sums.Store(to, args.value_stride);
}

// The same for the tail of one row.
template <typename V, int kQueries, int kVectors, bool>
TANDEM_INLINE void AddPositions(const AttentionArgs& args, const RowRun& run, const TailValues& values,
                                uint32_t first_query, Positions positions, uint32_t d) {
  const float* weights = args.scores + first_query * size_t{kScoreStride};
  float* to = args.sums + first_query * args.value_stride + d;
  ValueSums<V, kQueries, kVectors> sums;
  sums.Load(to, args.value_stride);
  for (uint32_t position = positions.begin; position < positions.end; ++position) {
    sums.Add(weights + position - run.chunk, values.at(position) + d);
  }
  sums.Store(to, args.value_stride);
}

// All elements of value_dim from `d` on: kVectors vectors at a time, then the rest.
template <typename V, int kQueries, int kVectors, typename Values>
TANDEM_INLINE void AddFrom(const AttentionArgs& args, const RowRun& run, const Values& values,
                           uint32_t first_query, Positions positions, uint32_t d) {
  for (; d + kVectors * kLanes <= args.value_stride; d += kVectors * kLanes) {
    const bool asks = args.format == KvFormat::kF32 && first_query == run.begin * args.num_heads;
    if (Values::kAreAskedFor && asks) {
      AddPositions<V, kQueries, kVectors, Values::kAreAskedFor>(args, run, values, first_query, positions, d);
    } else {
      AddPositions<V, kQueries, kVectors, false>(args, run, values, first_query, positions, d);
    }
  }
  if constexpr (kVectors > 1) {
    AddFrom<V, kQueries, kVectors / 2>(args, run, values, first_query, positions, d);
  }
}

template <typename V, int kQueries, typename Values>
void AddValues(const AttentionArgs& args, const RowRun& run, const Values& values, uint32_t first_query,
               Positions positions) {
  if (positions.empty()) return;
  AddFrom<V, kQueries, VectorsAtOnce<V, kQueries>()>(args, run, values, first_query, positions, 0);
}

// The queries from `begin` to `end`, of one row.
template <typename V, typename Values>
void AddOfRow(const AttentionArgs& args, const RowRun& run, const Values& values, uint32_t begin,
              uint32_t end, Positions positions) {
  ForQueryTiles(begin, end, [&](auto queries, uint32_t first) {
    AddValues<V, decltype(queries)::kNum>(args, run, values, first, positions);
  });
}

// Rows of a tile may have different context bounds: the common part is computed together, the parts before
// and after it row by row.
template <typename V, int kQueries>
void AddTile(const AttentionArgs& args, const RowRun& run, const WideBlocks& values, uint32_t first_query,
             Positions cached) {
  const uint32_t first_row = first_query / args.num_heads;
  const uint32_t last_row = (first_query + kQueries - 1) / args.num_heads;
  Positions common = cached;
  for (uint32_t r = first_row; r <= last_row; ++r) common = Common(common, InBlocks(args.rows[r]));
  if (first_row == last_row) return AddValues<V, kQueries>(args, run, values, first_query, common);
  if (common.empty()) common = {cached.end, cached.end};
  const auto add_rows = [&](Positions part) {
    for (uint32_t r = first_row; r <= last_row; ++r) {
      AddOfRow<V>(args, run, values, Most(first_query, r * args.num_heads),
                  Least(first_query + kQueries, (r + 1) * args.num_heads),
                  Common(part, InBlocks(args.rows[r])));
    }
  };
  add_rows({cached.begin, common.begin});
  AddValues<V, kQueries>(args, run, values, first_query, common);
  add_rows({common.end, cached.end});
}

// The tail of row `r`, some positions at a time.
template <typename V>
void AddTail(const AttentionArgs& args, const RowRun& run, uint32_t r) {
  const Positions tail = Common(InTail(args.rows[r]), ChunkFrom(run.chunk));
  TailValues values;
  for (uint32_t begin = tail.begin; begin < tail.end; begin += TailValues::kMost) {
    const Positions part = {begin, Least(begin + TailValues::kMost, tail.end)};
    LocateTail<V>(args, args.rows[r], part, &values);
    AddOfRow<V>(args, run, values, r * args.num_heads, (r + 1) * args.num_heads, part);
  }
}

template <typename V>
void AttendRun(const AttentionArgs& args, const RowRun& run) {
  ScoreRun<V>(args, run);
  const bool bends = args.score_cap != 0.0f || args.slopes != nullptr;
  for (uint32_t r = run.begin; r < run.end; ++r) {
    const Positions own = Common(InContext(args.rows[r]), ChunkFrom(run.chunk));
    for (uint32_t head = 0; head < args.num_heads; ++head) {
      if (bends) {
        BendScores<V>(args, args.rows[r], run.chunk, r * args.num_heads + head, own.begin - run.chunk,
                      own.end - run.chunk);
      }
      WeighScores<V>(args, r * args.num_heads + head, own.begin - run.chunk, own.end - run.chunk);
    }
  }
  for (uint32_t i = 0; i < kAttentionChunk; i += kAttentionBlocks * kLanes) {
    const Positions cached = {run.chunk + i, run.chunk + i + kAttentionBlocks * kLanes};
    const WideBlocks values = ValuesOf<V>(args, run, cached);
    ForQueryTiles(run.begin * args.num_heads, run.end * args.num_heads, [&](auto queries, uint32_t first) {
      AddTile<V, decltype(queries)::kNum>(args, run, values, first, cached);
    });
  }
  for (uint32_t r = run.begin; r < run.end; ++r) AddTail<V>(args, run, r);
}

// The rows from `begin` on that can go through the chunk together; `begin` has positions in it.
TANDEM_INLINE RowRun FindRun(const AttentionArgs& args, uint32_t begin, uint32_t chunk) {
  RowRun run = {begin, begin + 1, chunk, args.rows[begin].blocks, NumBlocks(args.rows[begin])};
  for (; run.end < args.num_rows; ++run.end) {
    const AttentionRow& row = args.rows[run.end];
    if (Common(InContext(row), ChunkFrom(chunk)).empty()) break;
    // Within the chunk, one of the two lists of blocks must be a prefix of the other.
    const uint32_t needed = Least(Least(run.num_blocks, NumBlocks(row)), (chunk + kAttentionChunk) / kLanes);
    if (row.num_shared_blocks < needed) break;
    if (NumBlocks(row) > run.num_blocks) {
      run.blocks = row.blocks;
      run.num_blocks = NumBlocks(row);
    }
  }
  return run;
}

template <typename V>
void StoreOutputs(const AttentionArgs& args) {
  for (uint32_t query = 0; query < args.num_rows * args.num_heads; ++query) {
    const V total = V::Broadcast(SumLanes(V::Load(args.totals + query * kLanes)));
    const float* sums = args.sums + query * args.value_stride;
    float* output = args.rows[query / args.num_heads].outputs +
                    (args.first_head + query % args.num_heads) * args.output_stride;
    for (uint32_t d = 0; d < args.value_dim; d += kLanes) {
      const V result = V::Divide(V::Load(sums + d), total);
      if (d + kLanes <= args.value_dim) {
        V::Store(result, output + d);
      } else {
        StoreFirst(result, args.value_dim - d, output + d);
      }
    }
  }
}

template <typename V>
void Attend(const AttentionArgs& args) {
  Positions all = {~0u, 0};
  for (uint32_t r = 0; r < args.num_rows; ++r) {
    const Positions own = InContext(args.rows[r]);
    all = {Least(all.begin, own.begin), Most(all.end, own.end)};
  }
  const V zero = V::Broadcast(0.0f);
  for (uint32_t query = 0; query < args.num_rows * args.num_heads; ++query) {
    const float sink = args.sinks == nullptr ? kNoScore : args.sinks[query % args.num_heads];
    args.greatest[query] = sink;
    V::Store(zero, args.totals + query * kLanes);
    if (sink != kNoScore) args.totals[query * kLanes] = 1.0f;
    for (uint32_t d = 0; d < args.value_stride; d += kLanes) {
      V::Store(zero, args.sums + query * args.value_stride + d);
    }
  }
  for (uint32_t chunk = all.begin - all.begin % kAttentionChunk; chunk < all.end; chunk += kAttentionChunk) {
    for (uint32_t r = 0; r < args.num_rows;) {
      if (Common(InContext(args.rows[r]), ChunkFrom(chunk)).empty()) {
        ++r;
        continue;
      }
      const RowRun run = FindRun(args, r, chunk);
      AttendRun<V>(args, run);
      r = run.end;
    }
  }
  StoreOutputs<V>(args);
}

}  // namespace
}  // namespace tandem

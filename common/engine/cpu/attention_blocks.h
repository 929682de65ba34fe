#pragma once

#include "common/engine/cpu/attention_args.h"
#include "common/engine/cpu/vector_templates.h"

// Positions of rows for attention_templates.h, and their keys and values in float32. If these have another
// format, a few blocks at a time are converted to float32, for all queries, and stay in the first-level
// cache, so the rest is the same for every format.

namespace tandem {
namespace {

// Consecutive rows that share the blocks of the current chunk, and all have positions in it.
struct RowRun {
  uint32_t begin;
  uint32_t end;
  uint32_t chunk;          // Its first position.
  const uint32_t* blocks;  // Of the row with the most positions.
  uint32_t num_blocks;     // The number of these blocks.
};

// A range of a row's positions.
struct Positions {
  uint32_t begin;
  uint32_t end;
  bool empty() const { return begin >= end; }
};

TANDEM_INLINE uint32_t Least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}
TANDEM_INLINE uint32_t Most(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}
TANDEM_INLINE Positions Common(Positions a, Positions b) {
  return {Most(a.begin, b.begin), Least(a.end, b.end)};
}
TANDEM_INLINE Positions ChunkFrom(uint32_t chunk) {
  return {chunk, chunk + kAttentionChunk};
}
TANDEM_INLINE Positions InBlocks(const AttentionRow& row) {
  return {row.first_position, row.num_committed};
}
TANDEM_INLINE Positions InTail(const AttentionRow& row) {
  return {Most(row.first_position, row.num_committed), row.num_committed + row.num_tail};
}
TANDEM_INLINE Positions InContext(const AttentionRow& row) {
  return {row.first_position, row.num_committed + row.num_tail};
}
TANDEM_INLINE uint32_t NumBlocks(const AttentionRow& row) {
  return (row.num_committed + kLanes - 1) / kLanes;
}

// The positions from the first to the last in `cached` that rows `begin` to `end` have in blocks.
TANDEM_INLINE Positions WantedByRows(const AttentionArgs& args, uint32_t begin, uint32_t end,
                                     Positions cached) {
  Positions wanted = {~0u, 0};
  for (uint32_t row = begin; row < end; ++row) {
    const Positions own = Common(InBlocks(args.rows[row]), cached);
    if (own.empty()) continue;
    wanted = {Least(wanted.begin, own.begin), Most(wanted.end, own.end)};
  }
  return wanted;
}

// Prefetches a cache line into the second level. A line on its way to the first level would occupy one of its
// few miss buffers until it arrives, and memory is slow.
TANDEM_INLINE void AskFor(const void* line) {
  __builtin_prefetch(line, /*rw=*/0, /*locality=*/2);
}

// Prefetches a block that is needed soon: the processor cannot predict the next block, because blocks are
// anywhere in memory.
TANDEM_INLINE uint32_t BlockAhead(const RowRun& run, uint32_t block) {
  return run.blocks[block + kAttentionBlocks < run.num_blocks ? block + kAttentionBlocks : block];
}

constexpr size_t kKvScaleBytes = kLanes * sizeof(float);

// Converts vectors of bfloat16 or integers to float32. Also prefetches as much at `ahead`, one line at a
// time.
template <typename V>
TANDEM_INLINE void WidenBf16(const char* from, const char* ahead, size_t num_vectors, float* to) {
  constexpr size_t kVectorBytes = kLanes * sizeof(uint16_t);
#pragma GCC unroll 4
  for (size_t i = 0; i < num_vectors; ++i) {
    if (i % 2 == 0) AskFor(ahead + i * kVectorBytes);
    V::Store(V::LoadBf16(reinterpret_cast<const uint16_t*>(from + i * kVectorBytes)), to + i * kLanes);
  }
}
template <typename V>
TANDEM_INLINE void WidenInt8(const char* from, const char* ahead, size_t num_vectors, const V& scales,
                             float* to) {
#pragma GCC unroll 4
  for (size_t i = 0; i < num_vectors; ++i) {
    if (i % 4 == 0) AskFor(ahead + i * kLanes);
    const V integers = V::LoadInt8(reinterpret_cast<const int8_t*>(from + i * kLanes));
    V::Store(V::Multiply(integers, scales), to + i * kLanes);
  }
}

// The keys of a block, [head_dim][16], in a format other than kF32.
template <typename V>
TANDEM_INLINE void WidenKeys(const AttentionArgs& args, uint32_t block, uint32_t block_ahead, float* to) {
  const char* from = args.keys + block * args.key_block_bytes;
  const char* ahead = args.keys + block_ahead * args.key_block_bytes;
  if (args.format == KvFormat::kBf16) return WidenBf16<V>(from, ahead, args.head_dim, to);
  AskFor(ahead);
  const V scales = V::Load(reinterpret_cast<const float*>(from));
  WidenInt8<V>(from + kKvScaleBytes, ahead + kKvScaleBytes, args.head_dim, scales, to);
}

// The value at `offset` of a block, [value_stride], in a format other than kF32.
template <typename V>
TANDEM_INLINE void WidenValue(const AttentionArgs& args, uint32_t block, uint32_t block_ahead,
                              uint32_t offset, float* to) {
  const char* from = args.values + block * args.value_block_bytes;
  const char* ahead = args.values + block_ahead * args.value_block_bytes;
  const size_t num_vectors = args.value_stride / kLanes;
  if (args.format == KvFormat::kBf16) {
    const size_t at = offset * args.value_stride * sizeof(uint16_t);
    return WidenBf16<V>(from + at, ahead + at, num_vectors, to);
  }
  if (offset == 0) AskFor(ahead);
  const V scale = V::Broadcast(reinterpret_cast<const float*>(from)[offset]);
  const size_t at = kKvScaleBytes + offset * args.value_stride;
  WidenInt8<V>(from + at, ahead + at, num_vectors, scale, to);
}

// The keys or the values of up to kAttentionBlocks blocks of a run, by their places in the context.
struct WideBlocks {
  static constexpr bool kAreAskedFor = true;  // The next blocks, if they need no conversion.
  uint32_t first;
  const float* blocks[kAttentionBlocks];
  TANDEM_INLINE const float* at(uint32_t block) const { return blocks[block - first]; }
};

// Of the blocks that contain `cached`, those that the run's rows need.
template <typename V>
TANDEM_INLINE WideBlocks KeysOf(const AttentionArgs& args, const RowRun& run, Positions cached) {
  WideBlocks keys = {cached.begin / kLanes, {}};
  if (args.format == KvFormat::kF32) {
    const uint32_t end = Least(keys.first + kAttentionBlocks, run.num_blocks);
    for (uint32_t block = keys.first; block < end; ++block) {
      keys.blocks[block - keys.first] =
          reinterpret_cast<const float*>(args.keys + run.blocks[block] * args.key_block_bytes);
    }
    return keys;
  }
  const Positions wanted = WantedByRows(args, run.begin, run.end, cached);
  for (uint32_t block = wanted.begin / kLanes; block * kLanes < wanted.end; ++block) {
    float* const to = args.wide_keys + size_t{block - keys.first} * args.head_dim * kLanes;
    WidenKeys<V>(args, run.blocks[block], BlockAhead(run, block), to);
    keys.blocks[block - keys.first] = to;
  }
  return keys;
}

template <typename V>
TANDEM_INLINE WideBlocks ValuesOf(const AttentionArgs& args, const RowRun& run, Positions cached) {
  WideBlocks values = {cached.begin / kLanes, {}};
  if (args.format == KvFormat::kF32) {
    const uint32_t end = Least(values.first + kAttentionBlocks, run.num_blocks);
    for (uint32_t block = values.first; block < end; ++block) {
      values.blocks[block - values.first] =
          reinterpret_cast<const float*>(args.values + run.blocks[block] * args.value_block_bytes);
    }
    return values;
  }
  const Positions wanted = WantedByRows(args, run.begin, run.end, cached);
  for (uint32_t block = wanted.begin / kLanes; block * kLanes < wanted.end; ++block) {
    float* const to = args.wide_values + (block - values.first) * kLanes * args.value_stride;
    for (uint32_t offset = 0; offset < kLanes; ++offset) {
      WidenValue<V>(args, run.blocks[block], BlockAhead(run, block), offset, to + offset * args.value_stride);
    }
    values.blocks[block - values.first] = to;
  }
  return values;
}

// The keys of the block that contains tail slots.
template <typename V>
TANDEM_INLINE const float* KeysOfTail(const AttentionArgs& args, uint32_t block) {
  if (args.format == KvFormat::kF32) {
    return reinterpret_cast<const float*>(args.keys + block * args.key_block_bytes);
  }
  WidenKeys<V>(args, block, block, args.wide_keys);
  return args.wide_keys;
}

// The values at some positions of a row's tail.
struct TailValues {
  static constexpr bool kAreAskedFor = false;
  static constexpr uint32_t kMost = kAttentionBlocks * kLanes;
  uint32_t first;
  const float* values[kMost];
  TANDEM_INLINE const float* at(uint32_t position) const { return values[position - first]; }
};

// At most TailValues::kMost positions.
template <typename V>
TANDEM_INLINE void LocateTail(const AttentionArgs& args, const AttentionRow& row, Positions positions,
                              TailValues* tail) {
  tail->first = positions.begin;
  for (uint32_t position = positions.begin; position < positions.end; ++position) {
    const uint32_t slot = row.tail[position - row.num_committed];
    const uint32_t block = slot / kLanes;
    const float*& value = tail->values[position - positions.begin];
    if (args.format == KvFormat::kF32) {
      value = reinterpret_cast<const float*>(args.values + block * args.value_block_bytes) +
              slot % kLanes * args.value_stride;
    } else {
      float* const to = args.wide_values + (position - positions.begin) * args.value_stride;
      WidenValue<V>(args, block, block, slot % kLanes, to);
      value = to;
    }
  }
}

}  // namespace
}  // namespace tandem

#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/attention_kernels.h"
#include "common/engine/cuda/kernels/product_kernels.h"

namespace tandem {

// How many threads run a kernel, and with what shared memory.
struct LaunchShape {
  uint32_t grid_x = 1;
  uint32_t grid_y = 1;
  uint32_t threads = kWarpThreads;  // Of a block; a multiple of 32, at most 1024.
  uint32_t shared_bytes = 0;

  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

// What the launches of one kernel need; `rows` is the bucket's. Counts are at least 1.
LaunchShape EmbedShape(uint32_t rows, uint32_t hidden_size);
LaunchShape RoundInputsShape(uint32_t rows, uint32_t depth);
// Of products with packed weights: a block takes as many tiles as leave one block for each multiprocessor, or
// two for few rows, which need more reads under way. The fewer blocks, the less often they read the inputs.
ProductGrid MultiplyGrid(uint32_t num_multiprocessors, uint32_t rows, uint32_t outputs, uint32_t depth);
LaunchShape MultiplyShape(const ProductGrid& grid);
LaunchShape NormShape(uint32_t rows, uint32_t hidden_size);
LaunchShape GateShape(uint32_t rows, uint32_t width);
LaunchShape PrepareShape(uint32_t rows, uint32_t num_all_heads);
// As many blocks as keep `num_multiprocessors` busy, whatever the step; `columns` are KV heads times parts.
LaunchShape AttendShape(uint32_t num_multiprocessors, uint32_t columns, uint32_t head_dim);
LaunchShape FoldShape(uint32_t rows, uint32_t num_heads, uint32_t head_dim);
LaunchShape CopyKvShape(uint64_t num_elements);
LaunchShape ChoiceShape(uint32_t rows, uint32_t vocab_size);
LaunchShape WalkShape(uint32_t num_sessions);
LaunchShape JoinLogitsShape(uint32_t rows, uint32_t num_ranks);

// Shared memory of AttendKernel.
uint32_t AttendSharedBytes(uint32_t head_dim);
// Shared memory of products with packed weights, for a bucket of this many rows or more.
uint32_t MultiplySharedBytes(uint32_t rows);

// The rows a graph is captured for when a step has `num_rows` (at least 1): 8, 16, 32, 64, and then multiples
// of 64.
uint32_t BucketOf(uint32_t num_rows);

}  // namespace tandem

#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/adapter_kernels.h"
#include "common/engine/cuda/kernels/attend_kernel.h"
#include "common/engine/cuda/kernels/attention_kernels.h"
#include "common/engine/cuda/kernels/expert_kernels.h"
#include "common/engine/cuda/kernels/product_kernels.h"

namespace tandem {

// The threads and the shared memory of a kernel's launch.
struct LaunchShape {
  uint32_t grid_x = 1;
  uint32_t grid_y = 1;
  uint32_t threads = kWarpThreads;  // Of a block; a multiple of 32, at most 1024.
  uint32_t shared_bytes = 0;

  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

// The shapes of each kernel's launches. `rows` is the bucket's. Counts are at least 1.
LaunchShape EmbedShape(uint32_t rows, uint32_t hidden_size);
LaunchShape RoundInputsShape(uint32_t rows, uint32_t depth);
// For products with packed weights.
LaunchShape MultiplyShape(const ProductGrid& grid);
// For products with experts, whose rows are a plan's items: the grid's num_rows is RowsPerItem, and its
// matrix is one expert's.
struct ExpertSizes {
  uint32_t num_experts = 0;
  uint32_t num_chosen = 0;
};
// The most rows of one item: twice an expert's rows if all experts had as many of the bucket's rows, between
// 8 and kProductRows. A smaller number takes less shared memory; a larger one reads weights less often. Bits
// do not depend on it.
uint32_t RowsPerItem(uint32_t rows, const ExpertSizes& experts);
// The most items that a plan has.
uint32_t MostItems(uint32_t rows, const ExpertSizes& experts);
LaunchShape MultiplyExpertsShape(const ProductGrid& grid, uint32_t most_items);
// For an adapter's first product. The second one uses GateShape with its outputs.
LaunchShape ReduceShape(uint32_t rows);
LaunchShape RouteShape(uint32_t rows, uint32_t num_outputs);
LaunchShape ChooseExpertsShape(uint32_t rows, const ExpertSizes& experts);
LaunchShape GroupExpertsShape(const ExpertSizes& experts);
LaunchShape AddPartsShape(uint64_t size);
LaunchShape NormShape(uint32_t rows, uint32_t hidden_size);
LaunchShape GateShape(uint32_t rows, uint32_t width);
LaunchShape PrepareShape(uint32_t rows, uint32_t num_all_heads);
// As many blocks as keep `num_multiprocessors` busy, whatever the step; `columns` are KV heads times parts.
LaunchShape AttendShape(uint32_t num_multiprocessors, uint32_t columns, uint32_t head_dim);
LaunchShape FoldShape(uint32_t rows, uint32_t num_heads, uint32_t head_dim);
LaunchShape CopyKvShape(uint64_t num_elements);
LaunchShape ChoiceShape(uint32_t rows, uint32_t vocab_size);
LaunchShape JoinLogitsShape(uint32_t rows, uint32_t num_ranks);

// Which AttendKernel computes heads of this size (at most kLongestHead), and its shared memory.
uint32_t AttendWords(uint32_t head_dim);
uint32_t AttendSharedBytes(uint32_t head_dim);
// Shared memory of products with packed weights, for a bucket of this many rows or more.
uint32_t MultiplySharedBytes(uint32_t rows);

// The rows a graph is captured for when a step has `num_rows` (at least 1): 8, 16, 32, 64, and then multiples
// of 64.
uint32_t BucketOf(uint32_t num_rows);

}  // namespace tandem

#include "common/engine/cuda/launch_shape.h"

#include <algorithm>

#include "common/engine/cuda/kernels/choice_kernels.h"

namespace tandem {
namespace {

constexpr uint32_t kSmallestBucket = 8;
constexpr uint32_t kLargestDoubledBucket = 64;

constexpr uint32_t DivideRoundingUp(uint64_t a, uint64_t b) {
  return static_cast<uint32_t>((a + b - 1) / b);
}

// Whole warps for `wanted` threads.
constexpr uint32_t Threads(uint64_t wanted, uint32_t most) {
  const uint64_t warps = std::max<uint64_t>(1, (wanted + kWarpThreads - 1) / kWarpThreads);
  return static_cast<uint32_t>(std::min<uint64_t>(warps * kWarpThreads, most));
}

}  // namespace

LaunchShape EmbedShape(uint32_t rows, uint32_t hidden_size) {
  return {.grid_x = rows, .threads = Threads(hidden_size / 4, 512)};
}

LaunchShape NormShape(uint32_t rows, uint32_t hidden_size) {
  const uint32_t threads = Threads(hidden_size / 4, 1024);
  return {.grid_x = rows, .threads = threads, .shared_bytes = threads / kWarpThreads * 4};
}

LaunchShape AddPartsShape(uint64_t size) {
  constexpr uint32_t kThreads = 256;
  return {.grid_x = DivideRoundingUp(size, 4 * kThreads), .threads = kThreads};
}

LaunchShape RoundInputsShape(uint32_t rows, uint32_t depth) {
  const uint32_t groups = NumInputGroups(depth);
  const uint32_t warps = std::min(groups, 8u);
  return {.grid_x = rows, .grid_y = DivideRoundingUp(groups, warps), .threads = warps * kWarpThreads};
}

uint32_t MultiplySharedBytes(uint32_t rows) {
  return 2 * kProductWarps * std::min(rows, kProductRows) * kSumStride * 4;
}

LaunchShape MultiplyShape(const ProductGrid& grid) {
  return {.grid_x = NumPackedTiles(grid.outputs),
          .grid_y = DivideRoundingUp(grid.num_rows, kProductRows),
          .threads = kProductThreads,
          .shared_bytes = MultiplySharedBytes(grid.num_rows)};
}

uint32_t RowsPerItem(uint32_t rows, const ExpertSizes& experts) {
  const uint64_t choices = uint64_t{rows} * experts.num_chosen;
  uint32_t most = 8;
  while (most < kProductRows && most < rows && uint64_t{most} * experts.num_experts < 2 * choices) most *= 2;
  return most;
}

uint32_t MostItems(uint32_t rows, const ExpertSizes& experts) {
  // Each expert with choices has at most one item that is not full.
  const uint64_t choices = uint64_t{rows} * experts.num_chosen;
  return static_cast<uint32_t>(choices / RowsPerItem(rows, experts) +
                               std::min<uint64_t>(choices, experts.num_experts));
}

LaunchShape MultiplyExpertsShape(const ProductGrid& grid, uint32_t most_items) {
  return {.grid_x = NumPackedTiles(grid.outputs),
          .grid_y = most_items,
          .threads = kProductThreads,
          .shared_bytes = MultiplySharedBytes(grid.num_rows)};
}

LaunchShape ReduceShape(uint32_t rows) {
  return {.grid_x = rows, .grid_y = kReduceBlocks, .threads = 8 * kWarpThreads};
}

LaunchShape RouteShape(uint32_t rows, uint32_t num_outputs) {
  const uint32_t warps = std::min(num_outputs, 8u);
  return {.grid_x = DivideRoundingUp(num_outputs, warps),
          .grid_y = DivideRoundingUp(rows, RouteKernel::kRows),
          .threads = warps * kWarpThreads};
}

LaunchShape ChooseExpertsShape(uint32_t rows, const ExpertSizes& experts) {
  return {.grid_x = rows,
          .threads = kWarpThreads,
          .shared_bytes = 4 * (experts.num_experts + experts.num_chosen)};
}

LaunchShape GroupExpertsShape(const ExpertSizes& experts) {
  return {.threads = std::min(experts.num_experts, 32u) * kWarpThreads,
          .shared_bytes = 3 * 4 * experts.num_experts};
}

LaunchShape GateShape(uint32_t rows, uint32_t width) {
  const uint32_t threads = Threads(width, 256);
  return {.grid_x = rows, .grid_y = DivideRoundingUp(width, threads), .threads = threads};
}

LaunchShape PrepareShape(uint32_t rows, uint32_t num_all_heads) {
  const uint32_t warps = std::min(num_all_heads, 4u);
  return {.grid_x = rows, .grid_y = DivideRoundingUp(num_all_heads, warps), .threads = warps * kWarpThreads};
}

uint32_t AttendSharedBytes(uint32_t head_dim) {
  return 4 * (AttendWords(head_dim) * kQueryWords + kMaxQueriesPerItem * (kItemScoreStride + 3) +
              (kMaxQueriesPerItem + 1) * (kAttendChunk + 1));
}

uint32_t AttendWords(uint32_t head_dim) {
  return head_dim <= 64 ? 1 : head_dim <= 128 ? 2 : 4;
}

LaunchShape AttendShape(uint32_t num_multiprocessors, uint32_t columns, uint32_t head_dim) {
  constexpr uint32_t kBlocksEach = 4;
  return {.grid_x = DivideRoundingUp(uint64_t{kBlocksEach} * num_multiprocessors, columns),
          .grid_y = columns,
          .threads = kAttendThreads,
          .shared_bytes = AttendSharedBytes(head_dim)};
}

LaunchShape FoldShape(uint32_t rows, uint32_t num_heads, uint32_t head_dim) {
  return {.grid_x = rows, .grid_y = num_heads, .threads = Threads(head_dim, 256)};
}

LaunchShape CopyKvShape(uint64_t num_elements) {
  constexpr uint32_t kMostBlocks = 1024;
  const uint32_t threads = Threads(num_elements, 256);
  return {.grid_x = std::min(kMostBlocks, DivideRoundingUp(num_elements, threads)), .threads = threads};
}

LaunchShape ChoiceShape(uint32_t rows, uint32_t vocab_size) {
  const uint32_t threads = Threads(vocab_size / 16, 512);
  return {.grid_x = rows,
          .threads = threads,
          .shared_bytes = (ChoiceKernel::kBins + 2 * (threads / kWarpThreads) + 2) * 8};
}

LaunchShape JoinLogitsShape(uint32_t rows, uint32_t num_ranks) {
  return {.grid_x = rows, .grid_y = num_ranks, .threads = 256};
}

uint32_t BucketOf(uint32_t num_rows) {
  uint32_t bucket = kSmallestBucket;
  while (bucket < num_rows && bucket < kLargestDoubledBucket) bucket *= 2;
  return DivideRoundingUp(std::max(num_rows, bucket), bucket) * bucket;
}

}  // namespace tandem

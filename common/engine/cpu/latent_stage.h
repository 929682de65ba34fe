#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/cpu_attention.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Latent attention in a CpuEngine (equations: LatentDescription). Before attention, it turns the output of
// a layer's first product into what CpuAttention reads: queries against latents. After attention, it turns
// the weighted sums of latents into the inputs of the attention's output matrix.
//
// Each head's matrices are multiplied separately, with the rows of one head next to each other: row r of
// head h is row h * room + r of the buffers that are called [heads, rows, ..] here.
//
// Law 1: all sums are those of products and norms, which do not depend on the other rows.
class LatentStage {
 public:
  // All pointers, and the memory of `attended`, [max_rows, num_heads * value_dim], outlive this.
  // ResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<LatentStage>> Create(const ModelConfig& config,
                                                             const KernelTable& kernels, ThreadTeam* team,
                                                             uint32_t max_rows, const RowBuffer& attended);

  // The first head's [rows, head_dim] and [rows, kv_rank], which attention reads and writes, and the distance
  // to the next head's, in floats.
  const RowBuffer& queries() const { return queries_; }
  const RowBuffer& sums() const { return sums_.floats(); }
  size_t query_stride() const { return room_ * queries_.stride(); }
  size_t sum_stride() const { return room_ * sums_.floats().stride(); }

  // Every thread of the team calls it for one layer: makes the queries of the rows from `projected`, [rows,
  // projected_size], and gives `attention` their keys and values. Has its own barriers; the caller adds the
  // one after it.
  void Prepare(int thread, uint32_t layer, const CpuWeights::Latent& weights,
               absl::Span<const ActiveRow> rows, const RowBuffer& projected, CpuAttention* attention);
  // One thread calls it, between barriers: copies the queries of row `from` to row `to`.
  void MoveQueries(uint32_t from, uint32_t to);
  // Every thread calls it once the sums of the first `num_rows` rows are complete: computes their part of
  // `attended`. Has its own barriers; the caller adds the one after it.
  void MultiplyValues(int thread, const CpuWeights::Latent& weights, uint32_t num_rows);

 private:
  LatentStage(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team, uint32_t max_rows);

  absl::Status Allocate(uint32_t max_rows, const RowBuffer& attended);
  void ProjectQueries(int thread, const CpuWeights::Latent& weights, uint32_t num_rows,
                      const RowBuffer& projected);
  // This thread's outputs of a product of every head with its rows.
  void MultiplyHeads(int thread, const std::vector<PackedMatrix>& matrices, const ProductInputs& inputs,
                     uint32_t num_rows, float* const* outputs) const;
  Share MyShare(uint32_t count, int thread) const { return ShareOf(count, thread, team_->num_threads()); }
  uint32_t At(uint32_t head, uint32_t row) const { return head * room_ + row; }

  const LatentDescription latent_;
  const uint32_t num_heads_;
  const uint32_t room_;  // Rows of a head, rounded up so that products may begin there.
  const KernelTable& kernels_;
  ThreadTeam* const team_;

  ProductInputs query_latents_;        // [max_rows, query_rank], if queries have latents.
  RowBuffer projected_queries_;        // [max_rows, num_heads * query_dim], the same.
  ProductInputs unturned_;             // [heads, rows, unturned_dim]
  RowBuffer queries_;                  // [heads, rows, kv_rank + turned_dim]
  ProductInputs sums_;                 // [heads, rows, kv_rank]
  std::vector<float*> value_outputs_;  // [heads, rows]: where that head's values are in `attended`.
};

}  // namespace tandem

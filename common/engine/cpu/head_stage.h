#pragma once

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

// The parts of an EAGLE head or a next-token module that differ from a language model: the beginning of a
// row, and what attention reads (equations: HeadConfig). Law 1 holds as elsewhere: the projection sums in one
// order, whatever the rows.
//
// In each step, one thread calls Plan. Then every thread of the team calls Begin, passes a barrier, and
// calls ReadForAttention.
class HeadStage {
 public:
  // All pointers outlive this. ResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<HeadStage>> Create(const ModelConfig& config,
                                                           const CpuWeights& weights,
                                                           const KernelTable& kernels, ThreadTeam* team,
                                                           uint32_t max_rows);

  // `hidden`, [rows, hidden_size], is where Begin writes.
  void Plan(absl::Span<const ActiveRow> rows, const RowBuffer& hidden);
  // Has its own barrier.
  void Begin(int thread, absl::Span<const ActiveRow> rows, const RowBuffer& hidden);
  // Writes the inputs of the first layer's query, key and value for this thread's rows.
  void ReadForAttention(int thread, absl::Span<const ActiveRow> rows, const PackedMatrix& projection,
                        const RowBuffer& hidden);
  const ProductInputs& attention_inputs() const { return attention_inputs_; }

 private:
  HeadStage(const ModelConfig& config, const CpuWeights& weights, const KernelTable& kernels,
            ThreadTeam* team);

  bool is_eagle3() const { return config_.head->kind == HeadConfig::Kind::kEagle3; }
  bool TakesStateAsItIs(const StepRow& row) const;
  void FillNormed(absl::Span<const float> states, float* out) const;
  // Fills the projection's inputs of a row, [projection.depth()].
  void FillInputs(const StepRow& row, float* out) const;
  void CopyEmbedding(TokenId token, float* out) const;

  const ModelConfig& config_;
  const CpuWeights::Head& weights_;
  const std::vector<float>& input_norm_;  // The layer's norm, only for MTP.
  const KernelTable& kernels_;
  ThreadTeam* const team_;

  ProductInputs fused_;             // [rows that are projected, the projection's inputs]
  ProductInputs attention_inputs_;  // [rows, inputs of query, key and value]
  std::vector<const ActiveRow*> projected_;
  std::vector<float*> outputs_;  // For each projected row, its row in `hidden`.
};

}  // namespace tandem

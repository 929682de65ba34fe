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

// The parts of a draft head that differ from a language model: the beginning of a row, what attention
// reads, and which tokens have logits (equations: HeadConfig). Law 1 holds as elsewhere: the projection
// sums in one order, whatever the rows.
//
// In each step, one thread calls Plan. Then every thread of the team calls Begin, passes a barrier, and
// calls ReadForAttention. Spread moves logits from the order of the draft vocabulary to that of the
// target's.
class HeadStage {
 public:
  // Everything that is pointed to outlives this. ResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<HeadStage>> Create(const ModelConfig& config,
                                                           const CpuWeights& weights,
                                                           const KernelTable& kernels, ThreadTeam* team,
                                                           uint32_t max_rows);

  // `hidden`, [rows, hidden_size], is where Begin writes.
  void Plan(absl::Span<const ActiveRow> rows, const RowBuffer& hidden);
  // Has a barrier of its own.
  void Begin(int thread, absl::Span<const ActiveRow> rows, const RowBuffer& hidden);
  // Lays out the inputs of query, key and value, of this thread's rows.
  void ReadForAttention(int thread, absl::Span<const ActiveRow> rows, const PackedMatrix& projection,
                        const RowBuffer& hidden);
  const ProductInputs& attention_inputs() const { return attention_inputs_; }
  // Whether logits come out of the product as they are.
  bool drafts_all_tokens() const { return weights_.draft_tokens.empty(); }
  // `logits`: [vocab_size], of which the product has written the first draft_vocab_size. Those of tokens that
  // the head does not draft become minus infinity.
  void Spread(int thread, float* logits);

 private:
  HeadStage(const ModelConfig& config, const CpuWeights& weights, const KernelTable& kernels,
            ThreadTeam* team);

  bool is_eagle3() const { return config_.head->kind == HeadConfig::Kind::kEagle3; }
  // What the projection reads of a row, [projection.depth()].
  void FillInputs(const StepRow& row, float* out) const;
  void CopyEmbedding(TokenId token, float* out) const;

  const ModelConfig& config_;
  const CpuWeights::Head& weights_;
  const std::vector<float>& input_norm_;  // The layer's; empty but for MTP.
  const KernelTable& kernels_;
  ThreadTeam* const team_;

  ProductInputs fused_;             // [rows that are projected, the projection's inputs]
  ProductInputs attention_inputs_;  // [rows, what query, key and value read]
  std::vector<const ActiveRow*> projected_;
  std::vector<float*> outputs_;                    // Of each of them, in `hidden`.
  std::vector<std::vector<float>> thread_logits_;  // [draft_vocab_size], where they are to be spread.
};

}  // namespace tandem

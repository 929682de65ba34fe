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
#include "common/engine/engine.h"
#include "common/model/config/model_config.h"

namespace tandem {

// The parts of a DFlash head that differ from a language model (HeadConfig has the equations): keys and
// values of rows come from the target's states alone, and a row with logits stands for a block of slots,
// which go through the layers. Slots have keys and values of their own for the time of a pass, behind those
// of the engine's blocks. Law 1 holds as elsewhere.
//
// In each step, ReadStates comes first, with all rows. Then LayOut fills one pass after the other, and in
// each pass every thread of the team calls Embed in place of a model's embedding.
class BlockStage {
 public:
  struct Options {
    uint32_t max_rows = 0;    // Of a step, and slots of a pass.
    uint32_t num_blocks = 0;  // Of keys and values, for rows.
  };

  // How many blocks of keys and values the slots of a pass take.
  static uint32_t NumKvBlocks(const ModelConfig& config, uint32_t max_rows);

  // All pointers outlive this. InvalidArgument if max_rows is less than one block, ResourceExhausted without
  // memory.
  static absl::StatusOr<std::unique_ptr<BlockStage>> Create(const ModelConfig& config,
                                                            const CpuWeights& weights,
                                                            const KernelTable& kernels, ThreadTeam* team,
                                                            CpuAttention* attention, const Options& options);

  // Computes and stores the rows' keys and values in every layer. Runs the team.
  void ReadStates(absl::Span<const StepRow> rows);

  // Lays out the blocks of rows with logits, from row `*next` on, as many as fit into a pass, and moves
  // `*next` behind the last row that it has looked at. Writes the slots to `active`, which is as long as a
  // pass, and returns their number. They are valid until the next call.
  uint32_t LayOut(absl::Span<const StepRow> rows, size_t* next, absl::Span<ActiveRow> active);

  // Of a DSpark head: adds what a token adds to the logits behind it, [vocab_size]. Runs the team.
  void AddTokenBefore(TokenId token, float* logits);

  // Writes the embeddings of this thread's slots to `hidden`, [slots, hidden_size].
  void Embed(int thread, absl::Span<const ActiveRow> slots, const RowBuffer& hidden) const;

 private:
  BlockStage(const ModelConfig& config, const CpuWeights& weights, const KernelTable& kernels,
             ThreadTeam* team, CpuAttention* attention);

  void ReadStatesIn(int thread, absl::Span<const StepRow> rows);
  void AddBlock(const StepRow& row, absl::Span<ActiveRow> active);
  uint32_t num_slots() const { return static_cast<uint32_t>(config_.head->block.num_slots); }

  const ModelConfig& config_;
  const CpuWeights& weights_;
  const KernelTable& kernels_;
  ThreadTeam* const team_;
  CpuAttention* const attention_;
  SlotId first_slot_ = 0;  // Of the slots of a pass.
  uint32_t blocks_per_pass_ = 0;

  std::vector<ActiveRow> read_;  // The rows of a step, as attention stores them.
  ProductInputs states_;         // [max_rows, state_size]
  RowBuffer projected_;          // [max_rows, hidden]
  ProductInputs context_;        // [max_rows, hidden]: c of every row
  RowBuffer query_key_value_;    // [max_rows, projected_size], with keys and values only

  ProductInputs before_;      // [1, markov_rank]
  RowBuffer added_by_token_;  // [1, draft_vocab_size]

  uint32_t num_laid_out_ = 0;               // Blocks of the pass.
  std::vector<std::vector<SlotId>> tails_;  // Of each block: where its context ends, with its slots.
  std::vector<StepRow> slots_;
};

}  // namespace tandem

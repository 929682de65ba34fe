#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/expert_chooser.h"
#include "common/engine/cpu/feed_forward.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Computes the experts of a CpuEngine's layers (equations: ExpertsDescription). Rows are grouped by
// expert, so that the weights of each chosen expert are read once, and those of the others are not read at
// all.
//
// Law 1: the outputs of a product do not depend on the other rows; the router is stored and multiplied in
// float32, whatever the weights' type; equal scores go to the expert with the lower number; and a row sums
// its experts in the order of their numbers, not in the order of computation.
class ExpertStage {
 public:
  // All pointers outlive this. ResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<ExpertStage>> Create(const ModelConfig& config,
                                                             const KernelTable& kernels, ThreadTeam* team,
                                                             uint32_t max_rows);

  // One thread calls it before a step.
  void BeginStep() { num_read_ = 0; }

  // Every thread of the team calls it for one layer, when the first `num_rows` rows of `inputs` are complete.
  // When it returns, this thread can sum up its rows. Has its own barriers.
  void Run(int thread, const CpuWeights::Experts& experts, const ProductInputs& inputs, uint32_t num_rows);

  // The sum of a row's experts, [hidden], without the shared one; overwritten by the next Run.
  float* sum(uint32_t row) { return sums_.row(row); }
  // The factor for the shared expert's output, if it has a gate.
  float SharedWeight(uint32_t row) const;

  // Experts whose weights the step has read, over all layers.
  uint64_t num_read() const { return num_read_; }

 private:
  // Rows of one expert, in slots [begin, end).
  struct Group {
    uint32_t expert = 0;
    Share slots;
  };

  ExpertStage(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team);

  absl::Status Allocate(uint32_t max_rows);
  Share MyShare(uint32_t count, int thread) const { return ShareOf(count, thread, team_->num_threads()); }
  absl::Span<ExpertChoice> ChoicesOf(uint32_t row);
  void GroupRows(uint32_t num_rows);
  void Gather(int thread, const PackedMatrix& next, const ProductInputs& inputs, uint32_t num_rows);
  // A thread takes the next work item when it is done with one. Items are parts of experts.
  void MultiplyGatesAndUps(const CpuWeights::Experts& experts);
  void MultiplyDowns(const CpuWeights::Experts& experts);
  void Sum(uint32_t row);

  const BlockDescription& block_;
  const uint32_t num_experts_;
  const uint32_t num_chosen_;
  const uint32_t hidden_size_;
  const KernelTable& kernels_;
  ThreadTeam* const team_;

  RowBuffer router_outputs_;             // [max_rows, num_experts + shared gate]
  std::vector<ExpertChooser> choosers_;  // One for each thread.
  std::vector<ExpertChoice> choices_;    // [max_rows, num_chosen]
  // The plan, made by the first thread.
  std::vector<uint32_t> next_slot_;  // [num_experts]
  std::vector<Group> groups_;        // In the order of their experts.
  uint32_t parts_per_group_ = 1;
  std::atomic<uint32_t> next_gate_item_{0};
  std::atomic<uint32_t> next_down_item_{0};
  uint64_t num_read_ = 0;

  ProductInputs gathered_;     // [slots, hidden]
  FeedForwardScratch middle_;  // [slots, intermediate]
  RowBuffer outputs_;          // [slots, hidden]
  RowBuffer sums_;             // [max_rows, hidden]
};

}  // namespace tandem

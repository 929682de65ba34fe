#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/attention_args.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/kv_store.h"
#include "common/engine/cpu/rotary_table.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/engine.h"
#include "common/engine/kv_type.h"
#include "common/model/config/model_config.h"

namespace tandem {

// A row of the current step, with its position in the activations. A slot of a DFlash head's block is one
// too; its context names the whole block, so that it goes on behind the slot.
struct ActiveRow {
  const StepRow* row = nullptr;
  uint32_t position = 0;
  SlotId slot = 0;
  // Windows end before this position: the one behind the row, or a block's anchor.
  uint32_t window_end = 0;
};

// Attention of a CpuEngine: holds the KV cache of all slots, and writes and reads it.
//
// For each layer of a step, every thread of the team calls Prepare, passes a barrier, calls Attend, and
// passes a barrier. Before that, and whenever the rows have changed, one thread calls Plan, with a barrier
// before Prepare.
class CpuAttention {
 public:
  struct Options {
    KvType kv_type = KvType::kAuto;
    uint32_t num_blocks = 0;
    uint32_t max_rows = 0;
    uint32_t max_context = 0;  // Tokens, with those of a DFlash head's block.
    // Floats from one head of a row to the next; 0: heads lie side by side.
    size_t query_stride = 0;
    size_t output_stride = 0;
  };

  // `team` computes later. It must outlive this.
  // ResourceExhausted without memory, InvalidArgument for more blocks than can be numbered.
  static absl::StatusOr<std::unique_ptr<CpuAttention>> Create(const ModelConfig& config,
                                                              const KernelTable& kernels, ThreadTeam* team,
                                                              const Options& options);

  // Decides which rows go through shared blocks together. The rows, in the order of their activations
  // (`query_key_value` and `output`), are used until the next Plan.
  void Plan(absl::Span<const ActiveRow> rows, const RowBuffer& query_key_value, const RowBuffer& output);

  // Prepares this thread's rows of `query_key_value`, [rows, query_size + 2 * kv_size], in place. Normalises
  // queries and keys if there are norms, rotates them in layers that do, and stores keys and values.
  void Prepare(int thread, uint32_t layer, absl::Span<const ActiveRow> rows,
               const std::vector<float>& query_norm, const std::vector<float>& key_norm,
               const RowBuffer& query_key_value);

  // Computes the rotations of the rows' positions. Call it before StoreKeysAndValues, from one thread; Plan
  // does it too.
  void ReachPositions(absl::Span<const ActiveRow> rows);
  // As Prepare, for keys and values alone, of rows that do not attend.
  void StoreKeysAndValues(int thread, uint32_t layer, absl::Span<const ActiveRow> rows,
                          const std::vector<float>& key_norm, const RowBuffer& query_key_value);

  // In place of Prepare, for rows whose queries, keys and values LatentStage computes: every thread calls
  // BeginLayer, and the other two for its rows. Turn rotates the first rotary_dim numbers, in layers that
  // rotate.
  void BeginLayer(int thread) {
    if (thread == 0) next_item_.store(0, std::memory_order_relaxed);
  }
  void Turn(uint32_t layer, uint32_t position, float* numbers) const;
  void Store(uint32_t layer, SlotId slot, const float* key, const float* value) {
    kv_.Write(layer, slot, key, value);
  }

  // output[row] = softmax(scores) v over the part of the row's context that the layer sees, for the rows and
  // buffers of Plan, [rows, num_heads * value_dim]. Scores are q k / sqrt(head_dim), or as the
  // configuration's block says, plus those of `sinks`, [num_heads] or empty.
  void Attend(int thread, uint32_t layer, const std::vector<float>& sinks);

  // The keys and values of one slot, in every layer.
  void Copy(SlotId from, SlotId to) { kv_.Copy(from, to); }

 private:
  // The scratch of AttentionArgs, one for each thread.
  struct ThreadScratch {
    AlignedBuffer wide_keys;
    AlignedBuffer wide_values;
    AlignedBuffer scores;
    AlignedBuffer sums;
    AlignedBuffer totals;
    AlignedBuffer greatest;
  };
  // The rows of the plan, for layers with one window size that look ahead in a block, or do not.
  struct WindowRows {
    uint32_t window = 0;  // 0: everything.
    bool looks_ahead = false;
    std::vector<AttentionRow> rows;
  };
  // Rows [begin, end) of the plan.
  struct Group {
    uint32_t begin = 0;
    uint32_t end = 0;
  };

  CpuAttention(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team);

  absl::Status AllocateScratch(const Options& options);
  absl::Status BuildRotations(uint32_t max_context);
  void FindWindows(uint32_t max_rows);
  const RotaryTable* RotationOf(uint32_t layer) const;
  void NormaliseHeads(const std::vector<float>& norm, int32_t num_heads, float* heads) const;
  bool LooksAhead(uint32_t layer) const;
  void OrderRows(absl::Span<const ActiveRow> rows);
  void SplitHeads(uint32_t num_rows);
  void GroupRows();
  void AttendItem(uint32_t layer, const std::vector<float>& sinks, uint32_t item, AttentionArgs* args) const;

  const ModelConfig config_;
  const KernelTable& kernels_;
  ThreadTeam* const team_;
  const uint32_t num_kv_heads_;
  const uint32_t heads_per_kv_;
  KvStore kv_;
  RotaryTable rotary_;
  RotaryTable local_rotary_;
  std::vector<float> slopes_;  // [num_heads], of ALiBi, else empty.
  float scale_ = 1.0f;
  size_t query_stride_ = 0;
  size_t output_stride_ = 0;
  std::vector<ThreadScratch> thread_scratch_;

  // The plan: items of work are a group of rows times some heads of one KV head, numbered by group, KV head
  // and part of its heads.
  std::vector<uint32_t> order_;
  // The windows of the model's layers, those that see most first, and the index of each layer's window.
  std::vector<WindowRows> windows_;
  std::vector<uint32_t> window_of_layer_;
  std::vector<Group> groups_;
  uint32_t heads_per_item_ = 1;
  uint32_t parts_per_kv_ = 1;
  std::atomic<uint32_t> next_item_{0};  // Of the layer under way.
};

}  // namespace tandem

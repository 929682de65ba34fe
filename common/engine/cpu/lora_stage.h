#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/cpu_attention.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/packed_matrix.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/engine.h"
#include "common/model/config/model_config.h"
#include "common/model/lora_adapter.h"

namespace tandem {

// The products of a layer to which adapters may add, as a CpuEngine computes them: query, key and value in
// one. kGate and kUp have the same inputs.
enum class LoraProduct : uint8_t { kQueryKeyValue, kAttentionOut, kGate, kUp, kDown };

// The adapters of a CpuEngine, and their part in a step. A step's rows are sorted by adapter, rows without
// one first, so that the rows of an adapter go through its matrices together and nothing is copied:
//
//   reduced = a * input                                    Reduce, for all products with that input
//   output  = output + scale * (b * reduced)               Add, once the product and its bias are there
//
// Law 1: every sum is one chain of multiply-adds in float32 over ascending inputs, whatever the type of
// the model's matrices and the instruction set, and no row's sum depends on other rows.
//
// Thread rule: one thread calls AddAdapter, DropAdapter and Plan, between steps or between two barriers.
// Every thread of the team calls Reduce and Add.
class LoraStage {
 public:
  // All pointers outlive this. ResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<LoraStage>> Create(const ModelConfig& config,
                                                           const KernelTable& kernels, ThreadTeam* team,
                                                           uint32_t max_rows);

  // As in Engine.
  absl::StatusOr<AdapterId> AddAdapter(const LoraAdapter& adapter);
  absl::Status DropAdapter(AdapterId adapter);

  // Rows of the current step, sorted by adapter.
  void Plan(absl::Span<const ActiveRow> rows);

  // For the rows with adapters, when all of `inputs` is complete. A barrier follows.
  void Reduce(int thread, size_t layer, LoraProduct product, const ProductInputs& inputs);
  // Adds to the outputs of these tiles of the product.
  void Add(int thread, size_t layer, LoraProduct product, Share tiles, float* const* outputs) const;

 private:
  static constexpr size_t kNumInputs = 4;
  // Products with the same inputs share it.
  static size_t InputOf(LoraProduct product);

  // A pair's outputs, among those of a product.
  struct Part {
    LoraProduct product = LoraProduct::kQueryKeyValue;
    uint32_t first_reduced = 0;  // Where its factors begin in the reduced row.
    uint32_t first_tile = 0;     // Of the product.
    uint32_t skipped = 0;        // Outputs of the first tile that precede its own.
    float scale = 0.0f;
    PackedMatrix b;  // [skipped + outputs, rank]; the first `skipped` are zeros.
  };
  // An adapter's part for one input.
  struct Input {
    PackedMatrix a;  // [sum of ranks, inputs]; empty if the adapter changes nothing
    std::vector<Part> parts;
  };
  struct Packed {
    std::vector<std::array<Input, kNumInputs>> layers;
  };
  // Rows of one adapter.
  struct Group {
    const Packed* adapter = nullptr;
    Share rows;
  };
  struct ThreadScratch {
    RowBuffer products;  // [max_rows, outputs of some tiles]
  };

  LoraStage(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team, uint32_t max_rows);

  struct PlacedPair;
  absl::StatusOr<Input> PackInput(absl::Span<const PlacedPair> pairs);
  absl::Status MakeRoom(const Packed& adapter);
  void AddPart(const Part& part, size_t input, Share rows, Share tiles, const RowBuffer& products,
               float* const* outputs) const;

  const ModelConfig& config_;
  const KernelTable& kernels_;
  ThreadTeam* const team_;
  const uint32_t max_rows_;
  AdapterId last_ = kNoAdapter;
  std::map<AdapterId, Packed> adapters_;
  std::vector<Group> groups_;
  std::array<RowBuffer, kNumInputs> reduced_;  // [max_rows, the greatest sum of ranks]
  std::vector<ThreadScratch> scratch_;
};

}  // namespace tandem

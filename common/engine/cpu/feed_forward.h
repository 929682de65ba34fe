#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/lora_stage.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/model/config/architecture.h"

namespace tandem {

// The values between the two halves of a feed-forward part, [rows, intermediate].
struct FeedForwardScratch {
  ProductInputs gate;
  RowBuffer up;  // Where something gates.
};

// Adds a bias to outputs [begin, end) of some rows; nothing if it is empty.
void AddBias(const std::vector<float>& bias, const KernelTable& kernels, Share outputs, Share rows,
             float* const* values);

// Computes some tiles of the half of a feed-forward part that comes before `down`, in whole groups of the
// inputs of `down`. Reads some rows of `inputs`, prepared for these products, and writes the same rows of
// `scratch->gate`, prepared for the product with `down`. `rows.begin` is 0 or a multiple of kRowAlignment.
//
//   gate(x) * up(x) as in BlockDescription::gate, or activation(up(x))
//
// Adapters, if there are any, add to the products; LoraCall gives layer and thread.
struct LoraCall {
  const LoraStage* stage = nullptr;  // Null: nothing.
  int thread = 0;
  size_t layer = 0;
};
void MultiplyGateAndUp(const BlockDescription& block, const KernelTable& kernels, const CpuWeights::Mlp& mlp,
                       Share tiles, Share rows, const ProductInputs& inputs, FeedForwardScratch* scratch,
                       const LoraCall& adapters = {});

// The tiles of `mlp.up` for part `part` of `num_parts`, in whole groups of the inputs of `mlp.down`.
Share GroupedTiles(const CpuWeights::Mlp& mlp, int part, int num_parts);

}  // namespace tandem

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

// Between the two halves of a feed-forward part, [rows, intermediate].
struct FeedForwardScratch {
  ProductInputs gate;
  RowBuffer up;  // Where something gates.
};

// Adds a bias, or nothing where it is empty, to outputs [begin, end) of some rows.
void AddBias(const std::vector<float>& bias, const KernelTable& kernels, Share outputs, Share rows,
             float* const* values);

// Tiles of the half of a feed-forward part that comes before `down`, whole groups of inputs of it: some rows
// of `inputs`, prepared for these products, become the same rows of `scratch->gate`, prepared for the product
// with `down`. `rows.begin` is 0 or a multiple of kRowAlignment.
//
//   gate(x) * up(x) as BlockDescription::gate says, or activation(up(x))
//
// What adapters add to the products, if there are any: LoraCall says of which layer, and in which thread.
struct LoraCall {
  const LoraStage* stage = nullptr;  // Null: nothing.
  int thread = 0;
  size_t layer = 0;
};
void MultiplyGateAndUp(const BlockDescription& block, const KernelTable& kernels, const CpuWeights::Mlp& mlp,
                       Share tiles, Share rows, const ProductInputs& inputs, FeedForwardScratch* scratch,
                       const LoraCall& adapters = {});

// Tiles of `mlp.up`, in whole groups of inputs of `mlp.down`, that fall to part `part` of `num_parts`.
Share GroupedTiles(const CpuWeights::Mlp& mlp, int part, int num_parts);

}  // namespace tandem

#include "common/engine/cpu/feed_forward.h"

#include <algorithm>

namespace tandem {
namespace {

// With x = alpha * g, g / (1 + exp(-x)) * u equals x / (1 + exp(-x)) * (u / alpha). So the limits come first,
// and then the kernel for a Llama's gates.
void LimitGate(const GateDescription& gate, size_t size, float* up_values, float* gate_values) {
  const float inverse = 1.0f / gate.alpha;
  if (gate.limit > 0) {
    for (size_t i = 0; i < size; ++i) {
      // A NaN stays a NaN.
      gate_values[i] = gate_values[i] > gate.limit ? gate.limit : gate_values[i];
      up_values[i] = up_values[i] > gate.limit    ? gate.limit
                     : up_values[i] < -gate.limit ? -gate.limit
                                                  : up_values[i];
    }
  }
  for (size_t i = 0; i < size; ++i) {
    gate_values[i] *= gate.alpha;
    up_values[i] = (up_values[i] + gate.up_offset) * inverse;
  }
}

}  // namespace

void AddBias(const std::vector<float>& bias, const KernelTable& kernels, Share outputs, Share rows,
             float* const* values) {
  if (bias.empty() || outputs.begin >= outputs.end) return;
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    kernels.add(bias.data() + outputs.begin, outputs.end - outputs.begin, values[row] + outputs.begin);
  }
}

void MultiplyGateAndUp(const BlockDescription& block, const KernelTable& kernels, const CpuWeights::Mlp& mlp,
                       Share tiles, Share rows, const ProductInputs& inputs, FeedForwardScratch* scratch,
                       const LoraCall& adapters) {
  const uint32_t begin = tiles.begin * kTileOutputs;
  const uint32_t end = std::min(tiles.end * kTileOutputs, mlp.up.num_outputs());
  if (begin >= end) return;
  RowBuffer& gate = scratch->gate.floats();
  const RowBuffer& up = block.gated ? scratch->up : gate;
  const auto adapt = [&](LoraProduct product, const RowBuffer& outputs) {
    if (adapters.stage == nullptr) return;
    adapters.stage->Add(adapters.thread, adapters.layer, product, tiles, outputs.rows());
  };
  if (block.gated) {
    mlp.gate.Multiply(tiles, inputs, rows, gate.rows());
    AddBias(mlp.gate_bias, kernels, {begin, end}, rows, gate.rows());
    adapt(LoraProduct::kGate, gate);
  }
  mlp.up.Multiply(tiles, inputs, rows, up.rows());
  AddBias(mlp.up_bias, kernels, {begin, end}, rows, up.rows());
  adapt(LoraProduct::kUp, up);
  const bool is_fused = block.gated && block.activation == Activation::kSilu;
  const auto activate = kernels.activations[static_cast<size_t>(block.activation)];
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    float* const values = gate.row(row) + begin;
    if (is_fused) {
      if (!block.gate.is_plain()) LimitGate(block.gate, end - begin, up.row(row) + begin, values);
      kernels.silu_multiply(up.row(row) + begin, end - begin, values);
      continue;
    }
    activate(end - begin, values);
    if (block.gated) kernels.multiply(up.row(row) + begin, end - begin, values);
  }
  scratch->gate.Prepare(mlp.down.kernel(), rows, {begin, end});
}

Share GroupedTiles(const CpuWeights::Mlp& mlp, int part, int num_parts) {
  constexpr uint32_t kGroupTiles = kInputGroup / kTileOutputs;
  const uint32_t num_tiles = mlp.up.num_tiles();
  const Share groups = ShareOf((num_tiles + kGroupTiles - 1) / kGroupTiles, part, num_parts);
  return {groups.begin * kGroupTiles, std::min(groups.end * kGroupTiles, num_tiles)};
}

}  // namespace tandem

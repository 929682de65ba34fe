#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/step_words.h"

// Adapters (LoRA), beside a layer's products (docs/inside/decisions/0022-adapters-in-the-step.md):
//
//   reduced = a * input                                  ReduceKernel
//   output  = output + scale * (b * reduced)             AddAdapterKernel, once the product is there
//
// for each row with the adapter that it names, in float32. The step's words, and memory that they point to,
// say which rows have which adapters, so that one captured graph serves every step; blocks of rows without an
// adapter end at once. Sums have one order each, whoever shares the step. CPU reference: cpu/lora_stage.cc,
// which adds up `a * input` in another order.

namespace tandem {

// What an adapter adds to some outputs of a product.
struct AdapterPart {
  DeviceSpan<const float> b;  // [num_reduced, num_outputs]
  float scale = 0.0f;
  uint32_t first_reduced = 0;  // Where its factors begin in the reduced row.
  uint32_t num_reduced = 0;
  uint32_t first_output = 0;
  uint32_t num_outputs = 0;
};

// An adapter's part for the inputs of one product in one layer.
struct AdapterInput {
  static constexpr uint32_t kMostParts = 3;

  DeviceSpan<const float> a;  // [num_reduced, depth]; empty if the adapter changes nothing here.
  uint32_t num_reduced = 0;   // Of all parts.
  uint32_t num_parts = 0;
  AdapterPart parts[kMostParts];
};

// The inputs that adapters read, named after the products that read them.
inline constexpr uint32_t kQueryKeyValueInput = 0;
inline constexpr uint32_t kAttentionOutInput = 1;
inline constexpr uint32_t kGateUpInput = 2;
inline constexpr uint32_t kDownInput = 3;
inline constexpr uint32_t kAdapterInputs = 4;

// The table in which a step's rows find their adapters.
struct AdapterTable {
  StepWords step;
  // By an adapter's place; each [layers][kAdapterInputs].
  DeviceSpan<const DeviceSpan<const AdapterInput>> adapters;
  uint32_t index = 0;  // Of the layer and the input.

  TANDEM_DEVICE bool Has(uint32_t row) const {
    return row < step.num_rows() && step.row(row, StepWords::kAdapter) != 0;
  }
  // For a row that has an adapter.
  TANDEM_DEVICE const AdapterInput& InputOf(uint32_t row) const {
    return adapters[step.row(row, StepWords::kAdapter) - 1][index];
  }
};

// One warp computes each sum: every lane adds up its inputs (modulo 32, ascending), and the warp adds up the
// lanes. Grid (rows, kReduceBlocks).
inline constexpr uint32_t kReduceBlocks = 4;
struct ReduceKernel {
  AdapterTable table;
  DeviceSpan<const Bf16> inputs;  // [rows, depth]
  DeviceSpan<float> reduced;      // [rows, width]
  uint32_t depth = 0;
  uint32_t width = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (!table.Has(row)) return;
    const AdapterInput& input = table.InputOf(row);
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t num_warps = block.num_threads() / kWarpThreads;
    for (uint32_t r = block.index_y() * num_warps + block.thread() / kWarpThreads; r < input.num_reduced;
         r += kReduceBlocks * num_warps) {
      float sum = 0.0f;
      for (uint32_t i = lane; i < depth; i += kWarpThreads) {
        sum = Fma(ToFloat(inputs[uint64_t{row} * depth + i]), input.a[uint64_t{r} * depth + i], sum);
      }
      sum = WarpSum(block, sum);
      if (lane == 0) reduced[uint64_t{row} * width + r] = sum;
    }
  }
};

// Each sum is a chain of fused multiply-adds over the reduced row, ascending. Grid (rows, ceil(size /
// threads)).
struct AddAdapterKernel {
  AdapterTable table;
  DeviceSpan<const float> reduced;  // [rows, width]
  DeviceSpan<float> outputs;        // [rows, size]
  uint32_t width = 0;
  uint32_t size = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (!table.Has(row)) return;
    const uint32_t output = block.index_y() * block.num_threads() + block.thread();
    if (output >= size) return;
    const AdapterInput& input = table.InputOf(row);
    for (uint32_t i = 0; i < input.num_parts; ++i) {
      const AdapterPart& part = input.parts[i];
      if (output < part.first_output || output >= part.first_output + part.num_outputs) continue;
      const uint32_t own = output - part.first_output;
      float sum = 0.0f;
      for (uint32_t r = 0; r < part.num_reduced; ++r) {
        sum = Fma(part.b[uint64_t{r} * part.num_outputs + own],
                  reduced[uint64_t{row} * width + part.first_reduced + r], sum);
      }
      outputs[uint64_t{row} * size + output] += part.scale * sum;
    }
  }
};

}  // namespace tandem

#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/step_words.h"

// Kernels that take one block of threads for each row of activations. Rows beyond the step's are left alone:
// grids are as large as the bucket a graph was captured for. References: the CPU engine's kernels
// (cpu/kernel_templates.h), which they follow but for the order of a norm's sum; outputs that feed matrix
// products are rounded to bfloat16.

namespace tandem {

// hidden[row] = embedding[token of row]; grid (rows).
struct EmbedKernel {
  StepWords step;
  DeviceSpan<const Bf16> embedding;  // [vocab, hidden]
  DeviceSpan<float> hidden;          // [rows, hidden]
  uint32_t hidden_size = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint64_t token = step.token(static_cast<uint32_t>(row));
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      hidden[row * hidden_size + i] = ToFloat(embedding[token * hidden_size + i]);
    }
  }
};

// The residual stream, and what is still to be added to it: the addends, those of rank 0 first, then the
// bias.
struct Residual {
  DeviceSpan<float> hidden;         // [rows, hidden]
  DeviceSpan<const float> addends;  // [num_addends][addend_stride], each [rows, hidden]
  uint32_t num_addends = 0;         // One for each rank of tensor parallelism, or 0.
  uint64_t addend_stride = 0;
  DeviceSpan<const float> bias;  // [hidden], or empty. Only with addends.
  uint32_t hidden_size = 0;

  TANDEM_DEVICE float Sum(uint64_t row, uint32_t i) const {
    const uint64_t at = row * hidden_size + i;
    if (num_addends == 0) return hidden[at];
    float sum = addends[at];
    for (uint32_t rank = 1; rank < num_addends; ++rank) sum += addends[rank * addend_stride + at];
    if (bias.size > 0) sum += bias[i];
    return hidden[at] + sum;
  }
};

// What a norm multiplies a row by, of whose squares each thread has added up some. Shared: a float for each
// warp.
template <typename Block>
TANDEM_DEVICE float NormFactor(Block& block, float squares, uint32_t hidden_size, float epsilon) {
  const auto scratch = block.template Shared<float>(0, block.num_threads() / kWarpThreads);
  const float mean = BlockSum(block, squares, scratch) / static_cast<float>(hidden_size);
  return 1.0f / SquareRoot(mean + epsilon);
}
// A head without a final norm has no weights of it.
TANDEM_DEVICE float Normed(DeviceSpan<const float> weight, uint32_t i, float value, float factor) {
  return weight.size == 0 ? value : weight[i] * (value * factor);
}

// hidden[row] += what is to be added; normed = weight * hidden / sqrt(mean(hidden^2) + epsilon). A row that
// asks for this state as a feature gets it. Grid (rows); shared: a float for each warp.
struct NormKernel {
  StepWords step;
  Residual residual;
  DeviceSpan<const float> weight;  // [hidden], or empty: there is no norm.
  DeviceSpan<Bf16> normed;         // [rows, hidden]
  float epsilon = 0.0f;
  // Whether the grid goes over the rows whose logits are wanted; `normed` then holds these alone.
  bool only_wanted = false;
  uint32_t first_wanted = 0;
  DeviceSpan<float> features;  // [states, hidden]; empty when no row asks for any.
  uint32_t num_layers = 0;     // That the stream has been through.

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t to = block.index_x();
    uint64_t row = to;
    if (only_wanted) {
      if (first_wanted + to >= step.num_wanted()) return;
      row = step.wanted(static_cast<uint32_t>(first_wanted + to));
    }
    if (row >= step.num_rows()) return;
    const uint32_t hidden_size = residual.hidden_size;
    const uint32_t state =
        features.size == 0 ? StepWords::kNoState : step.StateAfter(static_cast<uint32_t>(row), num_layers);
    float squares = 0.0f;
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      const float value = residual.Sum(row, i);
      if (residual.num_addends > 0) residual.hidden[row * hidden_size + i] = value;
      if (state != StepWords::kNoState) features[uint64_t{state} * hidden_size + i] = value;
      squares = Fma(value, value, squares);
    }
    const float factor = NormFactor(block, squares, hidden_size, epsilon);
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      // Read back by the thread that wrote it.
      const float value = residual.hidden[row * hidden_size + i];
      normed[to * hidden_size + i] = ToBf16(Normed(weight, i, value, factor));
    }
  }
};

// What rows ask for as features of the stream behind the last layer: the state itself, and what the output
// matrix multiplies before it is rounded. The stream stays as it is, with what is still to be added. Grid
// (rows); shared: a float for each warp.
struct FinalFeaturesKernel {
  StepWords step;
  Residual residual;
  DeviceSpan<const float> weight;  // [hidden], or empty.
  DeviceSpan<float> features;      // [states, hidden]
  uint32_t num_layers = 0;         // Of the model.
  float epsilon = 0.0f;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint32_t state = step.StateAfter(row, num_layers);
    const uint32_t normed = step.NormedState(row);
    if (state == StepWords::kNoState && normed == StepWords::kNoState) return;
    const uint32_t hidden_size = residual.hidden_size;
    float squares = 0.0f;
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      const float value = residual.Sum(row, i);
      if (state != StepWords::kNoState) features[uint64_t{state} * hidden_size + i] = value;
      squares = Fma(value, value, squares);
    }
    if (normed == StepWords::kNoState) return;
    const float factor = NormFactor(block, squares, hidden_size, epsilon);
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      features[uint64_t{normed} * hidden_size + i] = Normed(weight, i, residual.Sum(row, i), factor);
    }
  }
};

// output = silu(gate + gate_bias) * (up + up_bias); grid (rows, ceil(width / threads)).
struct GateKernel {
  StepWords step;
  DeviceSpan<const float> gate_up;  // [rows, 2 * width]: gate, then up.
  DeviceSpan<const float> bias;     // [2 * width], or empty.
  DeviceSpan<Bf16> output;          // [rows, width]
  uint32_t width = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint32_t i = block.index_y() * block.num_threads() + block.thread();
    if (i >= width) return;
    float gate = gate_up[row * 2 * width + i];
    float up = gate_up[row * 2 * width + width + i];
    if (bias.size > 0) {
      gate += bias[i];
      up += bias[width + i];
    }
    output[row * width + i] = ToBf16(gate / (1.0f + Exponential(0.0f - gate)) * up);
  }
};

// Logits of ranks side by side, from where each rank's part ended up. Grid (rows, ranks).
struct JoinLogitsKernel {
  DeviceSpan<const float> parts;      // [ranks][part_size], each [rows, the rank's tokens]
  DeviceSpan<const uint32_t> begins;  // [ranks + 1], tokens
  DeviceSpan<float> logits;           // [rows, vocab]
  uint64_t part_size = 0;
  uint32_t vocab_size = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    const uint64_t rank = block.index_y();
    const uint32_t begin = begins[rank];
    const uint32_t count = begins[rank + 1] - begin;
    for (uint32_t i = block.thread(); i < count; i += block.num_threads()) {
      logits[row * vocab_size + begin + i] = parts[rank * part_size + row * count + i];
    }
  }
};

}  // namespace tandem

#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/row_kernels.h"
#include "common/engine/cuda/kernels/step_words.h"

// What a draft head computes before its layer's attention, unlike a language model (HeadConfig has the
// equations). One block of threads for each row, as in row_kernels.h. Reference: cpu/head_stage.h, except for
// the order of a norm's sum and for the rounding of products' inputs to bfloat16.

namespace tandem {

// Writes the projection's inputs: [embedding, state] for EAGLE, the states for EAGLE-3. Rows that continue
// from their own state have nothing to project, and keep their values. Grid (rows).
struct JoinStatesKernel {
  StepWords step;
  DeviceSpan<const float> embedded;  // [rows, embedding_size]
  DeviceSpan<Bf16> inputs;           // [rows, embedding_size + state_size]
  uint32_t embedding_size = 0;       // 0: of no embedding.
  uint32_t state_size = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (row >= step.num_rows() || step.StateIsFloat(row)) return;
    const uint32_t size = embedding_size + state_size;
    for (uint32_t i = block.thread(); i < size; i += block.num_threads()) {
      inputs[uint64_t{row} * size + i] = i < embedding_size
                                             ? ToBf16(embedded[uint64_t{row} * embedding_size + i])
                                             : step.Bf16State(row, i - embedding_size);
    }
  }
};

// The same for EAGLE-3.1, where each of `num_parts` equal parts of the states is normed by itself. Grid
// (rows); shared: a float for each warp.
struct JoinNormedPartsKernel {
  StepWords step;
  DeviceSpan<const float> norms;  // [state_size]
  DeviceSpan<Bf16> inputs;        // [rows, state_size]
  uint32_t state_size = 0;
  uint32_t num_parts = 1;
  float epsilon = 0.0f;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (row >= step.num_rows() || step.StateIsFloat(row)) return;
    const uint32_t size = state_size / num_parts;
    for (uint32_t begin = 0; begin < state_size; begin += size) {
      float squares = 0.0f;
      for (uint32_t i = begin + block.thread(); i < begin + size; i += block.num_threads()) {
        const float state = ToFloat(step.Bf16State(row, i));
        squares = Fma(state, state, squares);
      }
      const float factor = NormFactor(block, squares, size, epsilon);
      for (uint32_t i = begin + block.thread(); i < begin + size; i += block.num_threads()) {
        inputs[uint64_t{row} * state_size + i] =
            ToBf16(Normed(norms, i, ToFloat(step.Bf16State(row, i)), factor));
      }
    }
  }
};

// The same for MTP: [norm(state), norm(embedding)], with float32 states. Grid (rows); shared: a float for
// each warp.
struct JoinNormedStatesKernel {
  StepWords step;
  DeviceSpan<const float> embedded;  // [rows, hidden]
  DeviceSpan<const float> state_norm;
  DeviceSpan<const float> embedding_norm;
  DeviceSpan<Bf16> inputs;  // [rows, 2 * hidden]
  uint32_t hidden_size = 0;
  float epsilon = 0.0f;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint64_t at = uint64_t{row} * hidden_size;
    float squares = 0.0f;
    float embedding_squares = 0.0f;
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      const float state = step.FloatState(row, i);
      squares = Fma(state, state, squares);
      embedding_squares = Fma(embedded[at + i], embedded[at + i], embedding_squares);
    }
    const float factor = NormFactor(block, squares, hidden_size, epsilon);
    const float embedding_factor = NormFactor(block, embedding_squares, hidden_size, epsilon);
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      inputs[2 * at + i] = ToBf16(Normed(state_norm, i, step.FloatState(row, i), factor));
      inputs[2 * at + hidden_size + i] =
          ToBf16(Normed(embedding_norm, i, embedded[at + i], embedding_factor));
    }
  }
};

// Writes the stream that the first layer begins with, which is projection + bias, or without a projection the
// target's state, or the row's own state, and the inputs of query, key and value: the stream itself for
// EAGLE, [norm(embedding), norm(hidden)] for EAGLE-3, norm(hidden) for MTP. Grid (rows); shared: a float for
// each warp.
struct BeginHeadKernel {
  StepWords step;
  DeviceSpan<const float> projected;       // [rows, hidden], or empty: rows begin with their states.
  DeviceSpan<const float> bias;            // [hidden], or empty.
  DeviceSpan<const float> embedded;        // [rows, hidden]
  DeviceSpan<const float> embedding_norm;  // [hidden] for EAGLE-3; empty for the others.
  DeviceSpan<const float> state_norm;      // [hidden]; empty for EAGLE.
  DeviceSpan<float> hidden;                // [rows, hidden]
  DeviceSpan<Bf16> inputs;                 // [rows, hidden]; for EAGLE-3 [rows, 2 * hidden]
  DeviceSpan<float> features;              // [states, hidden]; empty if no row asks for features.
  uint32_t hidden_size = 0;
  float epsilon = 0.0f;
  bool own_states_go_on = false;      // float32 states continue unchanged.
  bool norm_before_residual = false;  // The stream continues with the normed values.

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint64_t at = uint64_t{row} * hidden_size;
    const bool goes_on = own_states_go_on && step.StateIsFloat(row);
    const bool has_norm = state_norm.size > 0;
    const bool has_embedding = embedding_norm.size > 0;
    const uint32_t state = features.size == 0 ? StepWords::kNoState : step.StateAfter(row, 0);
    float squares = 0.0f;
    float embedding_squares = 0.0f;
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      float value = 0.0f;
      if (goes_on) {
        value = step.FloatState(row, i);
      } else if (projected.size == 0) {
        value = ToFloat(step.Bf16State(row, i));
      } else {
        value = projected[at + i];
        if (bias.size > 0) value += bias[i];
      }
      hidden[at + i] = value;
      if (state != StepWords::kNoState) features[uint64_t{state} * hidden_size + i] = value;
      if (!has_norm) {
        inputs[at + i] = ToBf16(value);
        continue;
      }
      squares = Fma(value, value, squares);
      if (has_embedding) embedding_squares = Fma(embedded[at + i], embedded[at + i], embedding_squares);
    }
    if (!has_norm) return;
    const float factor = NormFactor(block, squares, hidden_size, epsilon);
    const uint64_t normed_at = has_embedding ? 2 * at + hidden_size : at;
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      const float normed = Normed(state_norm, i, hidden[at + i], factor);
      inputs[normed_at + i] = ToBf16(normed);
      if (norm_before_residual) hidden[at + i] = normed;
    }
    if (!has_embedding) return;
    const float embedding_factor = NormFactor(block, embedding_squares, hidden_size, epsilon);
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      inputs[2 * at + i] = ToBf16(Normed(embedding_norm, i, embedded[at + i], embedding_factor));
    }
  }
};

// A residual block of a Medusa head, to = from + silu(product + bias), which also writes the next product's
// inputs. Without a product nothing is added. Grid (rows, ceil(hidden / threads)).
struct AddBlockKernel {
  DeviceSpan<const float> from;     // [rows, hidden]
  DeviceSpan<const float> product;  // [rows, hidden], or empty.
  DeviceSpan<const float> bias;     // [hidden], or empty.
  DeviceSpan<float> to;             // [rows, hidden]
  DeviceSpan<Bf16> inputs;          // [rows, hidden]
  uint32_t hidden_size = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t i = block.index_y() * block.num_threads() + block.thread();
    if (i >= hidden_size) return;
    const uint64_t at = uint64_t{block.index_x()} * hidden_size + i;
    float value = from[at];
    if (product.size > 0) {
      float gate = product[at];
      if (bias.size > 0) gate += bias[i];
      value += gate / (1.0f + Exponential(0.0f - gate));
    }
    to[at] = value;
    inputs[at] = ToBf16(value);
  }
};

}  // namespace tandem

#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/step_words.h"

// Kernels that use one block of threads for each row of activations. They skip rows beyond the step's: a grid
// is as large as the bucket that the graph was captured for. References: the CPU engine's kernels
// (cpu/kernel_templates.h), except for the order of a norm's sum. Outputs that feed matrix products are
// rounded to bfloat16.

namespace tandem {

// What happens to a token's embedding before the first layer: it is multiplied by `scale`, and if positions
// are learned, the position's embedding is added.
struct EmbedEnding {
  float scale = 1.0f;
  DeviceSpan<const float> positions;  // [positions + offset, hidden], or empty.
  uint32_t position_offset = 0;

  TANDEM_DEVICE float Apply(float value, uint32_t position, uint32_t i, uint32_t hidden_size) const {
    value = value * scale;
    if (positions.size == 0) return value;
    return value + positions[uint64_t{position + position_offset} * hidden_size + i];
  }
};

// hidden[row] = embedding[token of row]; grid (rows).
struct EmbedKernel {
  StepWords step;
  DeviceSpan<const Bf16> embedding;  // [vocab, hidden]
  DeviceSpan<float> hidden;          // [rows, hidden]
  uint32_t hidden_size = 0;
  EmbedEnding ending = {};

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint64_t token = step.token(static_cast<uint32_t>(row));
    const uint32_t position = step.position(static_cast<uint32_t>(row));
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      hidden[row * hidden_size + i] =
          ending.Apply(ToFloat(embedding[token * hidden_size + i]), position, i, hidden_size);
    }
  }
};

// The residual stream, and what is still to be added to it: the addends, in order, and then the bias.
struct Residual {
  DeviceSpan<float> hidden;         // [rows, hidden]
  DeviceSpan<const float> addends;  // [num_addends][addend_stride], each [rows, hidden]
  // The number of ranks with tensor parallelism; 2 in a parallel block, for attention and the feed-forward
  // part; or 0.
  uint32_t num_addends = 0;
  uint64_t addend_stride = 0;
  DeviceSpan<const float> bias;  // [hidden], or empty. Added only if there are addends.
  uint32_t hidden_size = 0;
  float scale = 1.0f;  // Of what is added.

  // Of kCount neighbours.
  template <uint32_t kCount>
  TANDEM_DEVICE Floats<kCount> Sum(uint64_t row, uint32_t i) const {
    const uint64_t at = row * hidden_size + i;
    Floats<kCount> values = LoadFloats<kCount>(hidden, at);
    if (num_addends == 0) return values;
    Floats<kCount> sum = LoadFloats<kCount>(addends, at);
    for (uint32_t rank = 1; rank < num_addends; ++rank) {
      const Floats<kCount> addend = LoadFloats<kCount>(addends, rank * addend_stride + at);
      TANDEM_UNROLL
      for (uint32_t j = 0; j < kCount; ++j) sum.at[j] += addend.at[j];
    }
    TANDEM_UNROLL
    for (uint32_t j = 0; j < kCount; ++j) {
      if (bias.size > 0) sum.at[j] += bias[i + j];
      values.at[j] += scale == 1.0f ? sum.at[j] : scale * sum.at[j];
    }
    return values;
  }
};

// Calls `use(i)` for every kCount-th number of a row that is this thread's.
template <uint32_t kCount, typename Block, typename Use>
TANDEM_DEVICE void ForRow(Block& block, uint32_t size, const Use& use) {
  for (uint32_t i = block.thread() * kCount; i < size; i += block.num_threads() * kCount) use(i);
}

// The factor by which a norm multiplies a row. Each thread has added up some of the row's squares. Shared: a
// float for each warp.
template <typename Block>
TANDEM_DEVICE float NormFactor(Block& block, float squares, uint32_t hidden_size, float epsilon) {
  const auto scratch = block.template Shared<float>(0, block.num_threads() / kWarpThreads);
  const float mean = BlockSum(block, squares, scratch) / static_cast<float>(hidden_size);
  return 1.0f / SquareRoot(mean + epsilon);
}
// A draft head without a final norm has no weights for it.
TANDEM_DEVICE float Normed(DeviceSpan<const float> weight, uint32_t i, float value, float factor) {
  return weight.size == 0 ? value : weight[i] * (value * factor);
}

// A norm's weights, for RMSNorm, or with `centers` for LayerNorm, which first subtracts the mean.
struct NormWeight {
  DeviceSpan<const float> weight;  // [hidden], or empty: no norm.
  DeviceSpan<const float> bias;    // [hidden], or empty.
  bool centers = false;

  TANDEM_DEVICE float Apply(uint32_t i, float value, float factor) const {
    if (bias.size == 0) return Normed(weight, i, value, factor);
    return Fma(weight[i], value * factor, bias[i]);
  }
};

// The mean of a row. Each thread has added up some of its numbers. Shared: a float for each warp.
template <typename Block>
TANDEM_DEVICE float RowMean(Block& block, float sum, uint32_t size) {
  const auto scratch = block.template Shared<float>(0, block.num_threads() / kWarpThreads);
  return BlockSum(block, sum, scratch) / static_cast<float>(size);
}

template <uint32_t kCount>
TANDEM_DEVICE void AddUp(const Floats<kCount>& values, float& squares, float& sum) {
  TANDEM_UNROLL
  for (uint32_t j = 0; j < kCount; ++j) {
    squares = Fma(values.at[j], values.at[j], squares);
    sum += values.at[j];
  }
}

// The factor of a row's norm, and its mean, or 0 if the norm does not subtract it. `load(i)` gives kCount
// numbers of the row. Each thread has added up the squares and the numbers that it has.
template <uint32_t kCount, typename Block, typename Load>
TANDEM_DEVICE float MeanAndFactor(Block& block, const NormWeight& norm, uint32_t size, float epsilon,
                                  float squares, float sum, const Load& load, float& mean) {
  mean = 0.0f;
  if (norm.centers) {
    mean = RowMean(block, sum, size);
    squares = 0.0f;
    ForRow<kCount>(block, size, [&](uint32_t i) {
      const Floats<kCount> values = load(i);
      TANDEM_UNROLL
      for (uint32_t j = 0; j < kCount; ++j) {
        const float distance = values.at[j] - mean;
        squares = Fma(distance, distance, squares);
      }
    });
  }
  return NormFactor(block, squares, size, epsilon);
}

// hidden[row] += addends; normed = weight * hidden / sqrt(mean(hidden^2) + epsilon). Also stores the state
// for rows that request it as a feature. Grid (rows); shared: a float for each warp.
struct NormKernel {
  StepWords step;
  Residual residual;
  NormWeight norm;
  DeviceSpan<Bf16> normed;  // [rows, hidden]
  DeviceSpan<float> exact;  // The same before rounding, or empty.
  float epsilon = 0.0f;
  // Whether the grid covers only the rows whose logits are wanted; `normed` then holds only these.
  bool only_wanted = false;
  uint32_t first_wanted = 0;
  DeviceSpan<float> features;  // [states, hidden]; empty if no row asks for features.
  uint32_t num_layers = 0;     // The layers that the stream has passed.

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t to = block.index_x();
    uint64_t row = to;
    if (only_wanted) {
      if (first_wanted + to >= step.num_wanted()) return;
      row = step.wanted(static_cast<uint32_t>(first_wanted + to));
    }
    if (row >= step.num_rows()) return;
    if (residual.hidden_size % 4 == 0) {
      NormRow<4>(block, row, to);
    } else {
      NormRow<1>(block, row, to);
    }
  }

 private:
  template <uint32_t kCount, typename Block>
  TANDEM_DEVICE void NormRow(Block& block, uint64_t row, uint64_t to) const {
    const uint32_t hidden_size = residual.hidden_size;
    const uint32_t state =
        features.size == 0 ? StepWords::kNoState : step.StateAfter(static_cast<uint32_t>(row), num_layers);
    float squares = 0.0f;
    float sum = 0.0f;
    ForRow<kCount>(block, hidden_size, [&](uint32_t i) {
      const Floats<kCount> values = residual.Sum<kCount>(row, i);
      if (residual.num_addends > 0) StoreFloats<kCount>(residual.hidden, row * hidden_size + i, values);
      if (state != StepWords::kNoState) {
        StoreFloats<kCount>(features, uint64_t{state} * hidden_size + i, values);
      }
      AddUp(values, squares, sum);
    });
    // From here on, each thread reads back only what it wrote itself.
    const auto load = [&](uint32_t i) { return LoadFloats<kCount>(residual.hidden, row * hidden_size + i); };
    float mean = 0.0f;
    const float factor = MeanAndFactor<kCount>(block, norm, hidden_size, epsilon, squares, sum, load, mean);
    ForRow<kCount>(block, hidden_size, [&](uint32_t i) {
      Floats<kCount> values = load(i);
      TANDEM_UNROLL
      for (uint32_t j = 0; j < kCount; ++j) {
        values.at[j] = norm.Apply(i + j, values.at[j] - mean, factor);
        normed[to * hidden_size + i + j] = ToBf16(values.at[j]);
      }
      if (exact.size > 0) StoreFloats<kCount>(exact, to * hidden_size + i, values);
    });
  }
};

// Stores the features after the last layer that rows request: the stream itself, and the output matrix's
// input before rounding. The stream does not change, and its addends remain to be added. Grid (rows); shared:
// a float for each warp.
struct FinalFeaturesKernel {
  StepWords step;
  Residual residual;
  NormWeight norm;
  DeviceSpan<float> features;  // [states, hidden]
  uint32_t num_layers = 0;     // Of the model.
  float epsilon = 0.0f;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint32_t state = step.StateAfter(row, num_layers);
    const uint32_t normed = step.NormedState(row);
    if (state == StepWords::kNoState && normed == StepWords::kNoState) return;
    if (residual.hidden_size % 4 == 0) {
      TakeRow<4>(block, row, state, normed);
    } else {
      TakeRow<1>(block, row, state, normed);
    }
  }

 private:
  template <uint32_t kCount, typename Block>
  TANDEM_DEVICE void TakeRow(Block& block, uint32_t row, uint32_t state, uint32_t normed) const {
    const uint32_t hidden_size = residual.hidden_size;
    float squares = 0.0f;
    float sum = 0.0f;
    ForRow<kCount>(block, hidden_size, [&](uint32_t i) {
      const Floats<kCount> values = residual.Sum<kCount>(row, i);
      if (state != StepWords::kNoState) {
        StoreFloats<kCount>(features, uint64_t{state} * hidden_size + i, values);
      }
      AddUp(values, squares, sum);
    });
    if (normed == StepWords::kNoState) return;
    const auto load = [&](uint32_t i) { return residual.Sum<kCount>(row, i); };
    float mean = 0.0f;
    const float factor = MeanAndFactor<kCount>(block, norm, hidden_size, epsilon, squares, sum, load, mean);
    ForRow<kCount>(block, hidden_size, [&](uint32_t i) {
      Floats<kCount> values = load(i);
      TANDEM_UNROLL
      for (uint32_t j = 0; j < kCount; ++j) values.at[j] = norm.Apply(i + j, values.at[j] - mean, factor);
      StoreFloats<kCount>(features, uint64_t{normed} * hidden_size + i, values);
    });
  }
};

// outputs[i] = parts[0][i] + parts[1][i] + ..., in this order. Grid (ceil(size / 4 threads)).
struct AddPartsKernel {
  DeviceSpan<const float> parts;  // [num_parts, size]
  DeviceSpan<float> outputs;      // [size]
  uint32_t num_parts = 0;
  uint64_t size = 0;  // A multiple of 4.

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t i = (uint64_t{block.index_x()} * block.num_threads() + block.thread()) * 4;
    if (i >= size) return;
    Floats<4> sum = LoadFloats<4>(parts, i);
    for (uint32_t part = 1; part < num_parts; ++part) {
      const Floats<4> addend = LoadFloats<4>(parts, part * size + i);
      TANDEM_UNROLL
      for (uint32_t j = 0; j < 4; ++j) sum.at[j] += addend.at[j];
    }
    StoreFloats<4>(outputs, i, sum);
  }
};

// values[row] = norm(values[row] + addend), in place, for the embedding, for what a layer adds to the stream,
// or for all queries or all keys of a row. Grid (rows); shared: a float for each warp.
struct NormInPlaceKernel {
  StepWords step;
  DeviceSpan<float> values;        // Row r's `size` numbers begin at r * row_stride + offset.
  DeviceSpan<const float> addend;  // [size], or empty.
  NormWeight norm;
  uint64_t row_stride = 0;
  uint32_t offset = 0;
  uint32_t size = 0;
  float epsilon = 0.0f;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint64_t at = row * row_stride + offset;
    float squares = 0.0f;
    float sum = 0.0f;
    for (uint32_t i = block.thread(); i < size; i += block.num_threads()) {
      const float value = addend.size > 0 ? values[at + i] + addend[i] : values[at + i];
      values[at + i] = value;
      squares = Fma(value, value, squares);
      sum += value;
    }
    float mean = 0.0f;
    if (norm.centers) {
      mean = RowMean(block, sum, size);
      squares = 0.0f;
      for (uint32_t i = block.thread(); i < size; i += block.num_threads()) {
        const float distance = values[at + i] - mean;
        squares = Fma(distance, distance, squares);
      }
    }
    const float factor = NormFactor(block, squares, size, epsilon);
    for (uint32_t i = block.thread(); i < size; i += block.num_threads()) {
      values[at + i] = norm.Apply(i, values[at + i] - mean, factor);
    }
  }
};

// cap * tanh(x / cap), with the formula of the CPU's kernels.
TANDEM_DEVICE float Capped(float cap, float x) {
  return cap - 2.0f * cap / (Exponential(x * (2.0f / cap)) + 1.0f);
}

// values = cap(scale * values), of logits. Grid (rows, ceil(size / threads)).
struct ScaleKernel {
  DeviceSpan<float> values;  // [rows, size]
  uint32_t size = 0;
  float scale = 1.0f;
  float cap = 0.0f;  // 0: none.

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t i = block.index_y() * block.num_threads() + block.thread();
    if (i >= size) return;
    const uint64_t at = uint64_t{block.index_x()} * size + i;
    const float value = values[at] * scale;
    values[at] = cap == 0.0f ? value : Capped(cap, value);
  }
};

// By the number of an Activation (common/model/config/architecture.h). Formulas as in cpu/kernel_templates.h.
TANDEM_DEVICE float Activate(uint32_t activation, float x) {
  if (activation == 0) return x / (1.0f + Exponential(0.0f - x));
  if (activation == 3) return Greater(0.0f, x);
  if (activation == 2) {
    const float y = x * Fma(x * x, 0.044715f, 1.0f) * (-2 * 0.79788456080286536f);
    return x / (1.0f + Exponential(y));
  }
  const float magnitude = Greater(0.0f - x, x);
  const float z = magnitude * 0.70710678118654752f;
  const float t = 1.0f / Fma(0.3275911f, z, 1.0f);
  float sum = 1.061405429f;
  sum = Fma(sum, t, -1.453152027f);
  sum = Fma(sum, t, 1.421413741f);
  sum = Fma(sum, t, -0.284496736f);
  sum = Fma(sum, t, 0.254829592f);
  const float e = sum * t * Exponential(0.0f - z * z);
  return Greater(0.0f, x) - magnitude * 0.5f * e;
}

// The settings of gates besides the activation (common/model/config/architecture.h, GateDescription).
struct GateLimits {
  float limit = 0.0f;  // 0: none.
  float alpha = 1.0f;
  float up_offset = 0.0f;

  TANDEM_DEVICE bool is_plain() const { return limit == 0.0f && alpha == 1.0f && up_offset == 0.0f; }

  // As in cpu/feed_forward.cc. A NaN stays a NaN.
  TANDEM_DEVICE void Apply(float& gate, float& up) const {
    if (is_plain()) return;
    if (limit > 0.0f) {
      gate = gate > limit ? limit : gate;
      up = up > limit ? limit : up < 0.0f - limit ? 0.0f - limit : up;
    }
    gate = gate * alpha;
    up = (up + up_offset) * (1.0f / alpha);
  }
};

// output = activation(gate + gate_bias) * (up + up_bias), or activation(up + up_bias) without gates, both
// with GateLimits. Grid (rows, ceil(width / threads)).
struct GateKernel {
  StepWords step;
  DeviceSpan<const float> gate_up;  // [rows, 2 * width]: gate, then up; or [rows, width]: up.
  DeviceSpan<const float> bias;     // Of a row, or empty.
  DeviceSpan<Bf16> output;          // [rows, width]
  uint32_t width = 0;
  uint32_t activation = 0;
  bool gated = true;
  GateLimits limits = {};
  // With experts: the number of rows here for each row of the step, and each row's expert, whose bias is
  // added.
  uint32_t num_each = 1;
  DeviceSpan<const uint32_t> experts = {};

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= uint64_t{step.num_rows()} * num_each) return;
    const uint32_t i = block.index_y() * block.num_threads() + block.thread();
    if (i >= width) return;
    const uint64_t bias_at = experts.size > 0 ? uint64_t{experts[row]} * (gated ? 2 : 1) * width : 0;
    if (!gated) {
      float value = gate_up[row * width + i];
      if (bias.size > 0) value += bias[bias_at + i];
      output[row * width + i] = ToBf16(Activate(activation, value));
      return;
    }
    float gate = gate_up[row * 2 * width + i];
    float up = gate_up[row * 2 * width + width + i];
    if (bias.size > 0) {
      gate += bias[bias_at + i];
      up += bias[bias_at + width + i];
    }
    limits.Apply(gate, up);
    output[row * width + i] = ToBf16(Activate(activation, gate) * up);
  }
};

// Puts the ranks' logits side by side. Grid (rows, ranks).
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

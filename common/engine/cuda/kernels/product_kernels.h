#pragma once

#include <cstdint>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/row_kernels.h"
#include "common/engine/cuda/kernels/step_words.h"

// Products with weights of 8-bit or 4-bit integers (docs/inside/decisions/0011-quantised-products.md), and
// with weights of 8-bit floats (docs/inside/decisions/0013-fp8-weights.md; MultiplyFp8Kernel).
//
// Products with integers give the bits of the CPU engine (cpu/kernel_table.h, "weights of 8 or 4 bits") for
// bfloat16 inputs. A group of 64 inputs of a row is rounded to 15 bits, its products with a group of weights
// are added up exactly in integers, and the groups' sums go into one chain of fused multiply-adds per output,
// groups ascending. Exact sums do not depend on an order, so any warp may compute a group, with matrix units.
// The chain is the same for every number of rows: law 1 holds for decoding, verifying and prefill alike.
// Reference: PortableKernels().products. Tolerance: none, the bits are equal.
//
// A product of few rows takes at least the time to read the weights once, 8.25, 4.25 or 8 bits each, at the
// memory's bandwidth. A block reads its tiles once for every kProductRows rows, and no other block reads them
// for these rows.

namespace tandem {

// A matrix [outputs, depth] is stored in tiles of this many outputs (the last tile padded with zeros), and a
// tile in groups of kInputGroup inputs (the last group padded with zeros).
inline constexpr uint32_t kPackedOutputs = 16;
// Words in a group of one tile.
inline constexpr uint32_t kInt8GroupWords = kPackedOutputs * kInputGroup / 4;
inline constexpr uint32_t kInt4GroupWords = kPackedOutputs * kInputGroup / 8;

struct PackedWeights {
  // [tiles][groups][16 outputs][64] of 8 bits: integers, or floats in e4m3. With 4-bit integers, every 16
  // inputs take 8 bytes: the first 8 in the low halves of the bytes, the others in the high halves.
  DeviceSpan<const uint32_t> words;
  DeviceSpan<const Bf16> scales;          // [tiles][groups][16], for integers.
  DeviceSpan<const float> output_scales;  // [tiles][16], for floats.
};

// Inputs of products, rounded to 15 bits: (128 * high + low) * scale.
struct RoundedInputs {
  static constexpr uint32_t kGroupWords = 2 * kInputGroup / 4;

  DeviceSpan<uint32_t> words;  // [rows][groups][high, low][64 integers of 8 bits]
  DeviceSpan<float> scales;    // [rows][groups]
};

TANDEM_BOTH uint32_t NumInputGroups(uint32_t depth) {
  return (depth + kInputGroup - 1) / kInputGroup;
}
TANDEM_BOTH uint32_t NumPackedTiles(uint32_t outputs) {
  return (outputs + kPackedOutputs - 1) / kPackedOutputs;
}

// hidden[row] = scales * integers of the row's token; grid (rows).
struct EmbedInt8Kernel {
  StepWords step;
  PackedWeights embedding;   // [vocab, hidden]
  DeviceSpan<float> hidden;  // [rows, hidden]
  uint32_t hidden_size = 0;
  EmbedEnding ending = {};

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint32_t position = step.position(static_cast<uint32_t>(row));
    const uint64_t token = step.token(static_cast<uint32_t>(row));
    const uint64_t first_group = token / kPackedOutputs * NumInputGroups(hidden_size);
    const uint64_t output = token % kPackedOutputs;
    for (uint32_t i = block.thread(); i < hidden_size; i += block.num_threads()) {
      const uint64_t group = first_group + i / kInputGroup;
      const uint64_t word = output * (kInputGroup / 4) + i % kInputGroup / 4;
      const auto integer =
          static_cast<int8_t>(embedding.words[group * kInt8GroupWords + word] >> (i % 4 * 8));
      const float value =
          ToFloat(embedding.scales[group * kPackedOutputs + output]) * static_cast<float>(integer);
      hidden[row * hidden_size + i] = ending.Apply(value, position, i, hidden_size);
    }
  }
};

// A warp for each group of a row's inputs; grid (rows, ceil(groups / warps)).
struct RoundInputsKernel {
  DeviceSpan<const Bf16> inputs;  // [rows, depth]
  RoundedInputs rounded;
  uint32_t depth = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    const uint32_t num_groups = NumInputGroups(depth);
    const uint32_t num_warps = block.num_threads() / kWarpThreads;
    const uint32_t group = block.index_y() * num_warps + block.thread() / kWarpThreads;
    if (group >= num_groups) return;
    // Each lane has two neighbours.
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t k = group * kInputGroup + 2 * lane;
    const float first = k < depth ? ToFloat(inputs[row * depth + k]) : 0.0f;
    const float second = k + 1 < depth ? ToFloat(inputs[row * depth + k + 1]) : 0.0f;
    // Magnitudes compare like their bits, and infinities and NaNs are greater than all other values.
    uint32_t greatest = Most(BitsAs<uint32_t>(first) & kMagnitude, BitsAs<uint32_t>(second) & kMagnitude);
    for (uint32_t mask = kWarpThreads / 2; mask > 0; mask /= 2) {
      greatest = Most(greatest, block.ShuffleXor(greatest, mask));
    }
    float scale = greatest >= kInfinity ? BitsAs<float>(kNan) : 0.0f;
    int32_t integers[2] = {};
    if (greatest < kInfinity && greatest >= kSmallest) {
      scale = BitsAs<float>(greatest) / static_cast<float>(kGreatestInput);
      const float inverse = static_cast<float>(kGreatestInput) / BitsAs<float>(greatest);
      integers[0] = Round(first, inverse);
      integers[1] = Round(second, inverse);
    }
    const uint64_t place = row * num_groups + group;
    if (lane == 0) rounded.scales[place] = scale;
    uint32_t high = 0;
    uint32_t low = 0;
    for (uint32_t i = 0; i < 2; ++i) {
      // This leaves a low part in [-64, 63].
      const int32_t high_part = (integers[i] + 64) >> 7;
      high |= (static_cast<uint32_t>(high_part) & 0xffu) << (8 * i);
      low |= (static_cast<uint32_t>(integers[i] - 128 * high_part) & 0xffu) << (8 * i);
    }
    // One of two lanes writes the high parts of both, the other lane writes the low parts.
    const uint32_t other_high = block.ShuffleXor(high, 1);
    const uint32_t other_low = block.ShuffleXor(low, 1);
    const uint64_t word = place * RoundedInputs::kGroupWords + lane / 2;
    if (lane % 2 == 0) {
      rounded.words[word] = high | other_high << 16;
    } else {
      rounded.words[word + RoundedInputs::kGroupWords / 2] = other_low | low << 16;
    }
  }

 private:
  static constexpr uint32_t kMagnitude = 0x7fffffffu;
  static constexpr uint32_t kInfinity = 0x7f800000u;
  static constexpr uint32_t kNan = 0x7fc00000u;
  static constexpr uint32_t kSmallest = 27u << 23;  // 2^-100

  // To the nearest, ties to even: 1.5 * 2^23 leaves no room for a fraction.
  static TANDEM_DEVICE int32_t Round(float value, float inverse) {
    constexpr float kRounder = 12582912.0f;
    return static_cast<int32_t>(BitsAs<uint32_t>(Fma(value, inverse, kRounder)) - BitsAs<uint32_t>(kRounder));
  }
};

// How a product is cut into blocks of kProductWarps warps: tiles of outputs along x, rows along y. A block
// has one tile: with more, the code of its loop would not stay where instructions are fetched from.
inline constexpr uint32_t kProductWarps = 8;
inline constexpr uint32_t kProductThreads = kProductWarps * kWarpThreads;
inline constexpr uint32_t kProductRows = 64;  // Of one block at most.
struct ProductGrid {
  uint32_t outputs = 0;
  uint32_t depth = 0;
  uint32_t num_rows = 0;  // A multiple of 8: matrix units take 8 rows at a time.

  TANDEM_BOTH uint32_t num_groups() const { return NumInputGroups(depth); }
  // For packed matrices stored one after another, each in whole tiles.
  TANDEM_BOTH uint64_t GroupAt(uint64_t matrix, uint64_t tile, uint32_t group) const {
    return (matrix * NumPackedTiles(outputs) + tile) * num_groups() + group;
  }
};
// The distance between sums of 16 outputs, such that no two lanes write to the same bank of shared memory.
inline constexpr uint32_t kSumStride = kPackedOutputs + 4;

// Which rows a block multiplies with which matrix. Here: kProductRows neighbouring rows of a step, with the
// only matrix. ExpertRows (expert_kernels.h) is the other kind.
struct StepRows {
  struct Part {
    uint32_t first = 0;
    uint32_t count = 0;

    // The index of the matrix among those stored one after another.
    TANDEM_DEVICE uint64_t matrix() const { return 0; }
    // Whether the row exists: rows are computed 8 at a time.
    TANDEM_DEVICE bool Has(uint32_t /*row*/) const { return true; }
    TANDEM_DEVICE uint64_t InputOf(uint32_t row) const { return first + row; }
    TANDEM_DEVICE uint64_t OutputOf(uint32_t row) const { return first + row; }
  };

  template <typename Block>
  TANDEM_DEVICE Part Of(Block& block, const ProductGrid& grid) const {
    const uint32_t first = block.index_y() * kProductRows;
    return {first, Least(kProductRows, grid.num_rows - first)};
  }
};

// The common part of products with any kind of packed weights. Each warp of a block takes a group of a tile,
// multiplies it with all rows of the block and leaves the sums in shared memory. Then every thread adds these
// sums to its outputs, groups ascending. The two buffers of sums take turns, so one barrier for each turn is
// enough. The next turn's weights are loaded before it begins.
//
// Kernel has a ProductGrid `grid`, DeviceSpan<float> `outputs` [rows, grid.outputs], and `rows` like
// StepRows. With a `part` of these it has
//
//   Sum, Weights                                      types: a group's sum; a lane's weights of a group
//   Load(part, tile, group, lane) -> Weights
//   Operand, Widen(weights) -> Operand                the weights in the form that multiplies every row
//   Multiply(block, operand, part, group, row, sums)  of a warp, for rows `row` to row + 7: lane 4 g + t has
//                                                     sums[0, 1] of output g and rows row + 2 t, + 1, and
//                                                     sums[2, 3] of output g + 8
//   Add(total, sum, part, tile, group, row, output) -> float
//   Finish(total, part, output of the matrix) -> float
template <typename Kernel, typename Block>
TANDEM_DEVICE void MultiplyTiles(const Kernel& kernel, Block& block) {
  using Sum = typename Kernel::Sum;
  constexpr uint32_t kThreads = kProductThreads;
  constexpr uint32_t kTotals = kProductRows * kPackedOutputs / kThreads;
  const uint32_t warp = block.thread() / kWarpThreads;
  const uint32_t lane = block.thread() % kWarpThreads;
  const uint32_t num_groups = kernel.grid.num_groups();
  const auto part = kernel.rows.Of(block, kernel.grid);
  const uint32_t num_rows = part.count;
  if (num_rows == 0) return;
  const uint32_t padded_rows = (num_rows + 7) / 8 * 8;
  const uint64_t tile = block.index_x();
  // [2][warps][rows][kSumStride]
  const uint32_t buffer_size = kProductWarps * padded_rows * kSumStride;
  const auto sums = block.template Shared<Sum>(0, 2 * buffer_size);
  const uint32_t output = block.thread() % kPackedOutputs;
  float totals[kTotals] = {};
  uint32_t buffer = 0;
  typename Kernel::Weights next = {};
  if (warp < num_groups) next = kernel.Load(part, tile, warp, lane);
  for (uint32_t first_group = 0; first_group < num_groups; first_group += kProductWarps) {
    const uint32_t group = first_group + warp;
    const typename Kernel::Weights weights = next;
    if (group + kProductWarps < num_groups) next = kernel.Load(part, tile, group + kProductWarps, lane);
    if (group < num_groups) {
      const typename Kernel::Operand operand = Kernel::Widen(weights);
      for (uint32_t row = 0; row < num_rows; row += 8) {
        Sum of_lane[4] = {};
        kernel.Multiply(block, operand, part, group, row, of_lane);
        const uint64_t at = buffer + (warp * padded_rows + row + lane % 4 * 2) * kSumStride + lane / 4;
        sums[at] = of_lane[0];
        sums[at + kSumStride] = of_lane[1];
        sums[at + 8] = of_lane[2];
        sums[at + kSumStride + 8] = of_lane[3];
      }
    }
    block.Sync();
    const uint32_t num_sums = Least(kProductWarps, num_groups - first_group);
    TANDEM_UNROLL
    for (uint32_t j = 0; j < kTotals; ++j) {
      const uint32_t row = (block.thread() + j * kThreads) / kPackedOutputs;
      if (row >= num_rows) break;
      for (uint32_t k = 0; k < num_sums; ++k) {
        const Sum sum = sums[buffer + (k * padded_rows + row) * kSumStride + output];
        totals[j] = kernel.Add(totals[j], sum, part, tile, first_group + k, row, output);
      }
    }
    buffer = buffer_size - buffer;
  }
  const uint64_t to = tile * kPackedOutputs + output;
  if (to >= kernel.grid.outputs) return;
  TANDEM_UNROLL
  for (uint32_t j = 0; j < kTotals; ++j) {
    const uint32_t row = (block.thread() + j * kThreads) / kPackedOutputs;
    if (row >= num_rows) break;
    kernel.outputs[part.OutputOf(row) * kernel.grid.outputs + to] = kernel.Finish(totals[j], part, to);
  }
}

// A lane's weights of a group of 8-bit integers: lane 4 g + t has inputs 16 t to 16 t + 15 of outputs g and g
// + 8. Matrix units take them in another order than they are stored in, which does not change exact sums.
struct Int8Lane {
  static constexpr uint32_t kGroupWords = kInt8GroupWords;
  static constexpr int32_t kFactor = 1;
  Words<4> outputs[2];

  static TANDEM_DEVICE Int8Lane Load(DeviceSpan<const uint32_t> words, uint64_t group, uint32_t lane) {
    const uint64_t at = group * kGroupWords + lane * 4;
    return {{LoadWords<4>(words, at), LoadWords<4>(words, at + kGroupWords / 2)}};
  }
  // Four weights, as bytes.
  TANDEM_DEVICE uint32_t Bytes(uint32_t output, uint32_t quarter) const {
    return outputs[output].word[quarter];
  }
};

// The same for 4-bit integers. They stay in the high halves of bytes, and so are multiplied by 16: a sum is
// then a multiple of 16, below 2^31.
struct Int4Lane {
  static constexpr uint32_t kGroupWords = kInt4GroupWords;
  static constexpr int32_t kFactor = 16;
  Words<2> outputs[2];

  static TANDEM_DEVICE Int4Lane Load(DeviceSpan<const uint32_t> words, uint64_t group, uint32_t lane) {
    const uint64_t at = group * kGroupWords + lane * 2;
    return {{LoadWords<2>(words, at), LoadWords<2>(words, at + kGroupWords / 2)}};
  }
  TANDEM_DEVICE uint32_t Bytes(uint32_t output, uint32_t quarter) const {
    const uint32_t word = outputs[output].word[quarter % 2];
    return (quarter < 2 ? word << 4 : word) & 0xf0f0f0f0u;
  }
};

// outputs = inputs * weights^T. Grid and shared memory: MultiplyShape.
template <typename Lane, typename Rows = StepRows>
struct MultiplyIntegersKernel {
  static constexpr uint32_t kMostThreads = kProductThreads;
  using Sum = int32_t;
  using Weights = Lane;
  using Operand = Lane;
  using Part = typename Rows::Part;

  PackedWeights weights;
  RoundedInputs inputs;  // [rows, depth]
  DeviceSpan<float> outputs;
  ProductGrid grid;
  Rows rows = {};

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    MultiplyTiles(*this, block);
  }

  TANDEM_DEVICE Weights Load(const Part& part, uint64_t tile, uint32_t group, uint32_t lane) const {
    return Lane::Load(weights.words, grid.GroupAt(part.matrix(), tile, group), lane);
  }
  static TANDEM_DEVICE Operand Widen(const Weights& of_lane) { return of_lane; }

  template <typename Block>
  TANDEM_DEVICE void Multiply(Block& block, const Operand& of_lane, const Part& part, uint32_t group,
                              uint32_t row, int32_t (&sums)[4]) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    Words<4> high = {};
    Words<4> low = {};
    if (part.Has(row + lane / 4)) {
      const uint64_t at =
          (part.InputOf(row + lane / 4) * grid.num_groups() + group) * RoundedInputs::kGroupWords;
      const DeviceSpan<const uint32_t> words = inputs.words;
      high = LoadWords<4>(words, at + lane % 4 * 4);
      low = LoadWords<4>(words, at + RoundedInputs::kGroupWords / 2 + lane % 4 * 4);
    }
    int32_t low_sums[4] = {};
    for (uint32_t i = 0; i < 4; i += 2) {
      const uint32_t piece[4] = {of_lane.Bytes(0, i), of_lane.Bytes(1, i), of_lane.Bytes(0, i + 1),
                                 of_lane.Bytes(1, i + 1)};
      block.MultiplyAddInt8(piece, high.word[i], high.word[i + 1], sums);
      block.MultiplyAddInt8(piece, low.word[i], low.word[i + 1], low_sums);
    }
    for (uint32_t i = 0; i < 4; ++i) sums[i] = (128 * sums[i] + low_sums[i]) / Lane::kFactor;
  }

  TANDEM_DEVICE float Add(float total, int32_t sum, const Part& part, uint64_t tile, uint32_t group,
                          uint32_t row, uint32_t output) const {
    const uint64_t place = grid.GroupAt(part.matrix(), tile, group);
    const float scale = ToFloat(weights.scales[place * kPackedOutputs + output]) *
                        inputs.scales[part.InputOf(row) * grid.num_groups() + group];
    return Fma(static_cast<float>(sum), scale, total);
  }
  TANDEM_DEVICE float Finish(float total, const Part& /*part*/, uint64_t /*output*/) const { return total; }
};
using MultiplyInt8Kernel = MultiplyIntegersKernel<Int8Lane>;
using MultiplyInt4Kernel = MultiplyIntegersKernel<Int4Lane>;

// The number that the bits of an e4m3 mean; exact. The bits of a NaN are not allowed.
TANDEM_DEVICE float FromE4m3(uint32_t bits) {
  // Moves exponent and fraction to their places in a float, whose exponents begin 120 lower.
  return BitsAs<float>((bits & 0x80u) << 24 | (bits & 0x7fu) << 20) * 0x1p120f;
}

// Inputs k to k + 15 of a row in bfloat16, with zeros after the last one.
TANDEM_DEVICE Words<8> LoadSixteen(DeviceSpan<const Bf16> values, uint64_t row, uint32_t k, uint32_t depth) {
  const uint64_t at = row * depth + k;
  Words<8> words = {};
  if (depth % 8 == 0) {
    for (uint32_t half = 0; half < 2; ++half) {
      if (k + 8 * half >= depth) break;
      const Words<4> eight = LoadWords<4>(values, at + 8 * half);
      for (uint32_t i = 0; i < 4; ++i) words.word[4 * half + i] = eight.word[i];
    }
    return words;
  }
  TANDEM_UNROLL
  for (uint32_t i = 0; i < 8; ++i) {
    if (k + 2 * i < depth) words.word[i] = values[at + 2 * i].bits;
    if (k + 2 * i + 1 < depth) words.word[i] |= static_cast<uint32_t>(values[at + 2 * i + 1].bits) << 16;
  }
  return words;
}

// A lane's sixteen inputs for outputs g and g + 8, in four pieces as matrix units take them.
struct Bf16Operand {
  uint32_t pieces[4][4];

  // Adds a group's products to the sums of eight rows of `inputs` [rows, depth].
  template <typename Block, typename Part>
  TANDEM_DEVICE void Multiply(Block& block, DeviceSpan<const Bf16> inputs, uint32_t depth, const Part& part,
                              uint32_t group, uint32_t row, float (&sums)[4]) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    Words<8> of_row = {};
    if (part.Has(row + lane / 4)) {
      of_row = LoadSixteen(inputs, part.InputOf(row + lane / 4), group * kInputGroup + lane % 4 * 16, depth);
    }
    TANDEM_UNROLL
    for (uint32_t piece = 0; piece < 4; ++piece) {
      block.MultiplyAddBf16(pieces[piece], of_row.word[2 * piece], of_row.word[2 * piece + 1], sums);
    }
  }
};

// outputs = inputs * weights^T, with e4m3 weights and bfloat16 inputs. Matrix units multiply them as
// bfloat16, each product exact, and compute a group's sum. The total is the sum of the groups, ascending,
// times the output's scale. Grid and shared memory as above. Reference: double precision; tolerance: the
// rounding of float32 sums.
template <typename Rows>
struct MultiplyE4m3Kernel {
  static constexpr uint32_t kMostThreads = kProductThreads;
  using Sum = float;
  using Weights = Int8Lane;
  using Operand = Bf16Operand;
  using Part = typename Rows::Part;

  PackedWeights weights;
  DeviceSpan<const Bf16> inputs;  // [rows, depth]
  DeviceSpan<float> outputs;
  ProductGrid grid;
  Rows rows = {};

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    MultiplyTiles(*this, block);
  }

  TANDEM_DEVICE Weights Load(const Part& part, uint64_t tile, uint32_t group, uint32_t lane) const {
    return Weights::Load(weights.words, grid.GroupAt(part.matrix(), tile, group), lane);
  }

  static TANDEM_DEVICE Operand Widen(const Weights& of_lane) {
    Operand operand;
    TANDEM_UNROLL
    for (uint32_t piece = 0; piece < 4; ++piece) {
      TANDEM_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        // Outputs g and g + 8 alternate, two inputs each.
        const uint32_t two = of_lane.outputs[i % 2].word[piece] >> (i / 2 * 16);
        operand.pieces[piece][i] = BitsAs<uint32_t>(FromE4m3(two & 0xffu)) >> 16 |
                                   (BitsAs<uint32_t>(FromE4m3(two >> 8 & 0xffu)) & 0xffff0000u);
      }
    }
    return operand;
  }

  template <typename Block>
  TANDEM_DEVICE void Multiply(Block& block, const Operand& operand, const Part& part, uint32_t group,
                              uint32_t row, float (&sums)[4]) const {
    operand.Multiply(block, inputs, grid.depth, part, group, row, sums);
  }

  TANDEM_DEVICE float Add(float total, float sum, const Part& /*part*/, uint64_t /*tile*/, uint32_t /*group*/,
                          uint32_t /*row*/, uint32_t /*output*/) const {
    return total + sum;
  }
  TANDEM_DEVICE float Finish(float total, const Part& part, uint64_t output) const {
    return total *
           weights.output_scales[part.matrix() * NumPackedTiles(grid.outputs) * kPackedOutputs + output];
  }
};
using MultiplyFp8Kernel = MultiplyE4m3Kernel<StepRows>;

}  // namespace tandem

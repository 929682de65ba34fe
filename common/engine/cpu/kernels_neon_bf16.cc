#include <arm_neon.h>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/weight_layouts.h"

// Products with BFMMLA, an instruction that multiplies two rows of 4 inputs by the weights of 2 outputs.
//
// An input x is high + low: high is x rounded to bfloat16, and low is the rest, rounded to bfloat16. The two
// rows of the instruction are the high and the low parts of one row of inputs:
//
//   outputs[row][n] = (sum over k of high * weight) + (sum over k of low * weight)
//
// Each of the two sums is one chain over the inputs in ascending order, 4 in a step. The architecture defines
// how a step rounds (to odd, with denormal numbers taken as 0) unless a program asks for something else, so
// all processors agree. Rows do not influence one another: a row's result does not depend on the others (law
// 1).

namespace tandem {
namespace {

// Inputs in a step.
constexpr uint32_t kStepDepth = 4;
// bfloat16 numbers in a register.
constexpr uint32_t kRegister = 8;
constexpr uint32_t kPairs = kTileOutputs / 2;
// Rows that go through half a tile together: their sums fill 24 of 32 registers.
constexpr uint32_t kMaxRows = 3;

constexpr size_t NumSteps(uint32_t depth) {
  return (size_t{depth} + kStepDepth - 1) / kStepDepth;
}

// Prepared inputs: [rows][steps][2][4], the high parts first, then the low parts.
uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  return max_rows * NumSteps(depth) * kRegister * sizeof(bfloat16_t);
}

void Prepare(const PrepareArgs& args) {
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    const float* input = args.inputs + row * args.input_stride;
    bfloat16_t* to = static_cast<bfloat16_t*>(args.prepared) + row * NumSteps(args.depth) * kRegister;
    for (uint32_t column = args.begin_column; column < args.end_column; column += kStepDepth) {
      float32x4_t x;
      if (args.end_column - column >= kStepDepth) {
        x = vld1q_f32(input + column);
      } else {
        float rest[kStepDepth] = {};
        for (uint32_t i = 0; i < args.end_column - column; ++i) rest[i] = input[column + i];
        x = vld1q_f32(rest);
      }
      const bfloat16x4_t high = vcvt_bf16_f32(x);
      const bfloat16x4_t low = vcvt_bf16_f32(vsubq_f32(x, vcvt_f32_bf16(high)));
      vst1q_bf16(to + column / kStepDepth * kRegister, vcombine_bf16(high, low));
    }
  }
}

// Adds high and low sums of a row and stores the outputs that are not padding.
template <int kNumPairs>
inline __attribute__((always_inline)) void StoreSums(const float32x4_t (&sums)[kNumPairs],
                                                     uint32_t first_output, uint32_t end_output,
                                                     float* outputs) {
  float totals[2 * kNumPairs];
#pragma GCC unroll 8
  for (int pair = 0; pair < kNumPairs; pair += 2) {
    const float32x4_t high = vcombine_f32(vget_low_f32(sums[pair]), vget_low_f32(sums[pair + 1]));
    const float32x4_t low = vcombine_f32(vget_high_f32(sums[pair]), vget_high_f32(sums[pair + 1]));
    vst1q_f32(totals + 2 * pair, vaddq_f32(high, low));
  }
  for (uint32_t i = 0; i < 2 * kNumPairs && first_output + i < end_output; ++i) {
    outputs[first_output + i] = totals[i];
  }
}

// `kRows` rows times `kNumPairs` pairs of outputs of one tile, all sums in registers.
template <int kRows, int kNumPairs>
inline __attribute__((always_inline)) void MultiplyPairs(const bfloat16_t* inputs, const bfloat16_t* weights,
                                                         uint32_t depth, uint32_t first_output,
                                                         uint32_t end_output, float* const* outputs) {
  // How many bytes ahead weights are prefetched.
  constexpr size_t kAhead = 1024;
  const size_t num_steps = NumSteps(depth);
  float32x4_t sums[kRows][kNumPairs];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int pair = 0; pair < kNumPairs; ++pair) sums[row][pair] = vdupq_n_f32(0.0f);
  }
  for (size_t step = 0; step < num_steps; ++step, weights += kPairs * kRegister) {
    bfloat16x8_t rows[kRows];
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      rows[row] = vld1q_bf16(inputs + (row * num_steps + step) * kRegister);
    }
#pragma GCC unroll 4
    for (int line = 0; line < kNumPairs / 4; ++line) {
      __builtin_prefetch(reinterpret_cast<const char*>(weights) + kAhead + line * 64);
    }
#pragma GCC unroll 16
    for (int pair = 0; pair < kNumPairs; ++pair) {
      const bfloat16x8_t weight = vld1q_bf16(weights + pair * kRegister);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        sums[row][pair] = vbfmmlaq_f32(sums[row][pair], rows[row], weight);
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) StoreSums(sums[row], first_output, end_output, outputs[row]);
}

// With one row, a whole tile at a time: its many sums keep the multipliers busy.
template <int kRows>
void MultiplyTile(const bfloat16_t* inputs, const bfloat16_t* tile, uint32_t depth, uint32_t first_output,
                  uint32_t end_output, float* const* outputs) {
  if constexpr (kRows == 1) {
    MultiplyPairs<1, kPairs>(inputs, tile, depth, first_output, end_output, outputs);
  } else {
    constexpr uint32_t kHalf = kPairs / 2;
    MultiplyPairs<kRows, kHalf>(inputs, tile, depth, first_output, end_output, outputs);
    MultiplyPairs<kRows, kHalf>(inputs, tile + kHalf * kRegister, depth, first_output + 2 * kHalf, end_output,
                                outputs);
  }
}

// Reads the weights once: a tile stays in the cache for all rows.
void Multiply(const ProductArgs& args) {
  const size_t row_size = NumSteps(args.depth) * kRegister;
  const size_t tile_size = NumSteps(args.depth) * kPairs * kRegister;
  const auto* tile = static_cast<const bfloat16_t*>(args.tiles);
  const uint32_t num_chunks = (args.num_rows + kMaxRows - 1) / kMaxRows;
  uint32_t output = args.first_output;
  for (uint32_t i = 0; i < args.num_tiles; ++i, tile += tile_size, output += kTileOutputs) {
    uint32_t row = 0;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      // Chunks as equal as possible.
      const uint32_t num_rows = (args.num_rows - row) / (num_chunks - chunk);
      const auto* inputs = static_cast<const bfloat16_t*>(args.prepared) + row * row_size;
      float* const* outputs = args.outputs + row;
      static_assert(kMaxRows == 3, "one case for each");
      if (num_rows == 1) {
        MultiplyTile<1>(inputs, tile, args.depth, output, args.end_output, outputs);
      } else if (num_rows == 2) {
        MultiplyTile<2>(inputs, tile, args.depth, output, args.end_output, outputs);
      } else {
        MultiplyTile<3>(inputs, tile, args.depth, output, args.end_output, outputs);
      }
      row += num_rows;
    }
  }
}

}  // namespace

const KernelTable& NeonBf16Kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = NeonKernels();
    table.name = "neon-bf16";
    ProductKernel& product = table.products[static_cast<int>(WeightFormat::kBf16)];
    product.layout = Bf16Quads();
    product.input_bits = 16;
    product.prepared_bytes = PreparedBytes;
    product.prepare = Prepare;
    product.multiply = Multiply;
    return table;
  }();
  return kTable;
}

}  // namespace tandem

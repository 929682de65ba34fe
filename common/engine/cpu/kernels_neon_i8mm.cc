#include <arm_neon.h>

#include "common/engine/cpu/file_code_products.h"
#include "common/engine/cpu/integer_layouts.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/neon_vectors.h"

// Products of integers with SMMLA, an instruction that multiplies two rows of 8 inputs by the weights of 2
// outputs.
//
// An input is a 15-bit integer, 128 * high + low, with high and low of 8 bits. The two rows of the
// instruction are the high and the low parts of one row of inputs. The sums are exact integers, so
//
//   128 * (sum over k of high * weight) + (sum over k of low * weight)
//
// is the sum that every other instruction set computes (kernel_table.h). After each group, the sums are
// scaled and added to the outputs. The outputs are in memory meanwhile, because the sums fill the registers.

namespace tandem {
namespace {

// Inputs in a step.
constexpr uint32_t kStepDepth = 8;
constexpr uint32_t kGroupSteps = kInputGroup / kStepDepth;
constexpr uint32_t kRegisterBytes = 16;
constexpr uint32_t kPairs = kTileOutputs / 2;
constexpr size_t kStepBytes = kPairs * kRegisterBytes;
// Rows that go through half a tile together: their sums fill 24 of 32 registers.
constexpr uint32_t kMaxRows = 3;

// Prepared inputs: those of PrepareIntegers. Each step's integers are [2][8] bytes, the high parts first,
// then the low parts.
template <int kGreatest>
void Prepare(const PrepareArgs& args) {
  PrepareIntegers<Neon, kGreatest>(args);
  const uint32_t begin_group = args.begin_column / kInputGroup;
  const uint32_t num_steps = (NumGroups(args.end_column) - begin_group) * kGroupSteps;
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    char* step = static_cast<char*>(args.prepared) + row * IntegerRowBytes(args.depth) +
                 begin_group * kGroupIntegerBytes;
    for (uint32_t i = 0; i < num_steps; ++i, step += kRegisterBytes) {
      int16_t integers[kStepDepth];
      __builtin_memcpy(integers, step, sizeof(integers));
      const int16x8_t whole = vld1q_s16(integers);
      const int16x8_t high = vshrq_n_s16(vaddq_s16(whole, vdupq_n_s16(64)), 7);
      const int16x8_t low = vsubq_s16(whole, vshlq_n_s16(high, 7));
      vst1q_s8(reinterpret_cast<int8_t*>(step), vcombine_s8(vmovn_s16(high), vmovn_s16(low)));
    }
  }
}

// Weights of Int8Octets.
struct Int8OctetWeights {
  static constexpr size_t kGroupBytes = kInt8GroupBytes;

  // The weights of a pair of outputs in step `kStep` of the group with these `integers`.
  template <uint32_t kStep>
  static TANDEM_INLINE int8x16_t Load(const int8_t* integers, uint32_t pair) {
    return vld1q_s8(integers + kStep * kStepBytes + pair * kRegisterBytes);
  }
};

// Weights of Int4Octets.
struct Int4OctetWeights {
  static constexpr size_t kGroupBytes = kInt4GroupBytes;

  template <uint32_t kStep>
  static TANDEM_INLINE int8x16_t Load(const int8_t* integers, uint32_t pair) {
    constexpr uint32_t kHalf = kGroupSteps / 2;
    const int8x16_t both = vld1q_s8(integers + kStep % kHalf * kStepBytes + pair * kRegisterBytes);
    return vshrq_n_s8(kStep < kHalf ? vshlq_n_s8(both, 4) : both, 4);
  }
};

template <typename Weights, uint32_t kStep, int kRows, int kNumPairs>
TANDEM_INLINE void MultiplySteps(const int8_t* inputs, size_t row_bytes, const int8_t* weights,
                                 int32x4_t (&sums)[kRows][kNumPairs]) {
  int8x16_t rows[kRows];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    rows[row] = vld1q_s8(inputs + row * row_bytes + kStep * kRegisterBytes);
  }
#pragma GCC unroll 16
  for (int pair = 0; pair < kNumPairs; ++pair) {
    const int8x16_t weight = Weights::template Load<kStep>(weights, static_cast<uint32_t>(pair));
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      sums[row][pair] = vmmlaq_s32(sums[row][pair], rows[row], weight);
    }
  }
  if constexpr (kStep + 1 < kGroupSteps) {
    MultiplySteps<Weights, kStep + 1, kRows, kNumPairs>(inputs, row_bytes, weights, sums);
  }
}

// Scales the sums of four outputs and adds them to the outputs so far.
TANDEM_INLINE void AddSums(int32x4_t first_pair, int32x4_t second_pair, float32x4_t scales, float* totals) {
  const int32x4_t high = vcombine_s32(vget_low_s32(first_pair), vget_low_s32(second_pair));
  const int32x4_t low = vcombine_s32(vget_high_s32(first_pair), vget_high_s32(second_pair));
  const float32x4_t sum = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 7), low));
  vst1q_f32(totals, vfmaq_f32(vld1q_f32(totals), sum, scales));
}

// `kRows` rows times `kNumPairs` pairs of outputs of one tile, from pair `first_pair` on.
template <typename Weights, int kRows, int kNumPairs>
void MultiplyPairs(const ProductArgs& args, const char* tile, uint32_t first_pair, const char* inputs,
                   uint32_t first_output, float* const* outputs) {
  constexpr size_t kPrefetchBytes = 2048;
  constexpr uint32_t kQuads = kNumPairs / 2;
  const size_t row_bytes = IntegerRowBytes(args.depth);
  const uint32_t num_groups = NumGroups(args.depth);
  const char* scales = inputs + num_groups * kGroupIntegerBytes;
  alignas(64) float totals[kRows][2 * kNumPairs] = {};
  for (uint32_t group = 0; group < num_groups; ++group, tile += Weights::kGroupBytes) {
#pragma GCC unroll 32
    for (size_t ahead = 0; ahead < Weights::kGroupBytes * kNumPairs / kPairs; ahead += 64) {
      __builtin_prefetch(tile + kPrefetchBytes + first_pair * (Weights::kGroupBytes / kPairs) + ahead);
    }
    int32x4_t sums[kRows][kNumPairs];
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
      for (int pair = 0; pair < kNumPairs; ++pair) sums[row][pair] = vdupq_n_s32(0);
    }
    const auto* weights =
        reinterpret_cast<const int8_t*>(tile + kScaleLineBytes) + first_pair * kRegisterBytes;
    MultiplySteps<Weights, 0, kRows, kNumPairs>(
        reinterpret_cast<const int8_t*>(inputs + group * kGroupIntegerBytes), row_bytes, weights, sums);
    Neon weight_scales[2];
    Neon::LoadBf16Pairs(reinterpret_cast<const uint16_t*>(tile), &weight_scales[0], &weight_scales[1]);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      float input_scale;
      __builtin_memcpy(&input_scale, scales + row * row_bytes + group * sizeof(float), sizeof(float));
#pragma GCC unroll 8
      for (uint32_t quad = 0; quad < kQuads; ++quad) {
        const uint32_t place = first_pair / 2 + quad;
        const float32x4_t of_weights = weight_scales[place / Neon::kParts].part[place % Neon::kParts];
        AddSums(sums[row][2 * quad], sums[row][2 * quad + 1], vmulq_n_f32(of_weights, input_scale),
                totals[row] + 4 * quad);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (uint32_t i = 0; i < 2 * kNumPairs && first_output + i < args.end_output; ++i) {
      outputs[row][first_output + i] = totals[row][i];
    }
  }
}

// With one row, a whole tile at a time: its many sums keep the multipliers busy.
template <typename Weights, int kRows>
void MultiplyTile(const ProductArgs& args, const char* tile, const char* inputs, uint32_t first_output,
                  float* const* outputs) {
  if constexpr (kRows == 1) {
    MultiplyPairs<Weights, 1, kPairs>(args, tile, 0, inputs, first_output, outputs);
  } else {
    constexpr uint32_t kHalf = kPairs / 2;
    MultiplyPairs<Weights, kRows, kHalf>(args, tile, 0, inputs, first_output, outputs);
    MultiplyPairs<Weights, kRows, kHalf>(args, tile, kHalf, inputs, first_output + 2 * kHalf, outputs);
  }
}

// Reads the weights once: a tile stays in the cache for all rows.
template <typename Weights>
void Multiply(const ProductArgs& args) {
  const size_t row_bytes = IntegerRowBytes(args.depth);
  const size_t tile_bytes = NumGroups(args.depth) * Weights::kGroupBytes;
  const auto* tile = static_cast<const char*>(args.tiles);
  const uint32_t num_chunks = (args.num_rows + kMaxRows - 1) / kMaxRows;
  uint32_t output = args.first_output;
  for (uint32_t i = 0; i < args.num_tiles; ++i, tile += tile_bytes, output += kTileOutputs) {
    uint32_t row = 0;
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
      // Chunks as equal as possible.
      const uint32_t num_rows = (args.num_rows - row) / (num_chunks - chunk);
      const char* inputs = static_cast<const char*>(args.prepared) + row * row_bytes;
      float* const* outputs = args.outputs + row;
      static_assert(kMaxRows == 3, "one case for each");
      if (num_rows == 1) {
        MultiplyTile<Weights, 1>(args, tile, inputs, output, outputs);
      } else if (num_rows == 2) {
        MultiplyTile<Weights, 2>(args, tile, inputs, output, outputs);
      } else {
        MultiplyTile<Weights, 3>(args, tile, inputs, output, outputs);
      }
      row += num_rows;
    }
  }
}

template <typename Weights, int kGreatest>
void SetProduct(const WeightLayout& layout, WeightFormat format, KernelTable* table) {
  ProductKernel& product = table->products[static_cast<int>(format)];
  product.layout = layout;
  product.prepared_bytes = IntegerPreparedBytes<Neon>;
  product.prepare = Prepare<kGreatest>;
  product.multiply = Multiply<Weights>;
}

// SDOT: every processor with FEAT_I8MM has it.
struct NeonDotCodes : NeonCodes {
  template <int kBits, int kFirst, int kCount>
  static TANDEM_INLINE void Dot(const Codes (&codes)[kVectors][kQuads], const int8_t* inputs,
                                const int32_t* /*begin*/, Sums (&sums)[kVectors]) {
    // Four quads of inputs in each.
    const int8x16_t input[2] = {vld1q_s8(inputs), vld1q_s8(inputs + 16)};
    sums[0] = sums[1] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int quad = kFirst; quad < kFirst + kCount; ++quad) {
#pragma GCC unroll 2
      for (int vector = 0; vector < kVectors; ++vector) {
        const int8x16_t code = vreinterpretq_s8_u8(codes[vector][quad]);
        sums[vector] = Add(sums[vector], code, input[quad / 4], quad % 4);
      }
    }
  }

 private:
  // `lane` is a constant once loops are unrolled.
  static TANDEM_INLINE Sums Add(Sums sums, int8x16_t codes, int8x16_t inputs, int lane) {
    switch (lane) {
      case 0:
        return vdotq_laneq_s32(sums, codes, inputs, 0);
      case 1:
        return vdotq_laneq_s32(sums, codes, inputs, 1);
      case 2:
        return vdotq_laneq_s32(sums, codes, inputs, 2);
      default:
        return vdotq_laneq_s32(sums, codes, inputs, 3);
    }
  }
};

}  // namespace

const KernelTable& NeonI8mmKernels() {
  static const KernelTable kTable = [] {
    KernelTable table = NeonBf16Kernels();
    table.name = "neon-i8mm";
    SetProduct<Int8OctetWeights, kGreatestInput>(Int8Octets(), WeightFormat::kInt8, &table);
    SetProduct<Int4OctetWeights, kGreatestInput>(Int4Octets(), WeightFormat::kInt4, &table);
    SetProduct<Int8OctetWeights, kGreatestShortInput>(Int8Octets(), WeightFormat::kW8A8, &table);
    SetProduct<Int4OctetWeights, kGreatestShortInput>(Int4Octets(), WeightFormat::kW4A8, &table);
    SetFileCodeProduct<Neon, NeonDotCodes>(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem

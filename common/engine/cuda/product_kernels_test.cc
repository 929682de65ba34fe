#include "common/engine/cuda/kernels/product_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/packed_tiles.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/cuda/testing/host_block.h"
#include "common/engine/cuda/testing/spans.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// A matrix as it was, [outputs, depth], and in tiles.
struct PackedCase {
  uint32_t outputs = 0;
  uint32_t depth = 0;
  std::vector<float> weights;
  std::vector<uint32_t> words;
  std::vector<Bf16> scales;

  PackedWeights packed() const { return {{words.data(), words.size()}, {scales.data(), scales.size()}}; }
};

class ProductKernelsTest : public testing::Test {
 protected:
  float Normal() { return std::normal_distribution<float>()(random_); }

  PackedCase MakeCase(DeviceFormat format, uint32_t outputs, uint32_t depth) {
    PackedCase made{.outputs = outputs, .depth = depth, .weights = {}, .words = {}, .scales = {}};
    for (uint64_t i = 0; i < uint64_t{outputs} * depth; ++i) made.weights.push_back(Normal());
    // A group of zeros, and one with a weight that dwarfs the others.
    std::fill_n(made.weights.begin(), std::min(depth, kInputGroup), 0.0f);
    made.weights.back() = 1000.0f;
    const uint64_t groups = uint64_t{NumPackedTiles(outputs)} * NumInputGroups(depth);
    const uint64_t tile_groups = NumInputGroups(depth);
    made.words.resize(groups * PackedGroupWords(format));
    made.scales.resize(groups * kPackedOutputs);
    for (uint32_t output = 0; output < outputs; ++output) {
      const uint64_t group = output / kPackedOutputs * tile_groups;
      PackOutput(format, absl::MakeConstSpan(made.weights).subspan(uint64_t{output} * depth, depth),
                 output % kPackedOutputs, &made.words[group * PackedGroupWords(format)],
                 &made.scales[group * kPackedOutputs]);
    }
    return made;
  }

  // Some rows have groups that round in their own ways.
  std::vector<Bf16> MakeInputs(uint32_t rows, uint32_t depth) {
    std::vector<Bf16> inputs(uint64_t{rows} * depth);
    for (Bf16& input : inputs) input = ToBf16(Normal());
    const auto fill = [&](uint32_t row, float value) {
      std::fill_n(&inputs[uint64_t{row} * depth], std::min(depth, kInputGroup), ToBf16(value));
    };
    fill(1, 0.0f);
    fill(2, 0x1p-101f);
    fill(3, -3e38f);
    inputs[uint64_t{4} * depth] = ToBf16(1e20f);
    inputs[uint64_t{5} * depth + depth - 1] = ToBf16(std::numeric_limits<float>::infinity());
    inputs[uint64_t{6} * depth] = ToBf16(std::numeric_limits<float>::quiet_NaN());
    return inputs;
  }

  // What the CPU engine's kernels make of the same inputs.
  static std::vector<float> CpuProduct(WeightFormat format, const PackedCase& matrix,
                                       const std::vector<Bf16>& inputs, uint32_t rows) {
    const ProductKernel& kernel = PortableKernels().products[static_cast<size_t>(format)];
    const uint32_t num_tiles = (matrix.outputs + kTileOutputs - 1) / kTileOutputs;
    const uint64_t tile_bytes = kernel.layout.tile_bytes(matrix.depth);
    std::vector<char> tiles(num_tiles * tile_bytes);
    for (uint32_t output = 0; output < matrix.outputs; ++output) {
      kernel.layout.pack(&matrix.weights[uint64_t{output} * matrix.depth], matrix.depth,
                         output % kTileOutputs, &tiles[output / kTileOutputs * tile_bytes]);
    }
    std::vector<float> floats;
    for (const Bf16 input : inputs) floats.push_back(ToFloat(input));
    std::vector<char> prepared(kernel.prepared_bytes(rows, matrix.depth));
    kernel.prepare({.inputs = floats.data(),
                    .input_stride = matrix.depth,
                    .end_row = rows,
                    .end_column = matrix.depth,
                    .depth = matrix.depth,
                    .prepared = prepared.data()});
    std::vector<float> outputs(uint64_t{rows} * matrix.outputs);
    std::vector<float*> pointers;
    for (uint32_t row = 0; row < rows; ++row) pointers.push_back(&outputs[uint64_t{row} * matrix.outputs]);
    kernel.multiply({.tiles = tiles.data(),
                     .num_tiles = num_tiles,
                     .depth = matrix.depth,
                     .inputs = floats.data(),
                     .input_stride = matrix.depth,
                     .prepared = prepared.data(),
                     .num_rows = rows,
                     .outputs = pointers.data(),
                     .end_output = matrix.outputs});
    return outputs;
  }

  template <typename Kernel>
  std::vector<float> Product(const PackedCase& matrix, std::vector<Bf16> inputs, uint32_t rows) {
    const uint64_t groups = uint64_t{rows} * NumInputGroups(matrix.depth);
    // Nothing is to be read that was not written.
    std::vector<uint32_t> words(groups * RoundedInputs::kGroupWords, 0x7f7f7f7fu);
    std::vector<float> scales(groups, std::numeric_limits<float>::quiet_NaN());
    const RoundedInputs rounded = {SpanOf(words), SpanOf(scales)};
    grid_.Launch(RoundInputsKernel{SpanOf(inputs), rounded, matrix.depth},
                 RoundInputsShape(rows, matrix.depth));
    std::vector<float> outputs(uint64_t{rows} * matrix.outputs, 77.0f);
    const ProductGrid grid = {matrix.outputs, matrix.depth, rows};
    grid_.Launch(Kernel{matrix.packed(), rounded, SpanOf(outputs), grid}, MultiplyShape(grid));
    return outputs;
  }

  template <typename Kernel>
  void ExpectTheCpusBits(DeviceFormat format, WeightFormat cpu_format) {
    for (const auto& [outputs, depth] :
         {std::pair(1u, 1u), {16u, 64u}, {17u, 63u}, {5u, 130u}, {67u, 32u}, {40u, 515u}, {131u, 1100u}}) {
      const PackedCase matrix = MakeCase(format, outputs, depth);
      for (const uint32_t rows : {8u, 16u, 32u, 64u, 128u}) {
        if (rows > 64 && outputs * depth > 40 * 515) continue;
        const std::vector<Bf16> inputs = MakeInputs(rows, depth);
        const std::vector<float> expected = CpuProduct(cpu_format, matrix, inputs, rows);
        const std::vector<float> got = Product<Kernel>(matrix, inputs, rows);
        for (size_t i = 0; i < expected.size(); ++i) {
          if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
          ASSERT_EQ(BitsAs<uint32_t>(got[i]), BitsAs<uint32_t>(expected[i]))
              << outputs << " outputs, depth " << depth << ", row " << i / outputs << " of " << rows
              << ", output " << i % outputs << ": " << got[i] << ", expected " << expected[i];
        }
      }
    }
  }

  std::mt19937_64 random_{19};
  HostGrid grid_{23};
};

// As the PTX ISA has it, element by element: what the emulation's matrix product means.
struct MatrixUnitKernel {
  DeviceSpan<const int8_t> a;  // [16, 32]
  DeviceSpan<const int8_t> b;  // [8, 32]
  DeviceSpan<int32_t> sums;    // [16, 8]

  template <typename Block>
  void operator()(Block& block) const {
    const uint32_t lane = block.thread();
    const auto four = [](DeviceSpan<const int8_t> from, uint32_t at) {
      uint32_t word = 0;
      for (uint32_t i = 0; i < 4; ++i) word |= uint32_t{static_cast<uint8_t>(from[at + i])} << (8 * i);
      return word;
    };
    const uint32_t row = lane / 4;
    const uint32_t column = lane % 4 * 4;
    const uint32_t of_a[4] = {four(a, row * 32 + column), four(a, (row + 8) * 32 + column),
                              four(a, row * 32 + column + 16), four(a, (row + 8) * 32 + column + 16)};
    int32_t of_lane[4] = {1, 2, 3, 4};
    block.MultiplyAddInt8(of_a, four(b, row * 32 + column), four(b, row * 32 + column + 16), of_lane);
    for (uint32_t i = 0; i < 4; ++i) {
      sums[(row + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = of_lane[i] - static_cast<int32_t>(i) - 1;
    }
  }
};

TEST_F(ProductKernelsTest, EmulationMultipliesMatricesOfBytes) {
  std::vector<int8_t> a(16 * 32);
  std::vector<int8_t> b(8 * 32);
  for (int8_t& value : a) value = static_cast<int8_t>(random_());
  for (int8_t& value : b) value = static_cast<int8_t>(random_());
  std::vector<int32_t> sums(16 * 8);
  grid_.Launch(MatrixUnitKernel{SpanOf(a), SpanOf(b), SpanOf(sums)}, {.threads = 32});
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < 8; ++column) {
      int32_t expected = 0;
      for (uint32_t k = 0; k < 32; ++k) expected += a[row * 32 + k] * b[column * 32 + k];
      EXPECT_EQ(sums[row * 8 + column], expected) << row << ", " << column;
    }
  }
}

TEST_F(ProductKernelsTest, Int8GivesTheBitsOfTheProcessor) {
  ExpectTheCpusBits<MultiplyInt8Kernel>(DeviceFormat::kInt8, WeightFormat::kInt8);
}

TEST_F(ProductKernelsTest, Int4GivesTheBitsOfTheProcessor) {
  ExpectTheCpusBits<MultiplyInt4Kernel>(DeviceFormat::kInt4, WeightFormat::kInt4);
}

TEST_F(ProductKernelsTest, RoundsToTheNearestE4m3) {
  for (uint32_t bits = 0; bits < 0x7f; ++bits) {
    const float value = FromE4m3(bits);
    EXPECT_EQ(ToE4m3(value), bits);
    EXPECT_EQ(ToE4m3(-value), bits | 0x80u);
    EXPECT_EQ(FromE4m3(bits | 0x80u), -value);
    if (bits == 0x7e) break;
    // Half-way to the next one, and on either side of that.
    const float middle = (value + FromE4m3(bits + 1)) / 2;
    EXPECT_EQ(ToE4m3(middle), bits + bits % 2) << bits;
    EXPECT_EQ(ToE4m3(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(ToE4m3(std::nextafter(middle, 1000.0f)), bits + 1);
  }
  // E4M3 has 4 bits of exponent with a bias of 7, and 3 of a fraction.
  EXPECT_EQ(FromE4m3(0x01), 0x1p-9f);
  EXPECT_EQ(FromE4m3(0x08), 0x1p-6f);
  EXPECT_EQ(FromE4m3(0x3a), 1.25f);
  EXPECT_EQ(FromE4m3(0x7e), 448.0f);
  EXPECT_EQ(ToE4m3(1e9f), 0x7e);
  EXPECT_EQ(ToE4m3(-465.0f), 0xfe);
}

// A matrix whose outputs have their own scales or the matrix's, and what it stands for.
struct Fp8Case {
  std::vector<double> weights;  // [outputs, depth]
  std::vector<uint32_t> words;
  std::vector<float> scales;
};

Fp8Case PackFp8(const std::vector<float>& weights, uint32_t outputs, uint32_t depth, bool scales_matrix) {
  Fp8Case packed;
  const uint64_t tile_words = uint64_t{NumInputGroups(depth)} * PackedGroupWords(DeviceFormat::kFp8);
  packed.words.resize(NumPackedTiles(outputs) * tile_words);
  packed.scales.resize(NumPackedTiles(outputs) * kPackedOutputs);
  for (uint32_t output = 0; output < outputs; ++output) {
    const auto own = absl::MakeConstSpan(weights).subspan(uint64_t{output} * depth, depth);
    const float scale = Fp8Scale(GreatestMagnitude(scales_matrix ? absl::MakeConstSpan(weights) : own));
    packed.scales[output] = scale;
    PackFp8Output(own, scale, output % kPackedOutputs, &packed.words[output / kPackedOutputs * tile_words]);
    for (const float weight : own) {
      const double rounded = scale == 0.0f ? 0.0 : FromE4m3(ToE4m3(weight / scale));
      // Half a step of the fraction, or of what is below the smallest exponent.
      EXPECT_LE(std::abs(rounded * scale - weight),
                std::max(std::abs(weight) / 16, scale * 0x1p-10f) * 1.0001f);
      packed.weights.push_back(rounded * scale);
    }
  }
  return packed;
}

// Within what sums in float32 lose, and the same bits in every company.
TEST_F(ProductKernelsTest, Fp8GivesTheSumsOfTheRoundedWeights) {
  for (const auto& [outputs, depth] :
       {std::pair(1u, 1u), {16u, 64u}, {17u, 63u}, {5u, 136u}, {67u, 32u}, {40u, 515u}, {131u, 1096u}}) {
    std::vector<float> weights(uint64_t{outputs} * depth);
    for (float& weight : weights) weight = Normal();
    std::fill_n(weights.begin(), depth, 0.0f);
    const Fp8Case packed = PackFp8(weights, outputs, depth, /*scales_matrix=*/depth % 2 == 0);
    const std::vector<Bf16> inputs = MakeInputs(64, depth);
    std::vector<float> of_all;
    for (const uint32_t rows : {64u, 32u, 16u, 8u}) {
      std::vector<float> got(uint64_t{rows} * outputs, 77.0f);
      const ProductGrid grid = {outputs, depth, rows};
      grid_.Launch(
          MultiplyFp8Kernel{
              {{packed.words.data(), packed.words.size()}, {}, {packed.scales.data(), packed.scales.size()}},
              {inputs.data(), inputs.size()},
              SpanOf(got),
              grid},
          MultiplyShape(grid));
      if (of_all.empty()) of_all = got;
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(BitsAs<uint32_t>(got[i]) == BitsAs<uint32_t>(of_all[i]) ||
                    (std::isnan(got[i]) && std::isnan(of_all[i])))
            << rows << " rows, " << i;
      }
    }
    for (uint32_t row = 0; row < 64; ++row) {
      for (uint32_t output = 0; output < outputs; ++output) {
        double expected = 0;
        double size = 0;
        for (uint32_t k = 0; k < depth; ++k) {
          const double product =
              packed.weights[uint64_t{output} * depth + k] * ToFloat(inputs[uint64_t{row} * depth + k]);
          expected += product;
          size += std::abs(product);
        }
        const float got = of_all[uint64_t{row} * outputs + output];
        // Rows of infinities and of numbers near them: nothing is said of what float32 cannot hold.
        if (!std::isfinite(size) || size > 1e36) continue;
        ASSERT_NEAR(got, expected, 1e-5 * size)
            << outputs << ", " << depth << ", row " << row << ", " << output;
      }
    }
  }
}

TEST_F(ProductKernelsTest, EmbedsWhatTheProcessorReadsBack) {
  const std::vector<BlockId> blocks = {0};
  for (const uint32_t hidden : {6u, 64u, 201u}) {
    const PackedCase matrix = MakeCase(DeviceFormat::kInt8, 21, hidden);
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < 5; ++i) {
      rows.push_back(
          {.token = static_cast<TokenId>(i * 5), .context = {.blocks = blocks, .num_committed = i + 1}});
    }
    std::vector<uint32_t> words;
    WriteStepWords(rows, {.max_rows = 6, .rows_per_item = 4}, &words);
    std::vector<float> state(8 * hidden, 77.0f);
    grid_.Launch(EmbedInt8Kernel{{SpanOf(words), 6}, matrix.packed(), SpanOf(state), hidden},
                 EmbedShape(8, hidden));
    const WeightLayout& layout = PortableKernels().products[static_cast<size_t>(WeightFormat::kInt8)].layout;
    for (uint32_t row = 0; row < 5; ++row) {
      std::vector<char> tile(layout.tile_bytes(hidden));
      std::vector<float> expected(hidden);
      layout.pack(&matrix.weights[row * 5 * hidden], hidden, 3, tile.data());
      layout.unpack(tile.data(), hidden, 3, expected.data());
      for (uint32_t i = 0; i < hidden; ++i)
        ASSERT_EQ(state[row * hidden + i], expected[i]) << row << ", " << i;
    }
    // Beyond the step.
    EXPECT_EQ(state[5 * hidden], 77.0f);
  }
}

TEST_F(ProductKernelsTest, PartsAreAddedInOrder) {
  // Nothing but this order gives 1.
  std::vector<float> parts = {1e20f, 2, 0.5f, 4, -1e20f, 3, 0.5f, 4, 1, 4, 0.5f, 4};
  std::vector<float> outputs(4, NAN);
  const AddPartsKernel add = {.parts = SpanOf(parts), .outputs = SpanOf(outputs), .num_parts = 3, .size = 4};
  grid_.Launch(add, AddPartsShape(4));
  EXPECT_EQ(outputs, (std::vector<float>{1.0f, 9.0f, 1.5f, 12.0f}));
}

}  // namespace
}  // namespace tandem

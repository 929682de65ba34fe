#include "common/engine/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/attention_args.h"
#include "common/engine/cpu/testing/kernels_test_data.h"
#include "common/engine/cpu/weight_quantizer.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// The order of summation that the header promises.
float SumInHalves(std::vector<float> lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

TEST(Kernels, SelectsWhatTheMachineHas) {
  const std::vector<InstructionSet> supported = SupportedInstructionSets();
  ASSERT_GE(supported.size(), 2u);
  EXPECT_EQ(supported[supported.size() - 2], InstructionSet::kPortable);
  EXPECT_EQ(supported.back(), InstructionSet::kPortableBf16);
  // Set where the machine is known, so that kernels cannot go untested unnoticed.
  if (const char* expected = std::getenv("TANDEM_EXPECTED_KERNELS")) {
    EXPECT_EQ(InstructionSetName(supported.front()), expected);
  }
  EXPECT_EQ(SelectKernels(InstructionSet::kAuto).value(), SelectKernels(supported.front()).value());
  for (InstructionSet each : {InstructionSet::kAvx2, InstructionSet::kAvx512, InstructionSet::kAvx512Bf16,
                              InstructionSet::kAmx, InstructionSet::kNeon, InstructionSet::kNeonI8mm}) {
    const bool has = std::count(supported.begin(), supported.end(), each) > 0;
    EXPECT_EQ(SelectKernels(each).status().code(),
              has ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
  }
}

// Significant bits of inputs that its products with bfloat16 weights keep.
uint32_t InputBits(const KernelTable& kernels) {
  return kernels.products[static_cast<size_t>(WeightFormat::kBf16)].input_bits;
}

struct ProductCase {
  uint32_t num_rows;
  uint32_t depth;
  uint32_t num_tiles;
  uint32_t num_outputs;
};

// Runs a product of `weights` (as [num_tiles][depth][32]).
std::vector<float> Multiply(const KernelTable& kernels, const ProductCase& shape, WeightFormat format,
                            const std::vector<float>& weights, const std::vector<float>& inputs,
                            size_t input_stride) {
  // A guard value after each row shows stores beyond the last output.
  const size_t output_stride = shape.num_outputs + 1;
  std::vector<float> outputs(shape.num_rows * output_stride, 12345.0f);
  std::vector<float*> rows;
  for (uint32_t row = 0; row < shape.num_rows; ++row) rows.push_back(outputs.data() + row * output_stride);
  const ProductKernel& kernel = kernels.products[static_cast<size_t>(format)];
  const uint64_t tile_bytes = kernel.layout.tile_bytes(shape.depth);
  auto tiles = AlignedBuffer::Allocate(shape.num_tiles, tile_bytes, "weights").value();
  std::vector<float> output(shape.depth);
  for (uint32_t n = 0; n < shape.num_tiles * kTileOutputs; ++n) {
    const float* tile = weights.data() + size_t{n / kTileOutputs} * shape.depth * kTileOutputs;
    for (uint32_t k = 0; k < shape.depth; ++k) output[k] = tile[k * kTileOutputs + n % kTileOutputs];
    kernel.layout.pack(output.data(), shape.depth, n % kTileOutputs,
                       tiles.data<char>() + n / kTileOutputs * tile_bytes);
  }
  AlignedBuffer prepared;
  if (kernel.prepare != nullptr) {
    prepared =
        AlignedBuffer::Allocate(kernel.prepared_bytes(shape.num_rows, shape.depth), 1, "inputs").value();
    // In parts, as threads do it.
    for (uint32_t row = 0; row < shape.num_rows; ++row) {
      for (uint32_t column = 0; column < shape.depth; column += kInputGroup) {
        PrepareArgs args;
        args.inputs = inputs.data();
        args.input_stride = input_stride;
        args.begin_row = row;
        args.end_row = row + 1;
        args.begin_column = column;
        args.end_column = std::min(column + kInputGroup, shape.depth);
        args.depth = shape.depth;
        args.prepared = prepared.data<char>();
        kernel.prepare(args);
      }
    }
  }
  ProductArgs args;
  args.tiles = tiles.data<char>();
  args.num_tiles = shape.num_tiles;
  args.depth = shape.depth;
  args.inputs = inputs.data();
  args.input_stride = input_stride;
  args.prepared = prepared.data<char>();
  args.num_rows = shape.num_rows;
  args.outputs = rows.data();
  args.end_output = shape.num_outputs;
  kernel.multiply(args);
  return outputs;
}

// Weights that bfloat16 can hold, and inputs.
struct ProductData {
  explicit ProductData(const ProductCase& shape)
      : weights(Random(size_t{shape.num_tiles} * shape.depth * kTileOutputs, 1)),
        stride(shape.depth + 3),
        inputs(Random(shape.num_rows * stride, 2)) {
    for (float& weight : weights)
      weight = std::bit_cast<float>(std::bit_cast<uint32_t>(weight) & 0xffff0000u);
  }
  float Weight(const ProductCase& shape, uint32_t n, uint32_t k) const {
    return weights[(size_t{n / kTileOutputs} * shape.depth + k) * kTileOutputs + n % kTileOutputs];
  }

  std::vector<float> weights;
  size_t stride;
  std::vector<float> inputs;
};

std::vector<ProductCase> ProductCases() {
  std::vector<ProductCase> shapes;
  for (uint32_t rows = 1; rows <= 27; ++rows) shapes.push_back({rows, 37, 5, 131});
  shapes.push_back({1, 1, 1, 1});
  shapes.push_back({2, 64, 7, 7 * 32});
  shapes.push_back({3, 65, 9, 9 * 32 - 16});
  shapes.push_back({5, 16, 4, 3 * 32 + 17});
  return shapes;
}

TEST(Kernels, AProductIsOneChainOfFusedMultiplyAddsPerOutput) {
  for (const ProductCase& shape : ProductCases()) {
    SCOPED_TRACE(testing::Message() << shape.num_rows << " rows, depth " << shape.depth << ", "
                                    << shape.num_outputs << " outputs");
    const ProductData data(shape);
    std::vector<float> expected;
    for (uint32_t row = 0; row < shape.num_rows; ++row) {
      for (uint32_t n = 0; n < shape.num_outputs; ++n) {
        float sum = 0;
        for (uint32_t k = 0; k < shape.depth; ++k) {
          sum = std::fma(data.inputs[row * data.stride + k], data.Weight(shape, n, k), sum);
        }
        expected.push_back(sum);
      }
      expected.push_back(12345.0f);
    }
    for (const KernelTable* kernels : AllKernels()) {
      for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF32}) {
        if (format == WeightFormat::kBf16 && InputBits(*kernels) != 24) continue;
        EXPECT_TRUE(
            SameBits(Multiply(*kernels, shape, format, data.weights, data.inputs, data.stride), expected))
            << kernels->name << " format " << static_cast<int>(format);
      }
    }
  }
}

TEST(Kernels, AProductOfRoundedInputsIsCloseAndTheSameForEveryNumberOfRows) {
  std::vector<ProductCase> shapes = ProductCases();
  // Deeper than the parts of the weights that many rows go through, and more rows than go through at once.
  shapes.push_back({8, 1100, 3, 90});
  shapes.push_back({16, 1100, 2, 64});
  shapes.push_back({70, 1100, 2, 60});
  shapes.push_back({300, 600, 1, 32});
  for (const KernelTable* kernels : AllKernels()) {
    if (InputBits(*kernels) == 24) continue;
    for (const ProductCase& shape : shapes) {
      SCOPED_TRACE(testing::Message() << kernels->name << ", " << shape.num_rows << " rows, depth "
                                      << shape.depth << ", " << shape.num_outputs << " outputs");
      const ProductData data(shape);
      const std::vector<float> all =
          Multiply(*kernels, shape, WeightFormat::kBf16, data.weights, data.inputs, data.stride);
      ProductCase alone = shape;
      alone.num_rows = 1;
      for (uint32_t row = 0; row < shape.num_rows; ++row) {
        const std::vector<float> input(data.inputs.begin() + static_cast<ptrdiff_t>(row * data.stride),
                                       data.inputs.begin() + static_cast<ptrdiff_t>((row + 1) * data.stride));
        const std::vector<float> one =
            Multiply(*kernels, alone, WeightFormat::kBf16, data.weights, input, data.stride);
        const size_t begin = row * one.size();
        ASSERT_EQ(std::memcmp(one.data(), all.data() + begin, one.size() * sizeof(float)), 0)
            << "row " << row;
        for (uint32_t n = 0; n < shape.num_outputs; ++n) {
          double sum = 0;
          double magnitude = 0;
          for (uint32_t k = 0; k < shape.depth; ++k) {
            const double term = double{input[k]} * data.Weight(shape, n, k);
            sum += term;
            magnitude += std::abs(term);
          }
          // An input loses at most half its last bit that is kept, and the sums round some 2 * depth / 32
          // times.
          ASSERT_NEAR(one[n], sum,
                      magnitude * (std::exp2(-1.0 - InputBits(*kernels)) + shape.depth * 0x1p-26))
              << row << " " << n;
        }
      }
    }
  }
}

// Inputs of one group as the header says they are rounded.
struct RoundedInputs {
  float scale = 0;
  int32_t values[kInputGroup] = {};
};

RoundedInputs RoundInputs(const float* inputs, uint32_t count, float greatest_integer) {
  RoundedInputs rounded;
  float greatest = 0;
  for (uint32_t k = 0; k < count; ++k) {
    if (!std::isfinite(inputs[k])) {
      rounded.scale = std::numeric_limits<float>::quiet_NaN();
      return rounded;
    }
    greatest = std::max(greatest, std::abs(inputs[k]));
  }
  if (greatest < 0x1p-100f) return rounded;
  rounded.scale = greatest / greatest_integer;
  const float inverse = greatest_integer / greatest;
  for (uint32_t k = 0; k < count; ++k) {
    rounded.values[k] = static_cast<int32_t>(std::nearbyint(double{inputs[k]} * inverse));
  }
  return rounded;
}

// The definition in kernel_table.h, row after row with a guard value behind each.
std::vector<float> ExactIntegerProduct(const ProductCase& shape, WeightFormat format,
                                       const ProductData& data) {
  const uint32_t num_groups = (shape.depth + kInputGroup - 1) / kInputGroup;
  const bool has_bytes = format == WeightFormat::kInt8 || format == WeightFormat::kW8A8;
  const bool is_short = format == WeightFormat::kW8A8 || format == WeightFormat::kW4A8;
  const auto greatest_integer = static_cast<float>(is_short ? kGreatestShortInput : kGreatestInput);
  std::vector<QuantizedGroup> weights;
  for (uint32_t n = 0; n < shape.num_outputs; ++n) {
    for (uint32_t group = 0; group < num_groups; ++group) {
      float padded[kInputGroup] = {};
      const uint32_t begin = group * kInputGroup;
      for (uint32_t k = begin; k < std::min(begin + kInputGroup, shape.depth); ++k) {
        padded[k - begin] = data.Weight(shape, n, k);
      }
      weights.push_back(has_bytes ? QuantizeInt8(padded) : QuantizeInt4(padded));
    }
  }
  std::vector<float> outputs;
  for (uint32_t row = 0; row < shape.num_rows; ++row) {
    std::vector<RoundedInputs> inputs;
    for (uint32_t group = 0; group < num_groups; ++group) {
      const uint32_t begin = group * kInputGroup;
      inputs.push_back(RoundInputs(data.inputs.data() + row * data.stride + begin,
                                   std::min(kInputGroup, shape.depth - begin), greatest_integer));
    }
    for (uint32_t n = 0; n < shape.num_outputs; ++n) {
      float output = 0;
      for (uint32_t group = 0; group < num_groups; ++group) {
        const QuantizedGroup& weight = weights[size_t{n} * num_groups + group];
        int64_t sum = 0;
        for (uint32_t k = 0; k < kInputGroup; ++k) sum += weight.values[k] * inputs[group].values[k];
        EXPECT_LT(std::abs(sum), int64_t{1} << 27);
        output = std::fma(static_cast<float>(sum), weight.scale * inputs[group].scale, output);
      }
      outputs.push_back(output);
    }
    outputs.push_back(12345.0f);
  }
  return outputs;
}

// Which bits stand for "not a number" is the instruction set's.
std::vector<float> WithOneNotANumber(std::vector<float> values) {
  for (float& value : values) {
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
  }
  return values;
}

std::vector<ProductCase> IntegerProductCases() {
  std::vector<ProductCase> shapes = ProductCases();
  for (uint32_t rows = 1; rows <= 17; ++rows) shapes.push_back({rows, 200, 3, 80});
  shapes.push_back({70, 1100, 2, 60});
  shapes.push_back({300, 600, 1, 32});
  // Deep enough that inputs are taken in several parts.
  shapes.push_back({130, 9000, 1, 20});
  return shapes;
}

TEST(Kernels, AProductOfIntegersIsItsDefinitionEverywhere) {
  for (const ProductCase& shape : IntegerProductCases()) {
    SCOPED_TRACE(testing::Message() << shape.num_rows << " rows, depth " << shape.depth << ", "
                                    << shape.num_outputs << " outputs");
    const ProductData data(shape);
    for (WeightFormat format :
         {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kW8A8, WeightFormat::kW4A8}) {
      const std::vector<float> expected = ExactIntegerProduct(shape, format, data);
      for (const KernelTable* kernels : AllKernels()) {
        ASSERT_TRUE(
            SameBits(Multiply(*kernels, shape, format, data.weights, data.inputs, data.stride), expected))
            << kernels->name << " format " << static_cast<int>(format);
      }
    }
  }
}

TEST(Kernels, AProductOfIntegersTakesEveryInput) {
  const ProductCase shape = {19, 64 * 9 + 5, 2, 50};
  ProductData data(shape);
  const auto fill = [&](uint32_t row, uint32_t group, float value) {
    std::fill_n(data.inputs.begin() + static_cast<ptrdiff_t>(row * data.stride + group * kInputGroup),
                kInputGroup, value);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const float greatest = std::numeric_limits<float>::max();
  // Groups of zeros, of numbers too small to count, just great enough, and as great as can be.
  for (uint32_t group = 0; group < 10; ++group) fill(1, group, 0.0f);
  fill(2, 3, 0.0f);
  fill(3, 0, 1e-40f);
  fill(4, 1, -0x1p-100f);
  fill(5, 2, std::nextafter(0x1p-100f, 0.0f));
  fill(6, 2, 1e-3f);
  fill(7, 8, greatest);
  fill(8, 8, -greatest);
  data.inputs[9 * data.stride + 70] = infinity;
  data.inputs[10 * data.stride + shape.depth - 1] = -infinity;
  data.inputs[18 * data.stride] = std::numeric_limits<float>::quiet_NaN();
  // The same of weights: output 3 is all zeros, and outputs 4 and 5 have bad groups.
  for (uint32_t k = 0; k < shape.depth; ++k) data.weights[k * kTileOutputs + 3] = 0.0f;
  for (uint32_t k = 64; k < 128; ++k) data.weights[k * kTileOutputs + 6] = 1e-35f;
  data.weights[100 * kTileOutputs + 4] = infinity;
  data.weights[0 * kTileOutputs + 5] = std::numeric_limits<float>::quiet_NaN();
  for (WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kW8A8, WeightFormat::kW4A8}) {
    const std::vector<float> expected = WithOneNotANumber(ExactIntegerProduct(shape, format, data));
    const size_t width = shape.num_outputs + 1;
    EXPECT_TRUE(std::isnan(expected[9 * width]));
    EXPECT_TRUE(std::isnan(expected[4]));
    EXPECT_EQ(expected[3], 0.0f);
    EXPECT_EQ(expected[1 * width], 0.0f);
    EXPECT_FALSE(std::isnan(expected[11 * width]));
    for (const KernelTable* kernels : AllKernels()) {
      const std::vector<float> outputs =
          WithOneNotANumber(Multiply(*kernels, shape, format, data.weights, data.inputs, data.stride));
      EXPECT_TRUE(SameBits(outputs, expected)) << kernels->name << " format " << static_cast<int>(format);
    }
  }
}

TEST(Kernels, RmsNormSumsInTheFixedOrder) {
  for (size_t size : {1u, 15u, 16u, 40u, 257u}) {
    const std::vector<float> input = Random(size, size, 3);
    const std::vector<float> weight = Random(size, size + 1);
    std::vector<float> lanes(kLanes);
    for (size_t i = 0; i < size; ++i) lanes[i % kLanes] = std::fma(input[i], input[i], lanes[i % kLanes]);
    const float factor = 1.0f / std::sqrt(SumInHalves(lanes) / static_cast<float>(size) + 1e-5f);
    std::vector<float> expected(size);
    for (size_t i = 0; i < size; ++i) expected[i] = weight[i] * (input[i] * factor);
    for (const KernelTable* kernels : AllKernels()) {
      std::vector<float> output(size);
      kernels->rms_norm(input.data(), weight.data(), size, 1e-5f, output.data());
      EXPECT_TRUE(SameBits(output, expected)) << kernels->name << " " << size;
      output = input;
      kernels->rms_norm(output.data(), weight.data(), size, 1e-5f, output.data());
      EXPECT_TRUE(SameBits(output, expected)) << kernels->name << " in place " << size;
    }
  }
}

TEST(Kernels, ExponentialIsCloseAndTheSameEverywhere) {
  std::vector<float> inputs = {0.0f, -0.0f, 1.0f, -1.0f, 1e-30f, 87.9f, -87.3f, -87.4f, -1000.0f};
  for (float x = -87.3f; x < 88; x += 0.0137f) inputs.push_back(x);
  std::vector<float> expected = inputs;
  PortableKernels().exponential(expected.size(), expected.data());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double exact = inputs[i] < -87.33654f ? 0 : std::exp(static_cast<double>(inputs[i]));
    EXPECT_NEAR(expected[i], exact, 1.5e-7 * exact) << inputs[i];
  }
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> edges = {-infinity, infinity, std::numeric_limits<float>::quiet_NaN()};
  PortableKernels().exponential(edges.size(), edges.data());
  EXPECT_EQ(edges[0], 0.0f);
  EXPECT_NEAR(edges[1] / std::exp(88.0), 1.0, 1e-6);
  EXPECT_TRUE(std::isnan(edges[2]));
  for (const KernelTable* kernels : AllKernels()) {
    std::vector<float> values = inputs;
    kernels->exponential(values.size(), values.data());
    EXPECT_TRUE(SameBits(values, expected)) << kernels->name;
  }
}

TEST(Kernels, SiluAndSumsAreTheSameEverywhere) {
  for (size_t size : {1u, 16u, 71u}) {
    const std::vector<float> gate = Random(size, 1, 20);
    const std::vector<float> up = Random(size, 2);
    std::vector<float> silu = gate;
    PortableKernels().silu_multiply(up.data(), size, silu.data());
    std::vector<float> sum = gate;
    for (size_t i = 0; i < size; ++i) {
      const double exact = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      EXPECT_NEAR(silu[i], exact, 1e-6 * std::abs(exact) + 1e-12);
      sum[i] += up[i];
    }
    for (const KernelTable* kernels : AllKernels()) {
      std::vector<float> values = gate;
      kernels->silu_multiply(up.data(), size, values.data());
      EXPECT_TRUE(SameBits(values, silu)) << kernels->name;
      values = gate;
      kernels->add(up.data(), size, values.data());
      EXPECT_TRUE(SameBits(values, sum)) << kernels->name;
    }
  }
}

}  // namespace
}  // namespace tandem

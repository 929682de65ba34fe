#include "common/engine/cpu/product_arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/testing/kernels_test_data.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

struct PairsCase {
  uint32_t num_rows;
  uint32_t depth;
  uint32_t num_outputs;
};

// The definition in kernel_table.h, with every operation as double precision has it and then rounded: exact
// for what these tests multiply.
float Flushed(double exact) {
  // Below the normal range once it has 24 bits.
  if (std::abs(exact) < 0x1p-126 - 0x1p-151) return std::copysign(0.0f, static_cast<float>(exact));
  return static_cast<float>(exact);
}

float RoundedToBf16(float x) {
  if (std::abs(x) < 0x1p-126f) return std::copysign(0.0f, x);
  // 8 significant bits, ties to even.
  int exponent;
  const double fraction = std::frexp(static_cast<double>(x), &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8));
}

float PairsProduct(const std::vector<float>& inputs, const std::vector<float>& weights) {
  float total = 0;
  for (size_t block = 0; block < inputs.size(); block += 32) {
    float sums[2] = {};
    for (size_t k = block; k < std::min(block + 32, inputs.size()); ++k) {
      float& sum = sums[k % 2];
      const double product = double{RoundedToBf16(inputs[k])} * Flushed(double{weights[k]});
      // The rounding of a double to a float could round a second time; a fused multiply-add rounds once.
      sum = std::abs(product + sum) < 0x1p-125 ? Flushed(product + sum)
                                               : std::fma(RoundedToBf16(inputs[k]), weights[k], sum);
    }
    const float both = Flushed(double{sums[0]} + sums[1]);
    total = Flushed(double{total} + both);
  }
  return total;
}

// Exponents from `lowest` on; the bits of `mask` count.
std::vector<float> Spread(size_t count, uint64_t seed, int lowest, int num_exponents, uint32_t mask) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(1 + static_cast<float>(random() >> 41) * 0x1p-23f,
                       lowest + static_cast<int>(random() % static_cast<uint64_t>(num_exponents)));
    if (random() % 2 != 0) value = -value;
    if (random() % 16 == 0) value = 0;
    value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & mask);
  }
  return values;
}

// [num_rows, num_outputs] of inputs [num_rows, depth] and weights [num_outputs, depth].
std::vector<float> Multiply(const KernelTable& kernels, const PairsCase& shape,
                            const std::vector<float>& inputs, const std::vector<float>& weights) {
  const ProductKernel& kernel = kernels.products[static_cast<size_t>(WeightFormat::kBf16)];
  const uint32_t num_tiles = (shape.num_outputs + kTileOutputs - 1) / kTileOutputs;
  const uint64_t tile_bytes = kernel.layout.tile_bytes(shape.depth);
  auto tiles = AlignedBuffer::Allocate(num_tiles, tile_bytes, "weights").value();
  for (uint32_t n = 0; n < shape.num_outputs; ++n) {
    kernel.layout.pack(&weights[size_t{n} * shape.depth], shape.depth, n % kTileOutputs,
                       tiles.data<char>() + n / kTileOutputs * tile_bytes);
  }
  auto prepared =
      AlignedBuffer::Allocate(kernel.prepared_bytes(shape.num_rows, shape.depth), 1, "inputs").value();
  kernel.prepare({.inputs = inputs.data(),
                  .input_stride = shape.depth,
                  .begin_row = 0,
                  .end_row = shape.num_rows,
                  .begin_column = 0,
                  .end_column = shape.depth,
                  .depth = shape.depth,
                  .prepared = prepared.data<char>()});
  std::vector<float> outputs(size_t{shape.num_rows} * shape.num_outputs);
  std::vector<float*> rows;
  for (uint32_t row = 0; row < shape.num_rows; ++row) rows.push_back(&outputs[row * shape.num_outputs]);
  kernel.multiply({.tiles = tiles.data<char>(),
                   .num_tiles = num_tiles,
                   .depth = shape.depth,
                   .inputs = inputs.data(),
                   .input_stride = shape.depth,
                   .prepared = prepared.data<char>(),
                   .num_rows = shape.num_rows,
                   .outputs = rows.data(),
                   .first_output = 0,
                   .end_output = shape.num_outputs});
  return outputs;
}

std::vector<const KernelTable*> KernelsOfPairs() {
  std::vector<const KernelTable*> pairs;
  for (const KernelTable* kernels : AllKernels()) {
    const std::string name = kernels->name;
    // `amx` where it does what is documented: see ArithmeticName.
    const bool is_amx = name == "amx" && MultipliesBf16Pairs(*kernels);
    if (is_amx || name == "avx512-bf16" || name == "portable-bf16") pairs.push_back(kernels);
  }
  return pairs;
}

TEST(ProductArithmetic, AProductOfPairsIsItsDefinitionWhereverItIsMade) {
  std::vector<PairsCase> shapes = {{1, 1, 1}, {2, 31, 33}, {7, 32, 64}, {25, 33, 40}, {3, 200, 300}};
  for (uint32_t rows = 1; rows <= 13; ++rows) shapes.push_back({rows, 77, 150});
  uint64_t seed = 0;
  for (const PairsCase& shape : shapes) {
    for (const int lowest : {-8, -66, -128}) {
      SCOPED_TRACE(testing::Message() << shape.num_rows << " rows, depth " << shape.depth << ", "
                                      << shape.num_outputs << " outputs, exponents from " << lowest);
      const auto inputs = Spread(size_t{shape.num_rows} * shape.depth, ++seed, lowest, 10, 0xffffffffu);
      const auto weights =
          Spread(size_t{shape.num_outputs} * shape.depth, ++seed, lowest + 1, 10, 0xffff0000u);
      std::vector<float> expected;
      for (uint32_t row = 0; row < shape.num_rows; ++row) {
        const std::vector<float> input(inputs.begin() + row * shape.depth,
                                       inputs.begin() + (row + 1) * shape.depth);
        for (uint32_t n = 0; n < shape.num_outputs; ++n) {
          expected.push_back(PairsProduct(
              input, {weights.begin() + n * shape.depth, weights.begin() + (n + 1) * shape.depth}));
        }
      }
      for (const KernelTable* kernels : KernelsOfPairs()) {
        EXPECT_TRUE(SameBits(Multiply(*kernels, shape, inputs, weights), expected)) << kernels->name;
      }
    }
  }
}

TEST(ProductArithmetic, TellsProductsOfPairsFromOthers) {
  EXPECT_TRUE(MultipliesBf16Pairs(PortableBf16Kernels()));
  EXPECT_FALSE(MultipliesBf16Pairs(PortableKernels()));
  EXPECT_EQ(ArithmeticName(PortableKernels()), "portable");
  EXPECT_EQ(ArithmeticName(PortableBf16Kernels()), "portable-bf16");
  EXPECT_EQ(ArithmeticName(PortableKernels(), KvType::kF32), "portable");
  EXPECT_EQ(ArithmeticName(PortableKernels(), KvType::kBf16), "portable, keys and values in bf16");
  EXPECT_EQ(ArithmeticName(PortableKernels(), KvType::kInt8), "portable, keys and values in int8");
  for (const KernelTable* kernels : AllKernels()) {
    const std::string name = kernels->name;
    if (name == "avx512-bf16") {
      EXPECT_EQ(ArithmeticName(*kernels), "bf16-pairs");
    } else if (name != "amx") {
      EXPECT_EQ(ArithmeticName(*kernels), name);
    }
  }
}

// What a processor whose instruction adds up otherwise would look like.
TEST(ProductArithmetic, KernelsThatAddUpOtherwiseKeepTheirName) {
  KernelTable other = PortableBf16Kernels();
  other.name = "amx";
  EXPECT_EQ(ArithmeticName(other), "bf16-pairs");
  ProductKernel& product = other.products[static_cast<size_t>(WeightFormat::kBf16)];
  product.multiply = [](const ProductArgs& args) {
    PortableBf16Kernels().products[static_cast<size_t>(WeightFormat::kBf16)].multiply(args);
    float& first = args.outputs[0][0];
    first = std::nextafter(first, 2 * first);
  };
  EXPECT_EQ(ArithmeticName(other), "amx");
}

}  // namespace
}  // namespace tandem

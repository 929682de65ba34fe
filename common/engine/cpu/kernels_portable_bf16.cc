#include <bit>
#include <cmath>

#include "common/engine/cpu/kernel_table.h"

// Products of bfloat16 pairs (kernel_table.h) in plain C++: for machines without instructions for them, and
// as the reference for machines with them.

namespace tandem {
namespace {

constexpr uint32_t kBlockInputs = 32;
constexpr float kSmallestNormal = 0x1p-126f;

float WithoutSubnormal(float x) {
  return std::abs(x) < kSmallestNormal ? std::copysign(0.0f, x) : x;
}

// Rounds to bfloat16, the nearest, ties to even.
float RoundedToBf16(float x) {
  if (std::isnan(x)) return x;
  const auto bits = std::bit_cast<uint32_t>(WithoutSubnormal(x));
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

// a * b + sum, rounded once. If the result, rounded to 24 bits, is still below the normal range, it is a
// zero. Such a result is exact in double precision: the product has 16 bits, and the sum has none below
// 2^-149.
float MultiplyAdd(float a, float b, float sum) {
  constexpr double kRoundsToNormal = 0x1p-126 - 0x1p-151;
  const double wide = static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(sum);
  if (std::abs(wide) < kRoundsToNormal) return std::copysign(0.0f, static_cast<float>(wide));
  return std::fma(a, b, sum);
}

float Add(float a, float b) {
  return WithoutSubnormal(a + b);
}

uint64_t PreparedBytes(uint32_t max_rows, uint32_t depth) {
  return uint64_t{max_rows} * depth * sizeof(float);
}

void Prepare(const PrepareArgs& args) {
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    float* const to = static_cast<float*>(args.prepared) + size_t{row} * args.depth;
    for (uint32_t k = args.begin_column; k < args.end_column; ++k) {
      to[k] = RoundedToBf16(args.inputs[row * args.input_stride + k]);
    }
  }
}

// Weight k of an output of Bf16Lines; `index` is the output's place in a line.
float WeightAt(const uint16_t* tile, uint32_t k, uint32_t index) {
  return WithoutSubnormal(
      std::bit_cast<float>(static_cast<uint32_t>(tile[size_t{k} * kTileOutputs + index]) << 16));
}

float DotProduct(const float* inputs, const uint16_t* tile, uint32_t index, uint32_t depth) {
  float total = 0.0f;
  for (uint32_t block = 0; block < depth; block += kBlockInputs) {
    const uint32_t end = depth - block < kBlockInputs ? depth : block + kBlockInputs;
    float sums[2] = {};
    for (uint32_t k = block; k < end; ++k) {
      sums[k % 2] = MultiplyAdd(inputs[k], WeightAt(tile, k, index), sums[k % 2]);
    }
    total = Add(total, Add(sums[0], sums[1]));
  }
  return total;
}

void Multiply(const ProductArgs& args) {
  for (uint32_t i = 0; i < args.num_tiles * kTileOutputs; ++i) {
    const uint32_t output = args.first_output + i;
    if (output >= args.end_output) break;
    const auto* tile =
        static_cast<const uint16_t*>(args.tiles) + size_t{i / kTileOutputs} * args.depth * kTileOutputs;
    const uint32_t in_tile = i % kTileOutputs;
    const uint32_t index = in_tile < kLanes ? 2 * in_tile : 2 * (in_tile - kLanes) + 1;
    for (uint32_t row = 0; row < args.num_rows; ++row) {
      const float* const inputs = static_cast<const float*>(args.prepared) + size_t{row} * args.depth;
      args.outputs[row][output] = DotProduct(inputs, tile, index, args.depth);
    }
  }
}

}  // namespace

const KernelTable& PortableBf16Kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = PortableKernels();
    table.name = "portable-bf16";
    ProductKernel& product = table.products[static_cast<int>(WeightFormat::kBf16)];
    product.input_bits = 8;
    product.prepared_bytes = PreparedBytes;
    product.prepare = Prepare;
    product.multiply = Multiply;
    return table;
  }();
  return kTable;
}

}  // namespace tandem

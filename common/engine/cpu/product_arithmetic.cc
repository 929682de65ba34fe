#include "common/engine/cpu/product_arithmetic.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// More rows than one block of any kernel, a depth that is not a multiple of what kernels process at a time,
// and outputs that end within a tile.
constexpr uint32_t kRows = 19;
constexpr uint32_t kDepth = 77;
constexpr uint32_t kTiles = 3;
constexpr uint32_t kOutputs = kTiles * kTileOutputs - 5;

// A linear congruential generator (Knuth's MMIX constants), by its upper bits.
class Numbers {
 public:
  uint32_t Bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  // A number of either sign, with one of `num_exponents` exponents from 2^lowest on.
  float Next(int lowest, uint32_t num_exponents) {
    const float mantissa = 1.0f + static_cast<float>(Bits() >> 9) * 0x1p-23f;
    const int exponent = lowest + static_cast<int>((Bits() >> 8) % num_exponents);
    return std::ldexp(Bits() >> 31 != 0 ? -mantissa : mantissa, exponent);
  }

 private:
  uint64_t state_ = 2026;
};

// Cases in which products, or sums of them, leave the normal range or just stay in it.
float NextInput(uint32_t row, Numbers& numbers) {
  if (row % 4 == 1) return numbers.Next(-66, 6);
  if (row % 4 == 2) return numbers.Next(-130, 8);
  return numbers.Next(-6, 12);
}

float NextWeight(uint32_t output, Numbers& numbers) {
  const float weight = output % 4 == 1   ? numbers.Next(-65, 6)
                       : output % 4 == 2 ? numbers.Next(-128, 6)
                                         : numbers.Next(-6, 12);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(weight) & 0xffff0000u);
}

struct Problem {
  std::vector<float> inputs;   // [kRows, kDepth]
  std::vector<float> weights;  // [kTiles * kTileOutputs, kDepth]
};

Problem MakeProblem() {
  Problem problem;
  Numbers numbers;
  for (uint32_t i = 0; i < kRows * kDepth; ++i) problem.inputs.push_back(NextInput(i / kDepth, numbers));
  for (uint32_t i = 0; i < kTiles * kTileOutputs * kDepth; ++i) {
    problem.weights.push_back(NextWeight(i / kDepth, numbers));
  }
  return problem;
}

// `num_bytes` bytes, in whole cache lines as some kernels need.
struct Lines {
  explicit Lines(uint64_t num_bytes) : lines(static_cast<size_t>(num_bytes / sizeof(Line) + 1)) {}
  char* data() { return lines.front().bytes; }

  struct alignas(64) Line {
    char bytes[64] = {};
  };
  std::vector<Line> lines;
};

// [kRows, kOutputs]
std::vector<float> Multiply(const KernelTable& kernels, const Problem& problem) {
  const ProductKernel& kernel = kernels.products[static_cast<size_t>(WeightFormat::kBf16)];
  const uint64_t tile_bytes = kernel.layout.tile_bytes(kDepth);
  Lines tiles(kTiles * tile_bytes);
  for (uint32_t n = 0; n < kTiles * kTileOutputs; ++n) {
    kernel.layout.pack(&problem.weights[size_t{n} * kDepth], kDepth, n % kTileOutputs,
                       tiles.data() + n / kTileOutputs * tile_bytes);
  }
  Lines prepared(kernel.prepare == nullptr ? 0 : kernel.prepared_bytes(kRows, kDepth));
  if (kernel.prepare != nullptr) {
    kernel.prepare({.inputs = problem.inputs.data(),
                    .input_stride = kDepth,
                    .begin_row = 0,
                    .end_row = kRows,
                    .begin_column = 0,
                    .end_column = kDepth,
                    .depth = kDepth,
                    .prepared = prepared.data()});
  }
  std::vector<float> outputs(kRows * kOutputs);
  float* rows[kRows];
  for (uint32_t row = 0; row < kRows; ++row) rows[row] = &outputs[row * kOutputs];
  ProductArgs args = {.tiles = tiles.data(),
                      .num_tiles = kTiles,
                      .depth = kDepth,
                      .inputs = problem.inputs.data(),
                      .input_stride = kDepth,
                      .prepared = prepared.data(),
                      .num_rows = kRows,
                      .outputs = rows,
                      .first_output = 0,
                      .end_output = kOutputs};
  kernel.multiply(args);
  return outputs;
}

}  // namespace

bool MultipliesBf16Pairs(const KernelTable& kernels) {
  static const Problem kProblem = MakeProblem();
  static const std::vector<float> kExpected = Multiply(PortableBf16Kernels(), kProblem);
  const std::vector<float> outputs = Multiply(kernels, kProblem);
  return std::memcmp(outputs.data(), kExpected.data(), kExpected.size() * sizeof(float)) == 0;
}

std::string ArithmeticName(const KernelTable& kernels, KvType kv_type) {
  std::string name = kernels.name;
  const bool may_be_pairs = name == "amx" || name == "avx512-bf16";
  if (may_be_pairs && MultipliesBf16Pairs(kernels)) name = "bf16-pairs";
  if (kv_type == KvType::kAuto || kv_type == KvType::kF32) return name;
  return absl::StrCat(name, ", keys and values in ", KvTypeName(kv_type));
}

}  // namespace tandem

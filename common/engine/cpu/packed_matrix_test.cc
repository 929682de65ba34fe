#include "common/engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/tensor_convert.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// A [rows, depth] tensor whose element (row, k) is row * 4 + k % 4 + 1, at an odd address as files have them.
class TestTensor {
 public:
  TestTensor(TensorView::DType dtype, int64_t first_row, int64_t rows, int64_t depth) {
    bytes_.push_back('x');
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      for (int64_t k = 0; k < depth; ++k) Append(dtype, static_cast<float>(row * 4 + k % 4 + 1));
    }
    view_.dtype = dtype;
    view_.shape = {rows, depth};
    view_.data = bytes_.data() + 1;
  }
  TestTensor(const TestTensor&) = delete;
  TestTensor& operator=(const TestTensor&) = delete;

  const TensorView& view() const { return view_; }

 private:
  void Append(TensorView::DType dtype, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (dtype == TensorView::DType::kF32) {
      bytes_.append(reinterpret_cast<const char*>(&bits), 4);
      return;
    }
    uint32_t half = bits >> 16;
    if (dtype == TensorView::DType::kF16) half = (((bits >> 23) - 112) << 10) | ((bits >> 13) & 0x3ff);
    bytes_.append(reinterpret_cast<const char*>(&half), 2);
  }

  std::string bytes_;
  TensorView view_;
};

float Element(uint32_t row, uint32_t k) {
  return static_cast<float>(row * 4 + k % 4 + 1);
}

TEST(PackedMatrix, KeepsEveryElement) {
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const KernelTable& kernels = **SelectKernels(instruction_set);
    SCOPED_TRACE(kernels.name);
    for (TensorView::DType dtype :
         {TensorView::DType::kBF16, TensorView::DType::kF16, TensorView::DType::kF32}) {
      for (int num_threads : {1, 2}) {
        const auto team = ThreadTeam::Create(num_threads).value();
        const TestTensor first(dtype, 0, 33, 6);
        const TestTensor second(dtype, 33, 1, 6);
        const TestTensor third(dtype, 34, 26, 6);  // Up to 60: bfloat16 still holds 4 * 60 exactly.
        auto matrix = PackedMatrix::Pack({first.view(), second.view(), third.view()},
                                         PackedMatrix::FormatOf({first.view()}, /*rounds_inputs=*/false),
                                         kernels, team.get());
        ASSERT_TRUE(matrix.ok()) << matrix.status();
        EXPECT_EQ(matrix->num_outputs(), 60u);
        EXPECT_EQ(matrix->depth(), 6u);
        EXPECT_EQ(matrix->num_tiles(), 2u);
        std::vector<float> weights(6);
        for (uint32_t output = 0; output < 60; ++output) {
          matrix->CopyOutput(output, weights.data());
          for (uint32_t k = 0; k < 6; ++k) EXPECT_EQ(weights[k], Element(output, k)) << output << " " << k;
        }
      }
    }
  }
}

// Random bits that are numbers, of so many outputs, at an odd address; bfloat16 holds them as float32 too.
std::string RandomNumbers(PlainOutputs::Kind kind, bool fit_bf16, uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes = "x";
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t bits = random();
    if (kind == PlainOutputs::Kind::kF32) {
      if ((bits & 0x7f800000) == 0x7f800000) bits ^= 0x00800000;
      if (fit_bf16) bits &= 0xffff0000;
      bytes.append(reinterpret_cast<const char*>(&bits), 4);
      continue;
    }
    const uint32_t exponent = kind == PlainOutputs::Kind::kF16 ? 0x7c00 : 0x7f80;
    if ((bits & exponent) == exponent) bits ^= exponent / 2 + 1;
    bytes.append(reinterpret_cast<const char*>(&bits), 2);
  }
  return bytes;
}

// Packing a tile at once writes what packing its outputs one by one does.
TEST(PackedMatrix, WholeTilesAreThoseOfTheirOutputs) {
  using Kind = PlainOutputs::Kind;
  constexpr uint32_t kDepth = 96;
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const KernelTable& kernels = **SelectKernels(instruction_set);
    for (const auto& [format, kind, dtype] :
         {std::tuple(WeightFormat::kF32, Kind::kF32, TensorView::DType::kF32),
          {WeightFormat::kF32, Kind::kF16, TensorView::DType::kF16},
          {WeightFormat::kF32, Kind::kBF16, TensorView::DType::kBF16},
          {WeightFormat::kBf16, Kind::kBF16, TensorView::DType::kBF16},
          {WeightFormat::kBf16, Kind::kF32, TensorView::DType::kF32}}) {
      SCOPED_TRACE(
          absl::StrCat(kernels.name, ", format ", static_cast<int>(format), " of ", static_cast<int>(kind)));
      const std::string bytes = RandomNumbers(kind, format == WeightFormat::kBf16, kTileOutputs * kDepth, 3);
      const TensorView view = {.dtype = dtype, .shape = {kTileOutputs, kDepth}, .data = bytes.data() + 1};
      const WeightLayout& layout = kernels.products[static_cast<size_t>(format)].layout;
      ASSERT_NE(layout.pack_tile, nullptr);
      std::string each(layout.tile_bytes(kDepth), '\0'), whole = each;
      PlainOutputs outputs = {.kind = kind};
      std::vector<float> numbers(kDepth);
      for (uint32_t i = 0; i < kTileOutputs; ++i) {
        ConvertRowsToFloat(view, i, 1, absl::MakeSpan(numbers));
        layout.pack(numbers.data(), kDepth, i, each.data());
        outputs.outputs[i] = bytes.data() + 1 + view.offset_of(int64_t{i} * kDepth);
      }
      layout.pack_tile(outputs, 0, 32, whole.data());
      layout.pack_tile(outputs, 32, kDepth, whole.data());
      EXPECT_TRUE(each == whole);
    }
  }
}

// Matrices of several tiles, the last one not full, and depths that are packed in parts.
TEST(PackedMatrix, PacksRowsWhereverTheyLie) {
  const auto team = ThreadTeam::Create(2).value();
  constexpr int64_t kOutputs = 72, kDepth = 1056;
  const std::string bytes = RandomNumbers(PlainOutputs::Kind::kBF16, true, kOutputs * kDepth, 4);
  const TensorView all = {
      .dtype = TensorView::DType::kBF16, .shape = {kOutputs, kDepth}, .data = bytes.data() + 1};
  TensorView paired = all;
  paired.strides = {.group_rows = 1, .group_stride = kDepth, .row_stride = kDepth, .paired_rows = 24};
  TensorView square = all;
  square.shape = {64, 64};
  const std::string floats = RandomNumbers(PlainOutputs::Kind::kF32, true, 40 * kDepth, 5);
  const TensorView others = {
      .dtype = TensorView::DType::kF32, .shape = {40, kDepth}, .data = floats.data() + 1};
  const std::vector<std::vector<TensorView>> cases = {
      {all}, {paired, all}, {RowsOfGroups(all, 24, 8, 8)}, {TransposeOf(square)}, {all, others}};
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const KernelTable& kernels = **SelectKernels(instruction_set);
    for (const std::vector<TensorView>& parts : cases) {
      SCOPED_TRACE(absl::StrCat(kernels.name, ", ", parts.size(), " of ", parts[0].shape[0], " outputs"));
      const auto matrix = PackedMatrix::Pack(parts, PackedMatrix::FormatOf(parts, /*rounds_inputs=*/false),
                                             kernels, team.get());
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      uint32_t output = 0;
      for (const TensorView& part : parts) {
        std::vector<float> expected(matrix->depth()), found(matrix->depth());
        for (int64_t row = 0; row < part.shape[0]; ++row, ++output) {
          ConvertRowsToFloat(part, row, 1, absl::MakeSpan(expected));
          matrix->CopyOutput(output, found.data());
          EXPECT_TRUE(expected == found) << output;
        }
      }
      EXPECT_EQ(output, matrix->num_outputs());
    }
  }
}

TEST(PackedMatrix, RoundsToTheIntegersAskedFor) {
  const auto team = ThreadTeam::Create(2).value();
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const KernelTable& kernels = **SelectKernels(instruction_set);
    SCOPED_TRACE(kernels.name);
    for (TensorView::DType dtype :
         {TensorView::DType::kBF16, TensorView::DType::kF16, TensorView::DType::kF32}) {
      const TestTensor tensor(dtype, 0, 60, 70);
      for (const auto& [format, bits] :
           {std::pair(WeightFormat::kInt8, 8), std::pair(WeightFormat::kInt4, 4),
            std::pair(WeightFormat::kW8A8, 8), std::pair(WeightFormat::kW4A8, 4)}) {
        auto matrix = PackedMatrix::Pack({tensor.view()}, format, kernels, team.get());
        ASSERT_TRUE(matrix.ok()) << matrix.status();
        // Two tiles of two groups of 64 inputs, and scales of 16 bits.
        EXPECT_EQ(matrix->num_bytes(), size_t{2} * 2 * 32 * (64 * static_cast<size_t>(bits) / 8 + 2));
        std::vector<float> weights(70);
        for (uint32_t output = 0; output < 60; ++output) {
          matrix->CopyOutput(output, weights.data());
          const float greatest = Element(output, 3);
          for (uint32_t k = 0; k < 70; ++k) {
            const float bound = greatest * (bits == 8 ? 0.51f / 127 : 0.75f / 7);
            EXPECT_NEAR(weights[k], Element(output, k), bound) << output << " " << k;
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, MultipliesTheTilesAskedFor) {
  const auto team = ThreadTeam::Create(1).value();
  const TestTensor tensor(TensorView::DType::kBF16, 0, 60, 5);
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const KernelTable& kernels = **SelectKernels(instruction_set);
    SCOPED_TRACE(kernels.name);
    auto matrix = PackedMatrix::Pack({tensor.view()}, WeightFormat::kBf16, kernels, team.get());
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    auto inputs = ProductInputs::Allocate(kernels, 2, 5);
    ASSERT_TRUE(inputs.ok()) << inputs.status();
    const std::vector<float> values = {1, 2, 3, 4, 5, -1, 0, 0, 0, 1};
    for (uint32_t row = 0; row < 2; ++row) {
      std::copy_n(values.begin() + row * 5, 5, inputs->floats().row(row));
    }
    inputs->Prepare(matrix->kernel(), {0, 2}, {0, 5});
    std::vector<float> outputs(2 * 60, -7);
    float* const rows[] = {outputs.data(), outputs.data() + 60};
    const auto expected = [&](uint32_t row, uint32_t output) {
      float sum = 0;
      for (uint32_t k = 0; k < 5; ++k) sum += values[row * 5 + k] * Element(output, k);
      return sum;
    };
    matrix->Multiply({1, 1}, *inputs, 2, rows);
    EXPECT_EQ(outputs, std::vector<float>(2 * 60, -7));
    matrix->Multiply({1, 2}, *inputs, 2, rows);
    for (uint32_t row = 0; row < 2; ++row) {
      for (uint32_t output = 0; output < 60; ++output) {
        EXPECT_EQ(rows[row][output], output < 32 ? -7 : expected(row, output));
      }
    }
    matrix->Multiply({0, 2}, *inputs, 2, rows);
    for (uint32_t output = 0; output < 60; ++output) EXPECT_EQ(rows[1][output], expected(1, output));
  }
}

}  // namespace
}  // namespace tandem

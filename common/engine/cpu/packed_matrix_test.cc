#include "common/engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

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
                                         PackedMatrix::FormatOf({first.view()}), kernels, team.get());
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

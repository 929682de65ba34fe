// Weights on their way to an emulated GPU.

#include "common/engine/cuda/weight_uploader.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "common/engine/cuda/testing/host_ops.h"
#include "common/model/tensor_convert.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// What the engine does not wait for happens when it is waited for.
std::unique_ptr<WeightUploader> UploaderTo(HostOps* ops, WeightType type) {
  auto uploader = WeightUploader::Create(type, /*norm_offset=*/0, ops, /*progress=*/nullptr);
  EXPECT_TRUE(uploader.ok()) << uploader.status();
  return *std::move(uploader);
}

// Experts in MXFP4, of which gates and ups alternate, as bfloat16 that holds their numbers.
TEST(WeightUploaderTest, Mxfp4BecomesBfloat16) {
  constexpr int64_t kRows = 6, kDepth = 64;
  std::vector<uint8_t> blocks(2 * kRows * kDepth / 2), scales(2 * kRows * kDepth / 32);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(i * 37 + i / 5);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(120 + i % 9);
  const TensorView all = {.dtype = TensorView::DType::kMxFp4,
                          .shape = {2, kRows, kDepth},
                          .data = blocks.data(),
                          .scales = scales.data()};
  std::vector<TensorView> gates, ups;
  for (int64_t expert = 0; expert < 2; ++expert) {
    const TensorView matrix = MatrixOf(all, expert);
    gates.push_back(RowsOfGroups(matrix, 2, 0, 1));
    ups.push_back(RowsOfGroups(matrix, 2, 1, 1));
  }
  std::vector<std::vector<RowPart>> matrices;
  for (size_t i = 0; i < 2; ++i) matrices.push_back({{gates[i], {0, 3}}, {ups[i], {0, 3}}});
  HostOps ops({});
  const auto stack = UploaderTo(&ops, WeightType::kAsInFile)->Stack(DeviceFormat::kBf16, matrices, {0, 64});
  ASSERT_TRUE(stack.ok()) << stack.status();
  ASSERT_TRUE(ops.Synchronize().ok());
  EXPECT_EQ(stack->outputs, 6u);
  ASSERT_EQ(stack->data.size, 2u * 6 * 64);
  std::vector<float> numbers(2 * kRows * kDepth);
  ConvertToFloat(all, absl::MakeSpan(numbers));
  for (uint64_t i = 0; i < stack->data.size; ++i) {
    const uint64_t expert = i / (6 * 64), row = i / 64 % 6;
    // Gates first: row r of theirs is row 2 r of the file.
    const uint64_t file_row = row < 3 ? 2 * row : 2 * (row - 3) + 1;
    ASSERT_EQ(ToFloat(stack->data[i]), numbers[(expert * 6 + file_row) * 64 + i % 64]) << i;
  }
}

// Each as it is by itself, in whole tiles behind the one before.
TEST(WeightUploaderTest, StacksAreTheirMatricesBehindOneAnother) {
  constexpr uint32_t kOutputs = 19, kDepth = 100;
  std::vector<std::vector<float>> numbers(3, std::vector<float>(kOutputs * kDepth));
  std::vector<TensorView> tensors;
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (size_t j = 0; j < numbers[i].size(); ++j) {
      numbers[i][j] = std::sin(static_cast<float>(i * 1000 + j * j));
    }
    tensors.push_back(
        {.dtype = TensorView::DType::kF32, .shape = {kOutputs, kDepth}, .data = numbers[i].data()});
  }
  const auto same = [](const auto& part, const auto& whole, uint64_t index) {
    return part.size * 3 == whole.size &&
           std::memcmp(part.data, whole.data + index * part.size, part.size * sizeof(*part.data)) == 0;
  };
  for (const WeightType type :
       {WeightType::kInt8, WeightType::kInt4, WeightType::kFp8, WeightType::kFp8Tensor}) {
    HostOps ops({});
    const auto uploader = UploaderTo(&ops, type);
    const ShardRange columns = {64, 100};
    std::vector<std::vector<RowPart>> matrices;
    for (const TensorView& tensor : tensors) matrices.push_back({{tensor, {0, kOutputs}}});
    const auto stack = uploader->Stack(FormatFor(type), matrices, columns);
    ASSERT_TRUE(stack.ok()) << stack.status();
    EXPECT_EQ(stack->outputs, kOutputs);
    EXPECT_EQ(stack->depth, 36u);
    for (uint64_t i = 0; i < 3; ++i) {
      const auto alone = uploader->Columns(FormatFor(type), tensors[i], columns);
      ASSERT_TRUE(alone.ok()) << alone.status();
      EXPECT_TRUE(same(alone->packed.words, stack->packed.words, i));
      EXPECT_TRUE(same(alone->packed.scales, stack->packed.scales, i));
      EXPECT_TRUE(same(alone->packed.output_scales, stack->packed.output_scales, i));
    }
  }
}

TEST(WeightUploaderTest, NothingIsRoundedSilently) {
  const std::vector<float> numbers(8);
  const TensorView tensor = {.dtype = TensorView::DType::kF32, .shape = {2, 4}, .data = numbers.data()};
  HostOps ops({});
  const std::vector<std::vector<RowPart>> matrices = {{{tensor, {0, 2}}}};
  const absl::Status status =
      UploaderTo(&ops, WeightType::kAsInFile)->Stack(DeviceFormat::kBf16, matrices, {0, 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace tandem

#include "common/model/tensor_convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::ElementsAre;

TEST(TensorConvertTest, EveryHalfIsExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = (bits >> 10) & 0x1f;
    const int mantissa = bits & 0x3ff;
    const float found = HalfToFloat(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::signbit(found), (bits & 0x8000) != 0) << bits;
    if (exponent == 0x1f) {
      EXPECT_EQ(std::isinf(found), mantissa == 0) << bits;
      EXPECT_EQ(std::isnan(found), mantissa != 0) << bits;
      continue;
    }
    // The definition: subnormals have no implicit one, and the smallest normal exponent.
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    ASSERT_EQ(std::abs(found), magnitude) << bits;
  }
}

// A matrix [3, 2] of the given elements at an odd address.
template <typename T>
struct OddMatrix {
  std::vector<char> bytes;
  TensorView view;

  OddMatrix(TensorView::DType dtype, const std::vector<T>& elements)
      : bytes(1 + elements.size() * sizeof(T)) {
    std::memcpy(bytes.data() + 1, elements.data(), elements.size() * sizeof(T));
    view = {dtype, {3, 2}, bytes.data() + 1};
  }
};

TEST(TensorConvertTest, ConvertsRowRangesOfUnalignedTensors) {
  const OddMatrix<float> f32(TensorView::DType::kF32, {1, 2, 3, 4, 5, 6});
  const OddMatrix<uint16_t> bf16(TensorView::DType::kBF16, {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0});
  const OddMatrix<uint16_t> f16(TensorView::DType::kF16, {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600});
  for (const TensorView& view : {f32.view, bf16.view, f16.view}) {
    EXPECT_EQ(RowElements(view), 2);
    std::vector<float> rows(4);
    ConvertRowsToFloat(view, 1, 2, absl::MakeSpan(rows));
    EXPECT_THAT(rows, ElementsAre(3, 4, 5, 6));
    std::vector<float> all(6);
    ConvertToFloat(view, absl::MakeSpan(all));
    EXPECT_THAT(all, ElementsAre(1, 2, 3, 4, 5, 6));
    ConvertRowsToFloat(view, 3, 0, {});
  }
}

TEST(TensorConvertTest, BFloat16KeepsSpecialValues) {
  const uint16_t bits[] = {0x7f80, 0xff80, 0x7fc1, 0x8000, 0x0001};
  const TensorView vector = {TensorView::DType::kBF16, {5}, bits};
  EXPECT_EQ(RowElements(vector), 1);
  std::vector<float> out(5);
  ConvertToFloat(vector, absl::MakeSpan(out));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), uint32_t{bits[i]} << 16);
}

TEST(TensorConvertTest, AVectorsRowsAreItsElementsAndAScalarHasOne) {
  const float values[] = {7, 8, 9};
  float out[2];
  ConvertRowsToFloat({TensorView::DType::kF32, {3}, values}, 1, 2, out);
  EXPECT_THAT(out, ElementsAre(8, 9));
  float scalar = 0;
  ConvertToFloat({TensorView::DType::kF32, {}, values}, absl::MakeSpan(&scalar, 1));
  EXPECT_EQ(scalar, 7);
}

TEST(TensorConvertTest, MxFp4IsWhatTheReferenceMakesOfIt) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/mxfp4_matrices.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json golden = nlohmann::json::parse(*text);
  std::vector<uint8_t> blocks, scales;
  std::vector<float> numbers;
  for (const nlohmann::json& expert : golden.at("blocks")) {
    for (const nlohmann::json& output : expert) {
      for (const nlohmann::json& group : output) {
        for (const nlohmann::json& byte : group) blocks.push_back(byte.get<uint8_t>());
      }
    }
  }
  for (const nlohmann::json& expert : golden.at("scales")) {
    for (const nlohmann::json& output : expert) {
      for (const nlohmann::json& byte : output) scales.push_back(byte.get<uint8_t>());
    }
  }
  for (const nlohmann::json& expert : golden.at("numbers")) {
    for (const nlohmann::json& output : expert) {
      for (const nlohmann::json& number : output) numbers.push_back(number.get<float>());
    }
  }
  const TensorView view = {.dtype = TensorView::DType::kMxFp4,
                           .shape = {2, 3, 64},
                           .data = blocks.data(),
                           .scales = scales.data()};
  ASSERT_EQ(numbers.size(), static_cast<size_t>(view.num_elements()));
  EXPECT_EQ(view.num_bytes(), blocks.size() + scales.size());
  std::vector<float> out(numbers.size());
  ConvertToFloat(view, absl::MakeSpan(out));
  EXPECT_EQ(out, numbers);
  // A matrix, of which every third row, and a row of that.
  const TensorView part = RowsOfGroups(MatrixOf(view, 1), 3, 2, 1);
  std::vector<float> row(64);
  ConvertRowsToFloat(part, 0, 1, absl::MakeSpan(row));
  EXPECT_EQ(row, std::vector<float>(numbers.end() - 64, numbers.end()));
  scales.back() = 255;
  ConvertRowsToFloat(part, 0, 1, absl::MakeSpan(row));
  EXPECT_TRUE(std::isnan(row.back()));
  EXPECT_FALSE(std::isnan(row.front()));
}

TEST(TensorConvertTest, EveryScaleOfMxFp4IsExact) {
  // A row of 32 numbers for each scale: all sixteen, twice.
  std::string numbers, scales;
  for (int scale = 0; scale < 256; ++scale) {
    scales.push_back(static_cast<char>(scale));
    for (int i = 0; i < 16; ++i) numbers.push_back(static_cast<char>((i % 8 * 2) | (i % 8 * 2 + 1) << 4));
  }
  const TensorView view = {.dtype = TensorView::DType::kMxFp4,
                           .shape = {256, 32},
                           .data = numbers.data(),
                           .scales = scales.data()};
  std::vector<float> found(256 * 32);
  ConvertToFloat(view, absl::MakeSpan(found));
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int scale = 0; scale < 256; ++scale) {
    for (int i = 0; i < 32; ++i) {
      const float number = found[static_cast<size_t>(scale * 32 + i)];
      if (scale == 255) {
        EXPECT_TRUE(std::isnan(number));
      } else {
        EXPECT_EQ(std::abs(number), std::ldexp(kMagnitudes[i % 8], scale - 127)) << scale << " " << i;
        EXPECT_EQ(std::signbit(number), i % 16 >= 8) << scale << " " << i;
      }
    }
  }
}

TEST(TensorConvertTest, PairedRowsAreReadInTheirOrder) {
  // Two heads of four rows and two columns; a file has rows 0, 2, 1, 3 of each.
  const std::vector<float> file = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  TensorView view = {.dtype = TensorView::DType::kF32, .shape = {8, 2}, .data = file.data()};
  view.strides = {.group_rows = 1, .group_stride = 2, .row_stride = 2, .paired_rows = 4};
  std::vector<float> found(16);
  ConvertToFloat(view, absl::MakeSpan(found));
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], static_cast<float>(i));
  std::vector<float> second(8);
  ConvertToFloat(RowsOf(view, 4, 4), absl::MakeSpan(second));
  for (size_t i = 0; i < second.size(); ++i) EXPECT_EQ(second[i], static_cast<float>(8 + i));
}

}  // namespace
}  // namespace tandem

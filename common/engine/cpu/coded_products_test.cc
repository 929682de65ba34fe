// Products with the integers of quantised files are those of float32 with the numbers that they stand for,
// bit for bit, on every instruction set and with any number of rows.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/engine/cpu/packed_matrix.h"
#include "common/engine/cpu/testing/kernels_test_data.h"
#include "common/engine/cpu/testing/random_codes.h"
#include "common/model/quantized_grid.h"
#include "common/model/tensor_convert.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

struct NamedCoding {
  std::string name;
  Coding coding;
  WeightFormat format;
};

std::vector<NamedCoding> AllCodings() {
  const Coding coded = {.is_coded = true};
  NamedCoding four{"four_bits", coded, WeightFormat::kCoded4};
  four.coding.has_four_bits = true;
  NamedCoding four_minimum = {"four_bits_minimum", four.coding, WeightFormat::kCoded4Minimum};
  four_minimum.coding.has_minimums = true;
  NamedCoding minimum = {"minimum", coded, WeightFormat::kCoded8Minimum};
  minimum.coding.has_minimums = true;
  NamedCoding fine = {"fine", coded, WeightFormat::kCoded8Fine};
  fine.coding.is_fine = true;
  NamedCoding fine_minimum = {"fine_minimum", fine.coding, WeightFormat::kCoded8FineMinimum};
  fine_minimum.coding.has_minimums = true;
  NamedCoding floats = {"floats", coded, WeightFormat::kCodedFloat8};
  floats.coding.is_float = true;
  return {floats,  four, four_minimum, {"eight_bits", coded, WeightFormat::kCoded8},
          minimum, fine, fine_minimum};
}

class CodedProductsTest : public testing::TestWithParam<NamedCoding> {};

TEST_P(CodedProductsTest, AreThoseOfTheNumbers) {
  const auto team = ThreadTeam::Create(1).value();
  for (const auto& [outputs, depth] :
       {std::pair(1, 32), std::pair(150, 288), std::pair(33, 40), std::pair(64, 16)}) {
    const RandomCodes codes(GetParam().coding, outputs, depth, 1);
    std::vector<float> numbers(static_cast<size_t>(outputs * depth));
    ConvertToFloat(codes.view(), absl::MakeSpan(numbers));
    const TensorView floats = {
        .dtype = TensorView::DType::kF32, .shape = {outputs, depth}, .data = numbers.data()};
    for (InstructionSet instruction_set : SupportedInstructionSets()) {
      const KernelTable& kernels = **SelectKernels(instruction_set);
      SCOPED_TRACE(absl::StrCat(kernels.name, ", ", outputs, " outputs of ", depth));
      const WeightFormat format = PackedMatrix::FormatOf({codes.view()}, /*rounds_inputs=*/false);
      EXPECT_EQ(format, GetParam().format);
      const auto coded = PackedMatrix::Pack({codes.view()}, format, kernels, team.get());
      const auto plain = PackedMatrix::Pack({floats}, WeightFormat::kF32, kernels, team.get());
      ASSERT_TRUE(coded.ok() && plain.ok());
      std::vector<float> found(static_cast<size_t>(depth));
      for (int output = 0; output < outputs; ++output) {
        coded->CopyOutput(static_cast<uint32_t>(output), found.data());
        EXPECT_TRUE(std::equal(found.begin(), found.end(), numbers.begin() + output * depth)) << output;
      }
      for (uint32_t num_rows : {1u, 2u, 5u, 13u, 40u}) {
        EXPECT_TRUE(SameBits(Products(*coded, kernels, num_rows), Products(*plain, kernels, num_rows)))
            << num_rows;
      }
    }
  }
}

TEST(CodedFormatTest, FloatsThatAreNoNumbersStaySo) {
  const auto team = ThreadTeam::Create(1).value();
  const RandomCodes codes({.is_coded = true, .is_float = true}, 1, 32, 1, /*only=*/0x7f);
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const KernelTable& kernels = **SelectKernels(instruction_set);
    const auto coded = PackedMatrix::Pack({codes.view()}, WeightFormat::kCodedFloat8, kernels, team.get());
    ASSERT_TRUE(coded.ok()) << coded.status();
    EXPECT_TRUE(std::isnan(Products(*coded, kernels, 1)[0])) << kernels.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodedProductsTest, testing::ValuesIn(AllCodings()),
                         [](const auto& instance) { return instance.param.name; });

// As queries and keys of 4 bits and values of 6 in one file.
TEST(CodedFormatTest, StackedMatricesHaveOneThatHoldsAll) {
  const auto team = ThreadTeam::Create(2).value();
  const KernelTable& kernels = PortableKernels();
  std::vector<NamedCoding> codings = AllCodings();
  const NamedCoding small = codings.front();
  codings.erase(codings.begin());
  for (const NamedCoding& first : codings) {
    for (const NamedCoding& second : codings) {
      const RandomCodes a(first.coding, 40, 64, 2), b(second.coding, 24, 64, 3);
      const WeightFormat format = PackedMatrix::FormatOf({a.view(), b.view()}, /*rounds_inputs=*/false);
      EXPECT_NE(format, WeightFormat::kF32);
      const auto both = PackedMatrix::Pack({a.view(), b.view()}, format, kernels, team.get());
      ASSERT_TRUE(both.ok()) << both.status();
      std::vector<float> expected(64 * 64), found(64);
      ConvertToFloat(a.view(), absl::MakeSpan(expected).first(40 * 64));
      ConvertToFloat(b.view(), absl::MakeSpan(expected).subspan(40 * 64));
      for (uint32_t output = 0; output < 64; ++output) {
        both->CopyOutput(output, found.data());
        EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + output * 64)) << output;
      }
    }
  }
  const RandomCodes codes(codings[0].coding, 40, 64, 2), numbers_only({}, 24, 64, 3);
  EXPECT_EQ(PackedMatrix::FormatOf({codes.view(), numbers_only.view()}, /*rounds_inputs=*/false),
            WeightFormat::kF32);
  const RandomCodes small_floats(small.coding, 24, 64, 3);
  EXPECT_EQ(PackedMatrix::FormatOf({codes.view(), small_floats.view()}, /*rounds_inputs=*/false),
            WeightFormat::kF32);
  const std::vector<float> plain(size_t{24} * 64);
  const TensorView floats = {.dtype = TensorView::DType::kF32, .shape = {24, 64}, .data = plain.data()};
  EXPECT_EQ(PackedMatrix::FormatOf({codes.view(), floats}, /*rounds_inputs=*/false), WeightFormat::kF32);
}

// Of each three outputs the second, say.
TEST(CodedFormatTest, PacksOutputsThatLieApart) {
  const auto team = ThreadTeam::Create(1).value();
  const NamedCoding coding = AllCodings().front();
  const RandomCodes codes(coding.coding, 90, 64, 4);
  const TensorView part = RowsOfGroups(codes.view(), 3, 1, 1);
  const auto packed = PackedMatrix::Pack({part}, coding.format, PortableKernels(), team.get());
  ASSERT_TRUE(packed.ok()) << packed.status();
  std::vector<float> expected(30 * 64), found(64);
  ConvertToFloat(part, absl::MakeSpan(expected));
  for (uint32_t output = 0; output < 30; ++output) {
    packed->CopyOutput(output, found.data());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + output * 64)) << output;
  }
}

}  // namespace
}  // namespace tandem

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
#include "common/model/quantized_grid.h"
#include "common/model/tensor_convert.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// Random codes of a Coding.
class RandomCodes final : public QuantizedMatrix {
 public:
  // `only`: all values.
  RandomCodes(const Coding& coding, int64_t outputs, int64_t inputs, uint32_t seed,
              std::optional<int> only = std::nullopt)
      : QuantizedMatrix(outputs, inputs, "codes", {}), coding_(coding), rows_(outputs, inputs) {
    std::mt19937 bits(seed);
    std::uniform_real_distribution<float> scale(-0.02f, 0.02f);
    for (int64_t output = 0; output < outputs; ++output) {
      for (int64_t group = 0; group < rows_.num_groups; ++group) {
        const auto at = static_cast<size_t>(output * rows_.num_groups + group);
        const bool repeats = !coding.is_fine && group % 2 == 1;
        rows_.scales[at] = repeats ? rows_.scales[at - 1] : scale(bits);
        if (coding.has_minimums) rows_.minimums[at] = repeats ? rows_.minimums[at - 1] : scale(bits);
        if (coding.has_four_bits) {
          rows_.zeros[at] = repeats ? rows_.zeros[at - 1] : static_cast<int8_t>(bits() % 17);
        }
      }
      for (int64_t k = 0; k < inputs; ++k) {
        const auto group = static_cast<size_t>(output * rows_.num_groups + k / CodedRows::kGroup);
        const int value = coding.has_four_bits ? static_cast<int>(bits() % 16) - rows_.zeros[group]
                                               : static_cast<int>(bits() % 256) - 128;
        if (only.has_value()) {
          rows_.values[static_cast<size_t>(output * inputs + k)] = static_cast<int8_t>(*only);
          continue;
        }
        // Of floats all but those that are no numbers, which are equal to nothing.
        const bool is_number = !coding.is_float || (value & 0x7f) != 0x7f;
        rows_.values[static_cast<size_t>(output * inputs + k)] = static_cast<int8_t>(is_number ? value : 0);
      }
    }
  }

  void ReadOutputs(int64_t first, int64_t count, absl::Span<float> numbers) const override {
    for (size_t i = 0; i < static_cast<size_t>(count * num_inputs()); ++i) {
      const size_t at = static_cast<size_t>(first * num_inputs()) + i;
      const auto inputs = static_cast<size_t>(num_inputs());
      const size_t group =
          at / inputs * static_cast<size_t>(rows_.num_groups) + at % inputs / CodedRows::kGroup;
      const float value = coding_.is_float ? Float8ToFloat(static_cast<uint8_t>(rows_.values[at]))
                                           : static_cast<float>(rows_.values[at]);
      numbers[i] = value * rows_.scales[group] - rows_.minimums[group];
    }
  }
  Coding coding() const override { return coding_; }
  void ReadCodes(int64_t first, int64_t count, int64_t place, CodedRows* rows) const override {
    const auto copy = [&](const auto& from, auto* to) {
      const size_t width = from.size() / static_cast<size_t>(num_outputs());
      std::copy_n(from.begin() + static_cast<int64_t>(static_cast<size_t>(first) * width),
                  static_cast<size_t>(count) * width, to->begin() + place * static_cast<int64_t>(width));
    };
    copy(rows_.values, &rows->values);
    copy(rows_.zeros, &rows->zeros);
    copy(rows_.scales, &rows->scales);
    copy(rows_.minimums, &rows->minimums);
  }

  TensorView view() const {
    TensorView view = {.dtype = TensorView::DType::kQuantized, .shape = {num_outputs(), num_inputs()}};
    view.data = codes();
    view.quantized = this;
    return view;
  }

 private:
  const Coding coding_;
  CodedRows rows_;
};

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

// The outputs of `num_rows` rows, a matrix' products with inputs that are the same each time.
std::vector<float> Products(const PackedMatrix& matrix, const KernelTable& kernels, uint32_t num_rows) {
  auto inputs = ProductInputs::Allocate(kernels, num_rows, matrix.depth()).value();
  std::mt19937 bits(5);
  std::normal_distribution<float> number;
  std::vector<float> outputs(size_t{num_rows} * matrix.num_outputs(), -1.0f);
  std::vector<float*> rows;
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (uint32_t k = 0; k < matrix.depth(); ++k) inputs.floats().row(row)[k] = number(bits);
    rows.push_back(outputs.data() + size_t{row} * matrix.num_outputs());
  }
  matrix.Multiply(Share{0, matrix.num_tiles()}, inputs, num_rows, rows.data());
  return outputs;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
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
      const WeightFormat format = PackedMatrix::FormatOf({codes.view()});
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
      const WeightFormat format = PackedMatrix::FormatOf({a.view(), b.view()});
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
  EXPECT_EQ(PackedMatrix::FormatOf({codes.view(), numbers_only.view()}), WeightFormat::kF32);
  const RandomCodes small_floats(small.coding, 24, 64, 3);
  EXPECT_EQ(PackedMatrix::FormatOf({codes.view(), small_floats.view()}), WeightFormat::kF32);
  const std::vector<float> plain(size_t{24} * 64);
  const TensorView floats = {.dtype = TensorView::DType::kF32, .shape = {24, 64}, .data = plain.data()};
  EXPECT_EQ(PackedMatrix::FormatOf({codes.view(), floats}), WeightFormat::kF32);
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

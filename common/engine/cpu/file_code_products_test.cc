// Products with the codes of quantised files follow kernel_table.h to the bit, on every instruction set and
// with any number of rows.

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/file_code_tiles.h"
#include "common/engine/cpu/packed_matrix.h"
#include "common/engine/cpu/testing/random_codes.h"
#include "common/gguf/gguf_file.h"
#include "common/model/gguf_dequantize.h"
#include "common/model/tensor_convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using Scales = Coding::Scales;

std::vector<Coding> AllFileCodings() {
  std::vector<Coding> all;
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const bool is_unsigned : {false, true}) {
      if (is_unsigned && bits == 8) continue;
      for (const bool is_fine : {false, true}) {
        for (const bool has_minimums : {false, true}) {
          for (const Scales scales : {Scales::kFloat, Scales::kHalf, Scales::kBfloat16, Scales::kUnits}) {
            if (is_unsigned && bits == 7) continue;
            all.push_back({.is_coded = true,
                           .is_fine = is_fine,
                           .has_minimums = has_minimums,
                           .bits = bits,
                           .is_unsigned = is_unsigned,
                           .scales = scales});
          }
        }
      }
    }
  }
  return all;
}

std::string CodingName(const Coding& coding) {
  return absl::StrCat(coding.bits, coding.is_unsigned ? "_unsigned" : "", coding.is_fine ? "_fine" : "",
                      coding.has_minimums ? "_minimums" : "", "_", static_cast<int>(coding.scales));
}

// One output of a row, as kernel_table.h defines it.
float Expected(const RandomCodes& codes, int64_t output, const float* row) {
  const Coding coding = codes.coding();
  CodedRows rows(1, codes.num_inputs());
  codes.ReadCodes(output, 1, 0, &rows);
  const int parts = coding.is_fine ? 2 : 1;
  const int zero = coding.is_unsigned || coding.bits >= 7 ? 0 : 1 << (coding.bits - 1);
  float sum = 0;
  for (int64_t begin = 0; begin < codes.num_inputs(); begin += 32) {
    const int64_t end = std::min<int64_t>(begin + 32, codes.num_inputs());
    float greatest = 0;
    for (int64_t k = begin; k < end; ++k) greatest = std::max(greatest, std::fabs(row[k]));
    const float input_scale = greatest < 0x1p-100f ? 0.0f : greatest / 127.0f;
    const float inverse = greatest < 0x1p-100f ? 0.0f : 127.0f / greatest;
    for (int part = 0; part < parts; ++part) {
      const int64_t first = begin + part * 16;
      const int64_t last = parts == 1 ? end : std::min(first + 16, end);
      int32_t products = 0, inputs = 0;
      for (int64_t k = first; k < last; ++k) {
        const auto input = static_cast<int32_t>(std::nearbyint(row[k] * inverse));
        products += (rows.values[static_cast<size_t>(k)] + zero) * input;
        inputs += input;
      }
      if (first >= last) continue;
      const auto group = static_cast<size_t>(first / CodedRows::kGroup);
      const float scale = rows.scales[group];
      const float minimum =
          static_cast<float>(zero) * scale + (coding.has_minimums ? rows.minimums[group] : 0.0f);
      sum = std::fma(static_cast<float>(products), scale * input_scale, sum);
      sum = std::fma(-minimum, input_scale * static_cast<float>(inputs), sum);
    }
  }
  return sum;
}

class FileCodeProductsTest : public testing::TestWithParam<Coding> {};

TEST_P(FileCodeProductsTest, AreThoseOfTheDefinition) {
  const auto team = ThreadTeam::Create(1).value();
  for (const auto& [outputs, depth] :
       {std::pair(1, 32), std::pair(33, 40), std::pair(64, 16), std::pair(40, 576)}) {
    const RandomCodes codes(GetParam(), outputs, depth, 1);
    ASSERT_EQ(PackedMatrix::FormatOf({codes.view()}, /*rounds_inputs=*/true), WeightFormat::kFileCodes);
    std::vector<float> numbers(static_cast<size_t>(outputs * depth)), found(static_cast<size_t>(depth));
    ConvertToFloat(codes.view(), absl::MakeSpan(numbers));
    std::vector<float> expected;
    for (InstructionSet instruction_set : SupportedInstructionSets()) {
      const KernelTable& kernels = **SelectKernels(instruction_set);
      SCOPED_TRACE(absl::StrCat(kernels.name, ", ", outputs, " outputs of ", depth));
      const auto packed = PackedMatrix::Pack({codes.view()}, WeightFormat::kFileCodes, kernels, team.get());
      ASSERT_TRUE(packed.ok()) << packed.status();
      for (int output = 0; output < outputs; ++output) {
        packed->CopyOutput(static_cast<uint32_t>(output), found.data());
        EXPECT_TRUE(std::equal(found.begin(), found.end(), numbers.begin() + output * depth)) << output;
      }
      if (expected.empty()) {
        const std::vector<float> inputs = RandomInputs(40, static_cast<uint32_t>(depth));
        for (int row = 0; row < 40; ++row) {
          for (int output = 0; output < outputs; ++output) {
            expected.push_back(Expected(codes, output, inputs.data() + row * depth));
          }
        }
      }
      for (const uint32_t num_rows : {1u, 2u, 40u}) {
        const std::vector<float> products = Products(*packed, kernels, num_rows);
        EXPECT_TRUE(std::equal(products.begin(), products.end(), expected.begin())) << num_rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FileCodeProductsTest, testing::ValuesIn(AllFileCodings()),
                         [](const auto& instance) { return CodingName(instance.param); });

// Extreme codes and inputs, whose sums are the greatest.
TEST(FileCodesTest, HoldTheGreatestSums) {
  const auto team = ThreadTeam::Create(1).value();
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const bool is_fine : {false, true}) {
      for (const int value : {-(1 << (bits - 1)), (1 << (bits - 1)) - 1}) {
        const Coding coding = {.is_coded = true, .is_fine = is_fine, .bits = bits};
        const RandomCodes codes(coding, 32, 64, 3, value);
        for (InstructionSet instruction_set : SupportedInstructionSets()) {
          const KernelTable& kernels = **SelectKernels(instruction_set);
          const auto packed =
              PackedMatrix::Pack({codes.view()}, WeightFormat::kFileCodes, kernels, team.get());
          ASSERT_TRUE(packed.ok()) << packed.status();
          for (const float input : {-1.0f, 1.0f}) {
            const std::vector<float> row(64, input);
            const std::vector<float> products = ProductsOf(*packed, kernels, 1, row);
            for (int output = 0; output < 32; ++output) {
              ASSERT_EQ(products[static_cast<size_t>(output)], Expected(codes, output, row.data()))
                  << kernels.name << ", " << bits << " bits, " << value << ", " << input;
            }
          }
        }
      }
    }
  }
}

TEST(FileCodesTest, InputsThatAreNoNumbersStaySo) {
  const auto team = ThreadTeam::Create(1).value();
  const RandomCodes codes({.is_coded = true, .bits = 4}, 32, 64, 4);
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    const KernelTable& kernels = **SelectKernels(instruction_set);
    const auto packed = PackedMatrix::Pack({codes.view()}, WeightFormat::kFileCodes, kernels, team.get());
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      std::vector<float> row(64, 1.0f);
      row[40] = bad;
      for (const float product : ProductsOf(*packed, kernels, 1, row)) EXPECT_TRUE(std::isnan(product));
    }
    for (const float product : ProductsOf(*packed, kernels, 1, std::vector<float>(64)))
      EXPECT_EQ(product, 0.0f);
  }
}

// Blocks of random bytes: every code, and every scale, infinite ones too.
TEST(FileCodesTest, HoldTheNumbersOfEveryTypeOfGguf) {
  constexpr int64_t kInputs = 512;
  std::mt19937 bits(8);
  for (const GgufTypeInfo& info : GgufTypes()) {
    if (info.block_size == 1) continue;
    const auto row_bytes = static_cast<size_t>(kInputs / info.block_size * info.block_bytes);
    CodedRows rows(kTileOutputs, kInputs);
    std::vector<std::vector<float>> expected;
    for (int64_t output = 0; output < int64_t{kTileOutputs}; ++output) {
      std::string bytes(row_bytes, '\0');
      for (char& byte : bytes) byte = static_cast<char>(bits());
      ReadBlocks(info.type, bytes, output, &rows);
      DequantizeBlocks(info.type, bytes, absl::MakeSpan(expected.emplace_back(kInputs)));
    }
    const FileCodeFormat format = FileCodeFormatOf(CodingOf(info.type));
    std::vector<char> tile(FileCodeBytes(format, kInputs));
    PackFileCodes(format, rows, tile.data());
    std::vector<float> found(kInputs);
    for (uint32_t output = 0; output < kTileOutputs; ++output) {
      UnpackFileCodes(format, tile.data(), kInputs, output, found.data());
      for (size_t i = 0; i < found.size(); ++i) {
        const float wanted = expected[output][i];
        // An infinite scale times 0 is no number; stored with its unit it may be infinite.
        ASSERT_TRUE(std::isfinite(wanted) ? found[i] == wanted : !std::isfinite(found[i]))
            << info.name << ", output " << output << ", input " << i << ": " << found[i] << ", expected "
            << wanted;
      }
    }
  }
}

// As queries and keys of 4 bits and values of 6 in one file: no part takes another's form.
TEST(FileCodesTest, EachStackedMatrixKeepsItsCodes) {
  const auto team = ThreadTeam::Create(2).value();
  const Coding four = {
      .is_coded = true, .has_minimums = true, .bits = 4, .is_unsigned = true, .scales = Scales::kUnits};
  const Coding six = {.is_coded = true, .is_fine = true, .bits = 6, .scales = Scales::kUnits};
  const Coding half = {.is_coded = true, .bits = 5, .scales = Scales::kHalf};
  for (const auto& [first, second] : {std::pair(64, 32), std::pair(40, 24)}) {
    const RandomCodes a(four, first, 256, 5), b(six, second, 256, 6), c(half, 7, 256, 7);
    const std::vector<TensorView> parts = {a.view(), b.view(), c.view()};
    for (InstructionSet instruction_set : SupportedInstructionSets()) {
      const KernelTable& kernels = **SelectKernels(instruction_set);
      const auto all = PackedMatrix::Pack(parts, WeightFormat::kFileCodes, kernels, team.get());
      ASSERT_TRUE(all.ok()) << all.status();
      std::vector<float> numbers(256), found(256);
      uint32_t output = 0;
      for (const TensorView& part : parts) {
        for (int64_t i = 0; i < part.shape[0]; ++i, ++output) {
          ConvertRowsToFloat(part, i, 1, absl::MakeSpan(numbers));
          all->CopyOutput(output, found.data());
          EXPECT_EQ(found, numbers) << output;
        }
      }
      // The products of a part alone, where it keeps its form.
      const std::vector<float> together = Products(*all, kernels, 3);
      const auto alone = PackedMatrix::Pack({a.view()}, WeightFormat::kFileCodes, kernels, team.get());
      const std::vector<float> of_first = Products(*alone, kernels, 3);
      for (uint32_t row = 0; row < 3; ++row) {
        for (int i = 0; i < first; ++i) {
          const float product = together[row * all->num_outputs() + static_cast<uint32_t>(i)];
          const float expected = of_first[row * static_cast<uint32_t>(first) + static_cast<uint32_t>(i)];
          if (first % 32 == 0) {
            ASSERT_EQ(product, expected);
          } else {
            ASSERT_NEAR(product, expected, 1e-4f * (1 + std::fabs(expected)));
          }
        }
      }
    }
  }
}

// Of a file's own bits, as few as it says.
TEST(FileCodesTest, TakeAboutTheBitsOfTheFile) {
  const auto bits_of = [](const Coding& coding) {
    return static_cast<double>(FileCodeBytes(FileCodeFormatOf(coding), 4096)) * 8 / (4096 * kTileOutputs);
  };
  EXPECT_EQ(bits_of({.is_coded = true, .bits = 4, .scales = Scales::kHalf}), 4.5) << "Q4_0";
  EXPECT_EQ(bits_of({.is_coded = true, .bits = 8, .scales = Scales::kHalf}), 8.5) << "Q8_0";
  EXPECT_EQ(
      bits_of(
          {.is_coded = true, .has_minimums = true, .bits = 4, .is_unsigned = true, .scales = Scales::kUnits}),
      4.75)
      << "Q4_K";
  EXPECT_EQ(bits_of({.is_coded = true, .is_fine = true, .bits = 6, .scales = Scales::kUnits}), 6.625)
      << "Q6_K";
}

}  // namespace
}  // namespace tandem

// Kernels of blocks beyond Llama's: each against its formula in double precision, and the same bits with
// every instruction set, whatever the length.

#include <cmath>
#include <functional>
#include <vector>

#include "common/engine/cpu/attention_args.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/testing/kernels_test_data.h"
#include "common/model/config/architecture.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr size_t kLengths[] = {1, 7, 16, 17, 64, 100, 333};

// Runs `kernel` on random numbers of every length and compares with `formula` of each of them.
void CompareEach(const std::function<void(const KernelTable&, size_t, float*)>& kernel,
                 const std::function<double(double)>& formula, double tolerance) {
  for (const size_t length : kLengths) {
    const std::vector<float> inputs = Random(length, static_cast<int>(length), 4.0f);
    std::vector<float> first;
    for (const InstructionSet each : SupportedInstructionSets()) {
      std::vector<float> values = inputs;
      // What is behind the end must not be touched.
      values.push_back(7.25f);
      kernel(*SelectKernels(each).value(), length, values.data());
      EXPECT_EQ(values.back(), 7.25f);
      values.pop_back();
      for (size_t i = 0; i < length; ++i) {
        const double want = formula(inputs[i]);
        ASSERT_NEAR(values[i], want, tolerance * (1 + std::abs(want))) << inputs[i];
      }
      if (first.empty()) first = values;
      EXPECT_TRUE(SameBits(values, first)) << InstructionSetName(each);
    }
  }
}

TEST(BlockKernelsTest, Activations) {
  const auto compare = [](Activation activation, const std::function<double(double)>& formula) {
    CompareEach(
        [activation](const KernelTable& kernels, size_t size, float* values) {
          kernels.activations[static_cast<size_t>(activation)](size, values);
        },
        formula, 1e-6);
  };
  compare(Activation::kSilu, [](double x) { return x / (1 + std::exp(-x)); });
  compare(Activation::kGelu, [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); });
  compare(Activation::kGeluTanh, [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  });
  compare(Activation::kRelu, [](double x) { return std::max(x, 0.0); });
}

TEST(BlockKernelsTest, ActivationsOfGreatNumbersStayFinite) {
  for (const InstructionSet each : SupportedInstructionSets()) {
    for (const auto activation : SelectKernels(each).value()->activations) {
      float values[] = {-1e30f, -200.0f, 0.0f, 200.0f, 1e30f};
      activation(5, values);
      EXPECT_NEAR(values[0], 0.0f, 1e-6f);
      EXPECT_NEAR(values[1], 0.0f, 1e-6f);
      EXPECT_EQ(values[2], 0.0f);
      EXPECT_EQ(values[3], 200.0f);
      EXPECT_EQ(values[4], 1e30f);
    }
  }
}

TEST(BlockKernelsTest, ScaleAndCap) {
  CompareEach(
      [](const KernelTable& kernels, size_t size, float* values) { kernels.scale(1.7f, size, values); },
      [](double x) { return x * double{1.7f}; }, 1e-7);
  CompareEach([](const KernelTable& kernels, size_t size, float* values) { kernels.cap(3.0f, size, values); },
              [](double x) { return 3 * std::tanh(x / 3); }, 1e-6);
}

TEST(BlockKernelsTest, MultiplyAndLayerNorm) {
  for (const size_t length : kLengths) {
    const std::vector<float> input = Random(length, 1, 3.0f), weight = Random(length, 2),
                             bias = Random(length, 3);
    double mean = 0, variance = 0;
    for (const float x : input) mean += x / static_cast<double>(length);
    for (const float x : input) variance += (x - mean) * (x - mean) / static_cast<double>(length);
    std::vector<float> first;
    for (const InstructionSet each : SupportedInstructionSets()) {
      const KernelTable& kernels = *SelectKernels(each).value();
      std::vector<float> product = input;
      kernels.multiply(weight.data(), length, product.data());
      for (size_t i = 0; i < length; ++i) EXPECT_EQ(product[i], input[i] * weight[i]);
      std::vector<float> normed(length);
      kernels.layer_norm(input.data(), weight.data(), bias.data(), length, 1e-5f, normed.data());
      for (size_t i = 0; i < length; ++i) {
        const double want = weight[i] * (input[i] - mean) / std::sqrt(variance + 1e-5) + bias[i];
        ASSERT_NEAR(normed[i], want, 2e-5 * (1 + std::abs(want))) << length;
      }
      if (first.empty()) first = normed;
      EXPECT_TRUE(SameBits(normed, first)) << InstructionSetName(each);
      // In place.
      std::vector<float> same = input;
      kernels.layer_norm(same.data(), weight.data(), bias.data(), length, 1e-5f, same.data());
      EXPECT_EQ(same, normed);
    }
  }
}

TEST(BlockKernelsTest, SlopesOfAlibi) {
  EXPECT_EQ(AlibiSlopes(4), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  // Of 8 heads every other one, behind those of 4.
  const std::vector<float> six = AlibiSlopes(6);
  ASSERT_EQ(six.size(), 6u);
  EXPECT_EQ(six[3], 0.00390625f);
  EXPECT_EQ(six[4], 0.5f);
  EXPECT_EQ(six[5], 0.125f);
}

}  // namespace
}  // namespace tandem

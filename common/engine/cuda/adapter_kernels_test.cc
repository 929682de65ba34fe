// What adapters add to products: against double precision, for the rows that name one and for no others.

#include "common/engine/cuda/kernels/adapter_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/cuda/testing/host_block.h"
#include "common/engine/cuda/testing/spans.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// Two parts that share what they multiply, then one of its own behind them, with outputs between that have
// none.
TEST(AdapterKernelsTest, AddToTheirRowsAloneWhatDoublePrecisionDoes) {
  constexpr uint32_t kDepth = 77, kSize = 300, kWidth = 40, kRows = 5;
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  const auto normals = [&](size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  };
  std::vector<float> a = normals(36 * kDepth), first = normals(33 * 20), second = normals(33 * 10);
  std::vector<float> third = normals(3 * 200);
  AdapterInput input;
  input.a = SpanOf(a);
  input.num_reduced = 36;
  input.num_parts = 3;
  const auto part = [](std::vector<float>& b, float scale, uint32_t first_reduced, uint32_t num_reduced,
                       uint32_t first_output) {
    AdapterPart made;
    made.b = SpanOf(b);
    made.scale = scale;
    made.first_reduced = first_reduced;
    made.num_reduced = num_reduced;
    made.first_output = first_output;
    made.num_outputs = static_cast<uint32_t>(b.size() / num_reduced);
    return made;
  };
  input.parts[0] = part(first, 0.5f, 0, 33, 0);
  input.parts[1] = part(second, 2.0f, 0, 33, 25);
  input.parts[2] = part(third, 1.0f, 33, 3, 90);
  // Of three layers' inputs the second is this one; another adapter does nothing.
  std::vector<AdapterInput> full = {{}, input, {}};
  std::vector<AdapterInput> empty(3);
  std::vector<DeviceSpan<const AdapterInput>> adapters = {SpanOf(empty), SpanOf(full)};
  const std::vector<BlockId> blocks = {0};
  const AdapterPlaces places = {{7, 0}, {9, 1}};
  const AdapterId named[kRows] = {kNoAdapter, 9, 7, kNoAdapter, 9};
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < kRows; ++i) {
    rows.push_back({.context = {.blocks = blocks, .num_committed = i + 1}, .adapter = named[i]});
  }
  std::vector<uint32_t> words;
  WriteStepWords(rows, {.max_rows = kRows, .adapters = &places}, &words);
  EXPECT_EQ(words[StepWords::kHasAdapters], 1u);
  std::vector<Bf16> inputs(8 * kDepth);
  for (Bf16& each : inputs) each = ToBf16(normal(random));
  std::vector<float> reduced(8 * kWidth, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> products = normals(8 * kSize);
  std::vector<float> outputs = products;
  const AdapterTable table = {{{words.data(), words.size()}, kRows}, SpanOf(adapters), 1};
  HostGrid grid(5);
  grid.Launch(ReduceKernel{table, SpanOf(inputs), SpanOf(reduced), kDepth, kWidth}, ReduceShape(8));
  grid.Launch(AddAdapterKernel{table, SpanOf(reduced), SpanOf(outputs), kWidth, kSize}, GateShape(8, kSize));
  for (uint32_t row = 0; row < 8; ++row) {
    if (row >= kRows || named[row] != 9) {
      EXPECT_EQ(std::memcmp(&outputs[row * kSize], &products[row * kSize], kSize * sizeof(float)), 0) << row;
      continue;
    }
    std::vector<double> expected(products.begin() + row * kSize, products.begin() + (row + 1) * kSize);
    for (const AdapterPart& each : input.parts) {
      for (uint32_t output = 0; output < each.num_outputs; ++output) {
        double sum = 0;
        for (uint32_t r = 0; r < each.num_reduced; ++r) {
          double inner = 0;
          for (uint32_t k = 0; k < kDepth; ++k) {
            inner += double{a[(each.first_reduced + r) * kDepth + k]} * ToFloat(inputs[row * kDepth + k]);
          }
          sum += double{each.b[r * each.num_outputs + output]} * inner;
        }
        expected[each.first_output + output] += each.scale * sum;
      }
    }
    for (uint32_t i = 0; i < kSize; ++i) {
      ASSERT_NEAR(outputs[row * kSize + i], expected[i], 1e-3) << "row " << row << ", output " << i;
    }
  }
}

}  // namespace
}  // namespace tandem

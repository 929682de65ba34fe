// Kernels of mixtures of experts: which experts a row takes, in which items they are multiplied, and what it
// adds up. The bits of the processor's rule where that is one of numbers alone, and the same in any company.

#include "common/engine/cuda/kernels/expert_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/packed_tiles.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/cuda/testing/host_block.h"
#include "common/engine/cuda/testing/spans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// What a row takes.
struct Choices {
  std::vector<uint32_t> experts;
  std::vector<float> weights;
};

class ExpertKernelsTest : public testing::Test {
 protected:
  float Normal() { return std::normal_distribution<float>()(random_); }
  std::vector<float> Normals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = Normal();
    return values;
  }

  // A step of so many rows; `words` are what it points to.
  static StepWords StepOf(uint32_t num_rows, std::vector<uint32_t>* words) {
    static const std::vector<BlockId> kBlocks(64);
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < num_rows; ++i) {
      rows.push_back({.context = {.blocks = kBlocks, .num_committed = i + 1}});
    }
    WriteStepWords(rows, {.max_rows = num_rows}, words);
    return {SpanOf(std::as_const(*words)), num_rows};
  }

  Choices Choose(const std::vector<float>& routed, const ExpertSizes& sizes, uint32_t num_routed,
                 bool over_chosen) {
    const auto num_rows = static_cast<uint32_t>(routed.size() / num_routed);
    std::vector<uint32_t> words;
    const StepWords step = StepOf(num_rows, &words);
    // A bucket has rows beyond the step's.
    std::vector<uint32_t> experts((num_rows + 1) * sizes.num_chosen, 77);
    std::vector<float> weights(experts.size(), 77.0f);
    grid_.Launch(ChooseExpertsKernel{step, SpanOf(routed), SpanOf(experts), SpanOf(weights),
                                     sizes.num_experts, num_routed, sizes.num_chosen, over_chosen},
                 ChooseExpertsShape(num_rows + 1, sizes));
    EXPECT_EQ(experts.back(), 77u);
    experts.resize(num_rows * sizes.num_chosen);
    weights.resize(experts.size());
    return {experts, weights};
  }

  // As cpu/expert_stage.cc has it.
  static Choices Expected(const float* routed, const ExpertSizes& sizes, bool over_chosen) {
    std::vector<uint32_t> order(sizes.num_experts);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return routed[a] > routed[b]; });
    const float greatest = routed[order[0]];
    order.resize(sizes.num_chosen);
    std::sort(order.begin(), order.end());
    std::vector<float> exponents;
    for (uint32_t i = 0; i < (over_chosen ? sizes.num_chosen : sizes.num_experts); ++i) {
      exponents.push_back(routed[over_chosen ? order[i] : i] - greatest);
    }
    PortableKernels().exponential(exponents.size(), exponents.data());
    float total = 0.0f;
    for (const float exponent : exponents) total += exponent;
    Choices choices = {order, {}};
    for (uint32_t i = 0; i < sizes.num_chosen; ++i) {
      choices.weights.push_back(exponents[over_chosen ? i : order[i]] / total);
    }
    return choices;
  }

  // What a plan owns.
  struct PlanMemory {
    std::vector<uint32_t> items, choices, rows;
    ExpertPlan plan() { return {SpanOf(items), SpanOf(choices), SpanOf(rows)}; }
  };
  PlanMemory Group(const std::vector<uint32_t>& experts, const ExpertSizes& sizes, uint32_t bucket) {
    const auto num_rows = static_cast<uint32_t>(experts.size() / sizes.num_chosen);
    std::vector<uint32_t> words;
    const StepWords step = StepOf(num_rows, &words);
    PlanMemory memory = {std::vector<uint32_t>(1 + MostItems(bucket, sizes) * ExpertPlan::kItemWords, 99999),
                         std::vector<uint32_t>(uint64_t{bucket} * sizes.num_chosen, 99999),
                         std::vector<uint32_t>(uint64_t{bucket} * sizes.num_chosen, 99999)};
    grid_.Launch(GroupExpertsKernel{.step = step,
                                    .experts = SpanOf(experts),
                                    .plan = memory.plan(),
                                    .num_read = SpanOf(num_read_),
                                    .is_first = std::exchange(is_first_, false),
                                    .num_experts = sizes.num_experts,
                                    .num_chosen = sizes.num_chosen,
                                    .rows_per_item = RowsPerItem(bucket, sizes)},
                 GroupExpertsShape(sizes));
    return memory;
  }

  // Of every row `num_chosen` experts, mostly of the first few.
  std::vector<uint32_t> AnyExperts(uint32_t num_rows, const ExpertSizes& sizes, uint32_t most) {
    std::vector<uint32_t> experts;
    for (uint32_t row = 0; row < num_rows; ++row) {
      std::vector<uint32_t> order(most);
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), random_);
      std::sort(order.begin(), order.begin() + sizes.num_chosen);
      experts.insert(experts.end(), order.begin(), order.begin() + sizes.num_chosen);
    }
    return experts;
  }

  std::vector<uint64_t> num_read_ = {99999};
  bool is_first_ = true;
  std::mt19937_64 random_{31};
  HostGrid grid_{37};
};

TEST_F(ExpertKernelsTest, RoutesInFloat32AndEachRowByItself) {
  for (const auto& sizes : {std::tuple(5u, 1u, 1u), {70u, 9u, 11u}, {33u, 20u, 8u}}) {
    const uint32_t hidden = std::get<0>(sizes), outputs = std::get<1>(sizes), num_rows = std::get<2>(sizes);
    const std::vector<float> inputs = Normals(num_rows * hidden), weights = Normals(outputs * hidden);
    const std::vector<float> bias = Normals(outputs - 1);
    const auto route = [&](const std::vector<float>& of_rows) {
      const auto count = static_cast<uint32_t>(of_rows.size() / hidden);
      std::vector<uint32_t> words;
      const StepWords step = StepOf(count, &words);
      std::vector<float> routed(count * outputs, 77.0f);
      grid_.Launch(
          RouteKernel{step, SpanOf(of_rows), SpanOf(weights), SpanOf(bias), SpanOf(routed), hidden, outputs},
          RouteShape(BucketOf(count), outputs));
      return routed;
    };
    const std::vector<float> together = route(inputs);
    for (uint32_t row = 0; row < num_rows; ++row) {
      for (uint32_t output = 0; output < outputs; ++output) {
        double expected = output + 1 < outputs ? double{bias[output]} : 0.0;
        for (uint32_t i = 0; i < hidden; ++i) {
          expected += double{inputs[row * hidden + i]} * weights[output * hidden + i];
        }
        ASSERT_NEAR(together[row * outputs + output], expected, 1e-5 * hidden);
      }
      const auto begin = inputs.begin() + static_cast<ptrdiff_t>(row * hidden);
      const std::vector<float> alone = route({begin, begin + static_cast<ptrdiff_t>(hidden)});
      ASSERT_EQ(std::memcmp(alone.data(), &together[row * outputs], outputs * sizeof(float)), 0) << row;
    }
  }
}

TEST_F(ExpertKernelsTest, TakesTheExpertsOfTheProcessorWithItsWeights) {
  for (const ExpertSizes sizes : {ExpertSizes{1, 1}, {4, 2}, {6, 6}, {128, 8}, {70, 40}}) {
    const uint32_t num_routed = sizes.num_experts + 1;
    std::vector<float> routed = Normals(9 * num_routed);
    // Many that are equal, zeros of both signs, and one that leaves nothing to others.
    for (uint32_t i = 0; i < num_routed; ++i) {
      routed[1 * num_routed + i] = static_cast<float>(i % 3);
      routed[2 * num_routed + i] = i % 2 == 0 ? -0.0f : 0.0f;
      routed[3 * num_routed + i] = i % 5 == 0 ? -200.0f : -1.5f;
    }
    routed[4 * num_routed + sizes.num_experts / 2] = 500.0f;
    if (sizes.num_experts > 1) routed[5 * num_routed] = -std::numeric_limits<float>::infinity();
    for (const bool over_chosen : {false, true}) {
      const Choices got = Choose(routed, sizes, num_routed, over_chosen);
      for (uint32_t row = 0; row < 9; ++row) {
        const Choices expected = Expected(&routed[row * num_routed], sizes, over_chosen);
        for (uint32_t i = 0; i < sizes.num_chosen; ++i) {
          const uint32_t choice = row * sizes.num_chosen + i;
          ASSERT_EQ(got.experts[choice], expected.experts[i]) << "row " << row;
          ASSERT_EQ(BitsAs<uint32_t>(got.weights[choice]), BitsAs<uint32_t>(expected.weights[i]))
              << "row " << row << ": " << got.weights[choice] << ", expected " << expected.weights[i];
        }
      }
    }
  }
}

TEST_F(ExpertKernelsTest, TakesWhatIsNoNumberLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Choices got = Choose({nan, -infinity, nan, 1, nan, nan, nan, nan}, {4, 2}, 4, true);
  EXPECT_THAT(got.experts, testing::ElementsAre(1, 3, 0, 1));
}

TEST_F(ExpertKernelsTest, ItemsHaveEveryChoiceOnce) {
  uint64_t num_taken = 0;
  for (const ExpertSizes sizes : {ExpertSizes{1, 1}, {4, 2}, {40, 3}, {128, 8}}) {
    for (const auto& [num_rows, bucket] : {std::pair(1u, 8u), {8u, 8u}, {9u, 16u}, {100u, 128u}}) {
      // In turn: all experts, and as few as there can be.
      for (const uint32_t most : {sizes.num_experts, sizes.num_chosen}) {
        const std::vector<uint32_t> experts = AnyExperts(num_rows, sizes, most);
        PlanMemory memory = Group(experts, sizes, bucket);
        const ExpertPlan plan = memory.plan();
        num_taken += std::set<uint32_t>(experts.begin(), experts.end()).size();
        ASSERT_EQ(num_read_[0], num_taken);
        ASSERT_LE(plan.num_items(), MostItems(bucket, sizes));
        uint32_t place = 0;
        uint32_t last_expert = 0;
        for (uint32_t i = 0; i < plan.num_items(); ++i) {
          const uint32_t expert = plan.item(i, ExpertPlan::kExpert);
          const uint32_t count = plan.item(i, ExpertPlan::kCount);
          ASSERT_GE(expert, last_expert);
          last_expert = expert;
          ASSERT_EQ(plan.item(i, ExpertPlan::kBegin), place);
          ASSERT_GE(count, 1u);
          ASSERT_LE(count, RowsPerItem(bucket, sizes));
          for (uint32_t j = 0; j < count; ++j, ++place) {
            const uint32_t choice = memory.choices[place];
            ASSERT_EQ(experts.at(choice), expert);
            ASSERT_EQ(memory.rows[place], choice / sizes.num_chosen);
            // Ascending within an expert: with the above, each once.
            if (place > 0 && experts[memory.choices[place - 1]] == expert) {
              ASSERT_LT(memory.choices[place - 1], choice);
            }
          }
        }
        ASSERT_EQ(place, experts.size());
      }
    }
  }
}

TEST_F(ExpertKernelsTest, ItemsAreNeverMoreThanTheLaunchHasBlocks) {
  EXPECT_EQ(RowsPerItem(8, {128, 8}), 8u);
  EXPECT_EQ(RowsPerItem(64, {8, 2}), 32u);
  EXPECT_EQ(RowsPerItem(512, {8, 2}), 64u);
  EXPECT_EQ(RowsPerItem(64, {1, 1}), 64u);
  EXPECT_EQ(MostItems(8, {128, 8}), 64u + 8);
  EXPECT_EQ(MostItems(512, {8, 2}), 8u + 16);
}

// Experts' matrices behind one another as WeightUploader::Stack leaves them, and each by itself.
struct StackedExperts {
  std::vector<float> weights;  // [experts, outputs, depth]
  std::vector<Bf16> rounded;
  std::vector<uint32_t> words;
  std::vector<Bf16> scales;
  std::vector<float> output_scales;

  PackedWeights packed() const { return {SpanOf(words), SpanOf(scales), SpanOf(output_scales)}; }
};

StackedExperts Stacked(DeviceFormat format, std::vector<float> weights, uint32_t num_experts,
                       uint32_t outputs, uint32_t depth) {
  StackedExperts made;
  const uint64_t tiles = NumPackedTiles(outputs);
  const uint64_t groups = NumInputGroups(depth);
  made.words.resize(num_experts * tiles * groups * PackedGroupWords(format));
  made.scales.resize(num_experts * tiles * groups * kPackedOutputs);
  made.output_scales.resize(num_experts * tiles * kPackedOutputs);
  for (uint64_t i = 0; i < uint64_t{num_experts} * outputs && format != DeviceFormat::kBf16; ++i) {
    const uint64_t tile = i / outputs * tiles + i % outputs / kPackedOutputs;
    const auto output = static_cast<uint32_t>(i % outputs % kPackedOutputs);
    const auto row = absl::MakeConstSpan(weights).subspan(i * depth, depth);
    uint32_t* const words = &made.words[tile * groups * PackedGroupWords(format)];
    if (format == DeviceFormat::kFp8) {
      const float scale = Fp8Scale(GreatestMagnitude(row));
      PackFp8Output(row, scale, output, words);
      made.output_scales[tile * kPackedOutputs + output] = scale;
    } else {
      PackOutput(format, row, output, words, &made.scales[tile * groups * kPackedOutputs]);
    }
  }
  for (float& weight : weights) {
    made.rounded.push_back(ToBf16(weight));
    if (format == DeviceFormat::kBf16) weight = ToFloat(made.rounded.back());
  }
  made.weights = std::move(weights);
  return made;
}

class ExpertProducts : public ExpertKernelsTest, public testing::WithParamInterface<DeviceFormat> {
 protected:
  // Of a plan's items: [rows * num_chosen, outputs].
  std::vector<float> Multiply(const StackedExperts& stack, const ExpertRows& rows, std::vector<Bf16> inputs,
                              uint32_t bucket, const ExpertSizes& sizes, uint32_t outputs, uint32_t depth) {
    std::vector<float> products(uint64_t{bucket} * sizes.num_chosen * outputs, 77.0f);
    const ProductGrid grid = {outputs, depth, RowsPerItem(bucket, sizes)};
    const LaunchShape shape = MultiplyExpertsShape(grid, MostItems(bucket, sizes));
    const auto num_inputs = static_cast<uint32_t>(inputs.size() / depth);
    const uint64_t groups = uint64_t{num_inputs} * NumInputGroups(depth);
    std::vector<uint32_t> words(groups * RoundedInputs::kGroupWords);
    std::vector<float> scales(groups);
    const RoundedInputs rounded = {SpanOf(words), SpanOf(scales)};
    grid_.Launch(RoundInputsKernel{SpanOf(inputs), rounded, depth}, RoundInputsShape(num_inputs, depth));
    switch (GetParam()) {
      case DeviceFormat::kBf16:
        grid_.Launch(
            MultiplyBf16ExpertsKernel{SpanOf(stack.rounded), SpanOf(inputs), SpanOf(products), grid, rows},
            shape);
        break;
      case DeviceFormat::kInt8:
        grid_.Launch(MultiplyInt8ExpertsKernel{stack.packed(), rounded, SpanOf(products), grid, rows}, shape);
        break;
      case DeviceFormat::kInt4:
        grid_.Launch(MultiplyInt4ExpertsKernel{stack.packed(), rounded, SpanOf(products), grid, rows}, shape);
        break;
      case DeviceFormat::kFp8:
        grid_.Launch(MultiplyFp8ExpertsKernel{stack.packed(), SpanOf(inputs), SpanOf(products), grid, rows},
                     shape);
        break;
    }
    return products;
  }

  // How far from the exact product of the numbers as they were.
  static double Tolerance() {
    switch (GetParam()) {
      case DeviceFormat::kBf16:
        return 1e-5;
      case DeviceFormat::kInt8:
        return 0.02;
      case DeviceFormat::kInt4:
        return 0.2;
      case DeviceFormat::kFp8:
        break;
    }
    return 0.07;
  }
};

// Every choice gets its own row's product with its own expert, with the bits that it has alone, and what no
// row takes is not read.
TEST_P(ExpertProducts, AreOfEachChoiceAloneAndReadNoOtherExperts) {
  struct Case {
    ExpertSizes sizes;
    uint32_t outputs, depth, num_rows, bucket, most;
  };
  for (const Case& each : {Case{{3, 2}, 1, 1, 1, 8, 2}, Case{{6, 3}, 40, 136, 20, 32, 4},
                           Case{{4, 1}, 17, 63, 60, 64, 2}, Case{{40, 2}, 48, 72, 9, 16, 30}}) {
    const auto& [sizes, outputs, depth, num_rows, bucket, most] = each;
    const uint64_t size = uint64_t{outputs} * depth;
    std::vector<float> weights = Normals(sizes.num_experts * size);
    const std::vector<uint32_t> experts = AnyExperts(num_rows, sizes, most);
    for (uint32_t expert = 0; expert < sizes.num_experts; ++expert) {
      if (std::count(experts.begin(), experts.end(), expert) > 0) continue;
      std::fill_n(weights.begin() + static_cast<ptrdiff_t>(expert * size), size,
                  std::numeric_limits<float>::quiet_NaN());
    }
    const StackedExperts stack = Stacked(GetParam(), std::move(weights), sizes.num_experts, outputs, depth);
    PlanMemory memory = Group(experts, sizes, bucket);
    for (const bool reads_rows : {true, false}) {
      std::vector<Bf16> inputs(uint64_t{bucket} * (reads_rows ? 1 : sizes.num_chosen) * depth);
      for (Bf16& input : inputs) input = ToBf16(Normal());
      const ExpertRows rows = {memory.plan(), reads_rows};
      const std::vector<float> got = Multiply(stack, rows, inputs, bucket, sizes, outputs, depth);
      for (uint32_t choice = 0; choice < experts.size(); ++choice) {
        const uint32_t input = reads_rows ? choice / sizes.num_chosen : choice;
        double error = 0, total = 0;
        for (uint32_t output = 0; output < outputs; ++output) {
          double expected = 0;
          for (uint32_t k = 0; k < depth; ++k) {
            expected += double{stack.weights[experts[choice] * size + uint64_t{output} * depth + k]} *
                        ToFloat(inputs[uint64_t{input} * depth + k]);
          }
          error += std::pow(got[uint64_t{choice} * outputs + output] - expected, 2);
          total += std::pow(expected, 2);
        }
        ASSERT_LE(std::sqrt(error), Tolerance() * std::sqrt(total) + 1e-30) << "choice " << choice;
        if (choice % 7 > 0) continue;
        // The row by itself, with that expert as its first and only one.
        const ExpertSizes single = {sizes.num_experts, 1};
        PlanMemory alone = Group({experts[choice]}, single, 8);
        std::vector<Bf16> own(uint64_t{8} * depth);
        std::copy_n(&inputs[uint64_t{input} * depth], depth, own.begin());
        const std::vector<float> expected =
            Multiply(stack, {alone.plan(), reads_rows}, own, 8, single, outputs, depth);
        ASSERT_EQ(std::memcmp(&got[uint64_t{choice} * outputs], expected.data(), outputs * sizeof(float)), 0)
            << "choice " << choice;
      }
      // Beyond the step's.
      for (uint64_t i = experts.size() * outputs; i < got.size(); ++i) ASSERT_EQ(got[i], 77.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertProducts,
                         testing::Values(DeviceFormat::kBf16, DeviceFormat::kInt8, DeviceFormat::kInt4,
                                         DeviceFormat::kFp8));

// Integers have the bits of a dense product with the same matrix, which are the processor's.
TEST_F(ExpertKernelsTest, IntegersHaveTheBitsOfDenseProducts) {
  constexpr uint32_t kOutputs = 21, kDepth = 130, kExperts = 3;
  const ExpertSizes sizes = {kExperts, 1};
  const StackedExperts stack =
      Stacked(DeviceFormat::kInt4, Normals(kExperts * kOutputs * kDepth), kExperts, kOutputs, kDepth);
  std::vector<Bf16> inputs(8 * kDepth);
  for (Bf16& input : inputs) input = ToBf16(Normal());
  std::vector<uint32_t> words(8 * NumInputGroups(kDepth) * RoundedInputs::kGroupWords);
  std::vector<float> scales(8 * NumInputGroups(kDepth));
  const RoundedInputs rounded = {SpanOf(words), SpanOf(scales)};
  grid_.Launch(RoundInputsKernel{SpanOf(inputs), rounded, kDepth}, RoundInputsShape(8, kDepth));
  const std::vector<uint32_t> experts = {2, 0, 2, 1, 1, 2, 0, 0};
  PlanMemory memory = Group(experts, sizes, 8);
  std::vector<float> got(8 * kOutputs);
  const ProductGrid grid = {kOutputs, kDepth, RowsPerItem(8, sizes)};
  grid_.Launch(MultiplyInt4ExpertsKernel{stack.packed(), rounded, SpanOf(got), grid, {memory.plan(), true}},
               MultiplyExpertsShape(grid, MostItems(8, sizes)));
  const uint64_t groups = uint64_t{NumPackedTiles(kOutputs)} * NumInputGroups(kDepth);
  for (uint32_t expert = 0; expert < kExperts; ++expert) {
    const PackedWeights own = {
        SpanOf(stack.words).Part(expert * groups * kInt4GroupWords, groups * kInt4GroupWords),
        SpanOf(stack.scales).Part(expert * groups * kPackedOutputs, groups * kPackedOutputs),
        {}};
    std::vector<float> dense(8 * kOutputs);
    const ProductGrid dense_grid = {kOutputs, kDepth, 8};
    grid_.Launch(MultiplyInt4Kernel{own, rounded, SpanOf(dense), dense_grid}, MultiplyShape(dense_grid));
    for (uint32_t row = 0; row < 8; ++row) {
      if (experts[row] != expert) continue;
      ASSERT_EQ(std::memcmp(&got[row * kOutputs], &dense[row * kOutputs], kOutputs * sizeof(float)), 0);
    }
  }
}

TEST_F(ExpertKernelsTest, SumsInTheOrderOfExpertsThenTheSharedOne) {
  constexpr uint32_t kHidden = 40, kRows = 3, kChosen = 3, kExperts = 5;
  const std::vector<uint32_t> experts = {0, 2, 4, 1, 2, 3, 0, 1, 4};
  const std::vector<float> outputs = Normals(kRows * kChosen * kHidden), weights = Normals(kRows * kChosen);
  const std::vector<float> bias = Normals(kExperts * kHidden), shared_bias = Normals(kHidden);
  const std::vector<float> routed = Normals(kRows * (kExperts + 1));
  const std::vector<float> shared = Normals((kRows + 1) * kHidden);
  std::vector<uint32_t> words;
  const StepWords step = StepOf(kRows, &words);
  for (const bool is_full : {false, true}) {
    std::vector<float> sums = shared;
    SumExpertsKernel sum;
    sum.step = step;
    sum.outputs = SpanOf(outputs);
    sum.experts = SpanOf(experts);
    sum.weights = SpanOf(weights);
    if (is_full) {
      sum.bias = SpanOf(bias);
      sum.routed = SpanOf(routed);
      sum.shared_bias = SpanOf(shared_bias);
    }
    sum.sums = SpanOf(sums);
    sum.hidden_size = kHidden;
    sum.num_experts = kExperts;
    sum.num_chosen = kChosen;
    grid_.Launch(sum, GateShape(kRows + 1, kHidden));
    for (uint32_t row = 0; row < kRows; ++row) {
      float exponent = -routed[row * (kExperts + 1) + kExperts];
      PortableKernels().exponential(1, &exponent);
      for (uint32_t i = 0; i < kHidden; ++i) {
        float expected = 0.0f;
        for (uint32_t choice = row * kChosen; choice < (row + 1) * kChosen; ++choice) {
          float output = outputs[choice * kHidden + i];
          if (is_full) output += bias[experts[choice] * kHidden + i];
          expected += weights[choice] * output;
        }
        if (is_full) {
          expected += 1.0f / (1.0f + exponent) * (shared[row * kHidden + i] + shared_bias[i]);
        }
        ASSERT_EQ(BitsAs<uint32_t>(sums[row * kHidden + i]), BitsAs<uint32_t>(expected)) << row << ", " << i;
      }
    }
    // Beyond the step.
    EXPECT_EQ(sums.back(), shared.back());
  }
}

TEST_F(ExpertKernelsTest, GatesWithinLimitsAndWithTheBiasOfTheExpert) {
  constexpr uint32_t kWidth = 35;
  const std::vector<uint32_t> experts = {1, 2, 0, 1};
  std::vector<float> gate_up = Normals(4 * 2 * kWidth);
  gate_up[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> bias = Normals(3 * 2 * kWidth);
  std::vector<uint32_t> words;
  const StepWords step = StepOf(2, &words);
  std::vector<Bf16> gated(6 * kWidth, ToBf16(77.0f));
  grid_.Launch(GateKernel{.step = step,
                          .gate_up = SpanOf(std::as_const(gate_up)),
                          .bias = SpanOf(bias),
                          .output = SpanOf(gated),
                          .width = kWidth,
                          .limits = {.limit = 0.75f, .alpha = 1.702f, .up_offset = 1.0f},
                          .num_each = 2,
                          .experts = SpanOf(experts)},
               GateShape(6, kWidth));
  EXPECT_TRUE(std::isnan(ToFloat(gated[3])));
  for (uint32_t row = 0; row < 4; ++row) {
    for (uint32_t i = 0; i < kWidth; ++i) {
      if (row == 0 && i == 3) continue;
      const double gate =
          std::min(0.75, double{gate_up[row * 2 * kWidth + i]} + bias[experts[row] * 2 * kWidth + i]);
      const double up = std::clamp(
          double{gate_up[row * 2 * kWidth + kWidth + i]} + bias[experts[row] * 2 * kWidth + kWidth + i],
          -0.75, 0.75);
      const double expected = gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
      ASSERT_NEAR(ToFloat(gated[row * kWidth + i]), expected, std::abs(expected) / 200 + 1e-6)
          << row << ", " << i;
    }
  }
  EXPECT_EQ(ToFloat(gated[4 * kWidth]), 77.0f);
}

}  // namespace
}  // namespace tandem

// Kernels that hand out hidden states, and those of draft heads, which read them.

#include <cmath>
#include <random>
#include <vector>

#include "common/engine/cuda/kernels/kernels.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/cuda/testing/host_block.h"
#include "common/engine/cuda/testing/spans.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

class HeadKernelsTest : public testing::Test {
 protected:
  std::vector<float> Normals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = std::normal_distribution<float>()(random_);
    return values;
  }

  std::mt19937_64 random_{17};
  HostGrid grid_{12};
};

// Rows 1 and 3 ask for states: of the stream at hand they get them, as the norm sees it, in their places.
TEST_F(HeadKernelsTest, NormsPutFeaturesAside) {
  const std::vector<BlockId> blocks = {0, 1};
  const std::vector<uint32_t> layers = {1, 2};
  float nowhere = 0;
  const FeatureRequest two = {.layers = layers, .states = &nowhere};
  const FeatureRequest three = {.layers = layers, .final_norm = true, .states = &nowhere};
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < 5; ++i) {
    rows.push_back({.token = 1, .context = {.blocks = blocks, .num_committed = i + 1}});
  }
  rows[1].features = &three;
  rows[3].features = &two;
  std::vector<uint32_t> words;
  WriteStepWords(rows, {.max_rows = 6, .rows_per_item = 4, .num_layers = 2}, &words);
  EXPECT_EQ(words[StepWords::kNumStates], 5u);
  EXPECT_EQ(words[StepWords::kHasFinalFeatures], 1u);
  const StepWords step = {ConstSpanOf(words), 6};
  for (uint32_t hidden : {6u, 515u}) {
    std::vector<float> state = Normals(8 * hidden);
    const std::vector<float> before = state;
    const std::vector<float> addends = Normals(8 * hidden);
    const std::vector<float> weight = Normals(hidden);
    std::vector<Bf16> normed(8 * hidden);
    std::vector<float> features(5 * hidden, 77.0f);
    const Residual residual = {.hidden = SpanOf(state),
                               .addends = ConstSpanOf(addends),
                               .num_addends = 1,
                               .addend_stride = 8 * hidden,
                               .bias = {},
                               .hidden_size = hidden};
    const FinalFeaturesKernel take = {.step = step,
                                      .residual = residual,
                                      .norm = {.weight = ConstSpanOf(weight), .bias = {}},
                                      .features = SpanOf(features),
                                      .num_layers = 2,
                                      .epsilon = 1e-5f};
    grid_.Launch(take, NormShape(8, hidden));
    EXPECT_EQ(state, before);
    const NormKernel norm = {.step = step,
                             .residual = residual,
                             .norm = {.weight = ConstSpanOf(weight), .bias = {}},
                             .normed = SpanOf(normed),
                             .epsilon = 1e-5f,
                             .features = SpanOf(features),
                             .num_layers = 1};
    grid_.Launch(norm, NormShape(8, hidden));
    for (uint32_t i = 0; i < hidden; ++i) {
      // After one layer and after two, which here are the same stream, and normed.
      const auto sum = [&](uint32_t row) { return before[row * hidden + i] + addends[row * hidden + i]; };
      EXPECT_EQ(features[i], sum(1));
      EXPECT_EQ(features[hidden + i], sum(1));
      EXPECT_EQ(ToBf16(features[2 * hidden + i]).bits, normed[hidden + i].bits);
      EXPECT_EQ(features[3 * hidden + i], sum(3));
      EXPECT_EQ(features[4 * hidden + i], sum(3));
    }
  }
}

// weight * values / sqrt(mean(values^2) + epsilon), in double precision.
std::vector<double> NormOf(const float* values, const std::vector<float>& weight, double epsilon) {
  double squares = 0;
  for (size_t i = 0; i < weight.size(); ++i) squares += static_cast<double>(values[i]) * values[i];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + epsilon);
  std::vector<double> normed;
  for (size_t i = 0; i < weight.size(); ++i) normed.push_back(double{weight[i]} * values[i] * factor);
  return normed;
}

// Rows 0 and 2 read the target's states, row 1 a state of its own; row 2 asks for what the layer begins with.
class HeadRowsTest : public HeadKernelsTest {
 protected:
  static constexpr uint32_t kHidden = 45;
  static constexpr uint32_t kStateSize = 67;  // Odd: the last word is half full.

  StepWords Write(FloatStates float_states, uint32_t own_size) {
    for (uint32_t i = 0; i < 3; ++i) {
      read_.push_back(Normals(i == 1 ? own_size : state_size_));
    }
    for (uint32_t i = 0; i < 3; ++i) states_.push_back({.values = read_[i], .own = i == 1});
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < 3; ++i) {
      rows.push_back({.token = 1,
                      .context = {.blocks = blocks_, .num_committed = i + 1},
                      .features = i == 2 ? &request_ : nullptr,
                      .state = &states_[i]});
    }
    WriteStepWords(rows, {.max_rows = 4, .rows_per_item = 4, .num_layers = 1, .float_states = float_states},
                   &words_);
    return {ConstSpanOf(words_), 4};
  }

  uint32_t state_size_ = kStateSize;
  const std::vector<BlockId> blocks_ = {0};
  const std::vector<uint32_t> layers_ = {0};
  float nowhere_ = 0;
  const FeatureRequest request_ = {.layers = layers_, .states = &nowhere_};
  std::vector<std::vector<float>> read_;
  std::vector<InputState> states_;
  std::vector<uint32_t> words_;
};

TEST_F(HeadRowsTest, EagleProjectsEmbeddingAndState) {
  const StepWords step = Write(FloatStates::kNone, kStateSize);
  const std::vector<float> embedded = Normals(4 * kHidden);
  constexpr uint32_t kInputs = kHidden + kStateSize;
  std::vector<Bf16> joined(4 * kInputs, Bf16{7});
  grid_.Launch(JoinStatesKernel{.step = step,
                                .embedded = ConstSpanOf(embedded),
                                .inputs = SpanOf(joined),
                                .embedding_size = kHidden,
                                .state_size = kStateSize},
               EmbedShape(4, kInputs));
  for (uint32_t row = 0; row < 3; ++row) {
    for (uint32_t i = 0; i < kInputs; ++i) {
      const float expected = i < kHidden ? embedded[row * kHidden + i] : read_[row][i - kHidden];
      ASSERT_EQ(joined[row * kInputs + i].bits, ToBf16(expected).bits) << row << ", " << i;
    }
  }
  EXPECT_EQ(joined[3 * kInputs].bits, 7);

  const std::vector<float> projected = Normals(4 * kHidden);
  const std::vector<float> bias = Normals(kHidden);
  std::vector<float> hidden(4 * kHidden, 77.0f);
  std::vector<Bf16> inputs(4 * kHidden);
  std::vector<float> features(kHidden);
  BeginHeadKernel begin;
  begin.step = step;
  begin.projected = ConstSpanOf(projected);
  begin.bias = ConstSpanOf(bias);
  begin.hidden = SpanOf(hidden);
  begin.inputs = SpanOf(inputs);
  begin.features = SpanOf(features);
  begin.hidden_size = kHidden;
  grid_.Launch(begin, NormShape(4, kHidden));
  for (uint32_t i = 0; i < kHidden; ++i) {
    for (uint32_t row = 0; row < 3; ++row) {
      ASSERT_EQ(hidden[row * kHidden + i], projected[row * kHidden + i] + bias[i]);
      ASSERT_EQ(inputs[row * kHidden + i].bits, ToBf16(hidden[row * kHidden + i]).bits);
    }
    EXPECT_EQ(features[i], hidden[2 * kHidden + i]);
    EXPECT_EQ(hidden[3 * kHidden + i], 77.0f);
  }
}

TEST_F(HeadRowsTest, Eagle3GoesOnFromItsOwnState) {
  const StepWords step = Write(FloatStates::kOwn, kHidden);
  std::vector<Bf16> joined(4 * kStateSize, Bf16{7});
  grid_.Launch(JoinStatesKernel{.step = step,
                                .embedded = {},
                                .inputs = SpanOf(joined),
                                .embedding_size = 0,
                                .state_size = kStateSize},
               EmbedShape(4, kStateSize));
  for (uint32_t i = 0; i < kStateSize; ++i) {
    ASSERT_EQ(joined[i].bits, ToBf16(read_[0][i]).bits);
    ASSERT_EQ(joined[kStateSize + i].bits, 7);
    ASSERT_EQ(joined[2 * kStateSize + i].bits, ToBf16(read_[2][i]).bits);
  }
  const std::vector<float> embedded = Normals(4 * kHidden);
  const std::vector<float> projected = Normals(4 * kHidden);
  const std::vector<float> embedding_norm = Normals(kHidden);
  const std::vector<float> state_norm = Normals(kHidden);
  for (const bool norm_before_residual : {false, true}) {
    std::vector<float> hidden(4 * kHidden);
    std::vector<Bf16> inputs(4 * 2 * kHidden);
    std::vector<float> features(kHidden);
    grid_.Launch(BeginHeadKernel{.step = step,
                                 .projected = ConstSpanOf(projected),
                                 .bias = {},
                                 .embedded = ConstSpanOf(embedded),
                                 .embedding_norm = ConstSpanOf(embedding_norm),
                                 .state_norm = ConstSpanOf(state_norm),
                                 .hidden = SpanOf(hidden),
                                 .inputs = SpanOf(inputs),
                                 .features = SpanOf(features),
                                 .hidden_size = kHidden,
                                 .epsilon = 1e-5f,
                                 .own_states_go_on = true,
                                 .norm_before_residual = norm_before_residual},
                 NormShape(4, kHidden));
    for (uint32_t row = 0; row < 3; ++row) {
      const float* const begun = row == 1 ? read_[1].data() : &projected[row * kHidden];
      const std::vector<double> of_state = NormOf(begun, state_norm, 1e-5);
      const std::vector<double> of_embedding = NormOf(&embedded[row * kHidden], embedding_norm, 1e-5);
      for (uint32_t i = 0; i < kHidden; ++i) {
        const Bf16* const of_row = &inputs[row * 2 * kHidden];
        ASSERT_NEAR(ToFloat(of_row[i]), of_embedding[i], std::abs(of_embedding[i]) / 250 + 1e-6);
        ASSERT_NEAR(ToFloat(of_row[kHidden + i]), of_state[i], std::abs(of_state[i]) / 250 + 1e-6);
        const float goes_on = hidden[row * kHidden + i];
        if (norm_before_residual) {
          ASSERT_NEAR(goes_on, of_state[i], std::abs(of_state[i]) * 1e-5 + 1e-6);
        } else {
          ASSERT_EQ(goes_on, begun[i]);
        }
        // What the layer begins with, before its norm.
        if (row == 2) {
          ASSERT_EQ(features[i], begun[i]);
        }
      }
    }
  }
}

// EAGLE-3.1: one norm over all states, or one over each. They are rounded to bfloat16 before.
TEST_F(HeadRowsTest, EqualPartsOfTheStatesAreNormedByThemselves) {
  state_size_ = 69;
  const StepWords step = Write(FloatStates::kOwn, kHidden);
  const std::vector<float> norms = Normals(state_size_);
  for (const uint32_t num_parts : {1u, 3u}) {
    const uint32_t size = state_size_ / num_parts;
    std::vector<Bf16> joined(4 * state_size_, Bf16{7});
    grid_.Launch(JoinNormedPartsKernel{.step = step,
                                       .norms = ConstSpanOf(norms),
                                       .inputs = SpanOf(joined),
                                       .state_size = state_size_,
                                       .num_parts = num_parts,
                                       .epsilon = 1e-5f},
                 NormShape(4, size));
    for (const uint32_t row : {0u, 2u}) {
      std::vector<float> rounded;
      for (const float value : read_[row]) rounded.push_back(ToFloat(ToBf16(value)));
      for (uint32_t part = 0; part < num_parts; ++part) {
        const std::vector<float> norm(norms.begin() + part * size, norms.begin() + (part + 1) * size);
        const std::vector<double> expected = NormOf(&rounded[part * size], norm, 1e-5);
        for (uint32_t i = 0; i < size; ++i) {
          ASSERT_NEAR(ToFloat(joined[row * state_size_ + part * size + i]), expected[i],
                      std::abs(expected[i]) / 250 + 1e-6)
              << num_parts << " " << row << " " << part * size + i;
        }
      }
    }
    // A row that goes on from its own state, and one that is not there.
    EXPECT_EQ(joined[state_size_].bits, 7);
    EXPECT_EQ(joined[3 * state_size_].bits, 7);
  }
}

// The states' widths are the head's own.
TEST_F(HeadRowsTest, MtpNormsWhatItProjectsAndWhatAttentionReads) {
  state_size_ = kHidden;
  const StepWords step = Write(FloatStates::kAll, kHidden);
  const std::vector<float> embedded = Normals(4 * kHidden);
  const std::vector<float> embedding_norm = Normals(kHidden);
  const std::vector<float> state_norm = Normals(kHidden);
  std::vector<Bf16> joined(4 * 2 * kHidden);
  grid_.Launch(JoinNormedStatesKernel{.step = step,
                                      .embedded = ConstSpanOf(embedded),
                                      .state_norm = ConstSpanOf(state_norm),
                                      .embedding_norm = ConstSpanOf(embedding_norm),
                                      .inputs = SpanOf(joined),
                                      .hidden_size = kHidden,
                                      .epsilon = 1e-5f},
               NormShape(4, kHidden));
  const std::vector<float> projected = Normals(4 * kHidden);
  std::vector<float> hidden(4 * kHidden);
  std::vector<Bf16> inputs(4 * kHidden);
  grid_.Launch(BeginHeadKernel{.step = step,
                               .projected = ConstSpanOf(projected),
                               .bias = {},
                               .embedded = ConstSpanOf(embedded),
                               .embedding_norm = {},
                               .state_norm = ConstSpanOf(state_norm),
                               .hidden = SpanOf(hidden),
                               .inputs = SpanOf(inputs),
                               .features = {},
                               .hidden_size = kHidden,
                               .epsilon = 1e-5f},
               NormShape(4, kHidden));
  for (uint32_t row = 0; row < 3; ++row) {
    const std::vector<double> of_state = NormOf(read_[row].data(), state_norm, 1e-5);
    const std::vector<double> of_embedding = NormOf(&embedded[row * kHidden], embedding_norm, 1e-5);
    const std::vector<double> of_stream = NormOf(&projected[row * kHidden], state_norm, 1e-5);
    for (uint32_t i = 0; i < kHidden; ++i) {
      const Bf16* const of_row = &joined[row * 2 * kHidden];
      ASSERT_NEAR(ToFloat(of_row[i]), of_state[i], std::abs(of_state[i]) / 250 + 1e-6);
      ASSERT_NEAR(ToFloat(of_row[kHidden + i]), of_embedding[i], std::abs(of_embedding[i]) / 250 + 1e-6);
      ASSERT_NEAR(ToFloat(inputs[row * kHidden + i]), of_stream[i], std::abs(of_stream[i]) / 250 + 1e-6);
      ASSERT_EQ(hidden[row * kHidden + i], projected[row * kHidden + i]);
    }
  }
}

TEST_F(HeadKernelsTest, MedusaAddsItsBlocks) {
  for (const uint32_t hidden : {7u, 300u}) {
    const std::vector<float> from = Normals(3 * hidden);
    const std::vector<float> product = Normals(3 * hidden);
    const std::vector<float> bias = Normals(hidden);
    std::vector<float> to(3 * hidden);
    std::vector<Bf16> inputs(3 * hidden);
    AddBlockKernel add;
    add.from = ConstSpanOf(from);
    add.to = SpanOf(to);
    add.inputs = SpanOf(inputs);
    add.hidden_size = hidden;
    grid_.Launch(add, GateShape(3, hidden));
    EXPECT_EQ(to, from);
    add.product = ConstSpanOf(product);
    add.bias = ConstSpanOf(bias);
    grid_.Launch(add, GateShape(3, hidden));
    for (uint32_t i = 0; i < 3 * hidden; ++i) {
      const double gate = double{product[i]} + bias[i % hidden];
      const double want = from[i] + gate / (1 + std::exp(-gate));
      ASSERT_NEAR(to[i], want, 1e-5) << i;
      ASSERT_EQ(inputs[i].bits, ToBf16(to[i]).bits);
    }
  }
}

}  // namespace
}  // namespace tandem

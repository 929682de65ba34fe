// Hidden states of rows that ask for them, from an engine on an emulated GPU.

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/engine/cuda/testing/small_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Every state there is, of each of `tokens`, computed `chunk` at a time: [layers + 2, hidden] each.
std::vector<Logits> AllStates(Engine* engine, const TokenIds& tokens, uint32_t chunk) {
  const std::vector<uint32_t> layers = AllFeatureLayers(*engine);
  std::vector<BlockId> blocks(engine->num_blocks());
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::vector<FeatureRequest> requests(tokens.size(), {.layers = layers, .final_norm = true});
  std::vector<Logits> states(tokens.size());
  for (uint32_t begin = 0; begin < tokens.size(); begin += chunk) {
    std::vector<StepRow> rows;
    for (uint32_t i = begin; i < std::min<size_t>(begin + chunk, tokens.size()); ++i) {
      states[i].resize(requests[i].num_states() * static_cast<size_t>(engine->config().hidden_size));
      requests[i].states = states[i].data();
      rows.push_back({.token = tokens[i],
                      .context = {.blocks = blocks, .num_committed = i + 1},
                      .features = &requests[i]});
    }
    const absl::Status status = engine->Step(rows);
    EXPECT_TRUE(status.ok()) << status;
  }
  return states;
}

class CudaFeatureWeights : public testing::TestWithParam<WeightType> {};

INSTANTIATE_TEST_SUITE_P(All, CudaFeatureWeights, testing::ValuesIn(kGpuProductTypes),
                         [](const auto& param_info) { return TestName(param_info.param); });

// Beside, before and behind rows that ask for other states, for logits or for nothing.
TEST_P(CudaFeatureWeights, DoNotDependOnARowsCompany) {
  ModelConfig config = SmallConfig();
  config.max_context = 200;
  config.num_layers = 3;
  const auto model = SmallModel(config);
  Reference plain(
      Open(*model, {.num_blocks = 13, .max_rows = 1, .weight_type = GetParam(), .use_graphs = false}));
  int num_states = 0;
  for (const bool use_graphs : {true, false}) {
    const auto engine =
        Open(*model, {.num_blocks = 60, .max_rows = 61, .weight_type = GetParam(), .use_graphs = use_graphs},
             {.seed = 5});
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->has_features());
    Simulation simulation(engine.get(), &plain, use_graphs ? 1 : 2);
    simulation.Run(kSanitized ? 3 : use_graphs ? 9 : 3);
    num_states += simulation.num_states_compared();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_states, kSanitized ? 10 : 80);
}

TEST_P(CudaFeatureWeights, AreTheCpuEnginesButForRoundings) {
  for (const bool has_biases : {false, true}) {
    ModelConfig config = SmallConfig();
    if (has_biases) {
      config.architecture = "LlamaForCausalLM";
      config.qk_norm = false;
      config.attention_bias = true;
      config.attention_output_bias = true;
      config.mlp_bias = true;
    }
    const auto model = SmallModel(config);
    const bool is_of_gpus = IsGpuWeightType(GetParam());
    auto reference = CreateCpuEngine(model, {.num_blocks = 7,
                                             .instruction_set = InstructionSet::kPortable,
                                             .weight_type = is_of_gpus ? WeightType::kAsInFile : GetParam()});
    ASSERT_TRUE(reference.ok()) << reference.status();
    const auto engine = Open(*model, {.num_blocks = 7, .max_rows = 40, .weight_type = GetParam()});
    const TokenIds tokens = SomeTokens(30, 131);
    const auto expected = AllStates(reference->get(), tokens, 30);
    const auto got = AllStates(engine.get(), tokens, 17);
    EXPECT_LT(RelativeError(got, expected), is_of_gpus ? 0.15 : 0.02);
    // Each by itself: none stands where another belongs.
    for (size_t begin = 0; begin < expected[0].size(); begin += 32) {
      const auto part = [&](const std::vector<Logits>& states) {
        std::vector<Logits> parts;
        for (const Logits& row : states) {
          const auto first = row.begin() + static_cast<std::ptrdiff_t>(begin);
          parts.emplace_back(first, first + 32);
        }
        return parts;
      };
      EXPECT_LT(RelativeError(part(got), part(expected)), is_of_gpus ? 0.25 : 0.03) << begin / 32;
    }
  }
}

// Of rows in a step of more than one tile of logits.
struct MixedStep {
  explicit MixedStep(uint32_t num_rows)
      : layers{{0, 2}, {1}, {}, {0, 1, 2}},
        requests(num_rows),
        states(num_rows),
        logits(num_rows, Logits(131)),
        tokens(num_rows, -1),
        choices(num_rows) {
    for (uint32_t i = 0; i < num_rows; ++i) {
      requests[i] = {.layers = layers[i % 4], .final_norm = i % 3 == 0 || layers[i % 4].empty()};
      states[i].resize(requests[i].num_states() * size_t{32});
      requests[i].states = states[i].data();
      choices[i] = {.sampling = &sampling, .position = i + 1, .token = &tokens[i]};
      rows.push_back({.token = static_cast<TokenId>(i * 7919 % 131),
                      .context = {.blocks = blocks, .num_committed = i + 1}});
    }
  }

  const SamplingParameters sampling = {.temperature = 0.7f, .top_p = 0.9f, .seed = 3};
  const std::vector<BlockId> blocks = {5, 4, 3, 2, 1, 0};
  const std::vector<std::vector<uint32_t>> layers;
  std::vector<FeatureRequest> requests;
  std::vector<Logits> states;
  std::vector<Logits> logits;
  TokenIds tokens;
  std::vector<SeededChoice> choices;
  std::vector<StepRow> rows;
};

// The stream behind the last layer is read for logits, choices and features alike, and each goes its way.
TEST(CudaFeaturesTest, ComeBesideChoicesAndLogits) {
  const auto model = SmallModel();
  const auto engine = Open(*model, {.num_blocks = 6, .max_rows = 90});
  MixedStep alone(90);
  for (uint32_t i = 0; i < 90; ++i) alone.rows[i].features = &alone.requests[i];
  ASSERT_TRUE(engine->Step(alone.rows).ok());
  MixedStep without(90);
  MixedStep with(90);
  for (uint32_t i = 0; i < 90; ++i) {
    for (MixedStep* step : {&without, &with}) {
      if (i % 5 < 2) step->rows[i].choice = &step->choices[i];
      if (i % 5 > 2) step->rows[i].logits = step->logits[i].data();
    }
    if (i % 7 != 0) with.rows[i].features = &with.requests[i];
  }
  ASSERT_TRUE(engine->Step(without.rows).ok());
  ASSERT_TRUE(engine->Step(with.rows).ok());
  EXPECT_EQ(with.tokens, without.tokens);
  for (uint32_t i = 0; i < 90; ++i) {
    EXPECT_TRUE(SameBits(with.logits[i], without.logits[i])) << i;
    const Logits expected = i % 7 != 0 ? alone.states[i] : Logits(alone.states[i].size());
    EXPECT_TRUE(SameBits(with.states[i], expected)) << i;
  }
}

// A step without features is what it is in an engine that never had any: the same launches, copies and bytes.
// With them, their bytes come down, in one download that nobody waits for by itself.
TEST(CudaFeaturesTest, CostNothingWhereNobodyAsks) {
  const auto model = SmallModel();
  const auto never = Open(*model, {.num_blocks = 6, .max_rows = 90});
  const auto engine = Open(*model, {.num_blocks = 6, .max_rows = 90, .feature_states = 2});
  for (const uint32_t num_rows : {1u, 20u, 90u}) {
    const auto traffic = [&](CudaEngine& of, bool asks) {
      MixedStep step(num_rows);
      for (uint32_t i = 0; i < num_rows; ++i) {
        step.rows[i].choice = &step.choices[i];
        if (asks && i % 2 == 0) step.rows[i].features = &step.requests[i];
      }
      const HostOps::Traffic before = OpsOf(of).traffic();
      EXPECT_TRUE(of.Step(step.rows).ok());
      return OpsOf(of).traffic() - before;
    };
    const HostOps::Traffic expected = traffic(*never, false);
    const HostOps::Traffic with = traffic(*engine, true);
    const HostOps::Traffic without = traffic(*engine, false);
    EXPECT_EQ(without.uploads, expected.uploads);
    EXPECT_EQ(without.bytes_up, expected.bytes_up);
    EXPECT_EQ(without.downloads, expected.downloads);
    EXPECT_EQ(without.bytes_down, expected.bytes_down);
    EXPECT_EQ(without.waits, expected.waits);
    EXPECT_EQ(without.launches, expected.launches);
    MixedStep step(num_rows);
    uint64_t num_states = 0;
    for (uint32_t i = 0; i < num_rows; i += 2) num_states += step.requests[i].num_states();
    EXPECT_EQ(with.uploads, 1u);
    EXPECT_EQ(with.downloads, 2u);
    EXPECT_EQ(with.bytes_down, num_rows * 4 + num_states * 32 * 4);
    EXPECT_EQ(with.waits, 1u);
    EXPECT_EQ(with.launches, expected.launches + 1);
    // Of states that norms have at hand.
    const std::vector<uint32_t> before_the_end = {0, 1};
    step.requests.assign(num_rows, {.layers = before_the_end, .states = step.states[0].data()});
    for (uint32_t i = 0; i < num_rows; ++i) {
      step.rows[i].choice = &step.choices[i];
      step.rows[i].features = &step.requests[i];
    }
    const HostOps::Traffic before = OpsOf(*engine).traffic();
    EXPECT_TRUE(engine->Step(step.rows).ok());
    EXPECT_EQ((OpsOf(*engine).traffic() - before).launches, expected.launches);
  }
}

// Whether rows want logits or not: the last layer is gone through for those that ask for what is behind it,
// and for no others.
TEST(CudaFeaturesTest, OfEarlierLayersLeaveTheLastOneOut) {
  const auto engine = Open(*SmallModel(), {.num_blocks = 6, .max_rows = 8});
  const auto launches = [&](std::vector<uint32_t> layers, bool final_norm) {
    Logits states(32 * (layers.size() + 1));
    const FeatureRequest request = {.layers = layers, .final_norm = final_norm, .states = states.data()};
    const std::vector<BlockId> blocks = {0};
    StepRow row = {.token = 3, .context = {.blocks = blocks, .num_committed = 1}};
    if (!layers.empty() || final_norm) row.features = &request;
    const HostOps::Traffic before = OpsOf(*engine).traffic();
    EXPECT_TRUE(engine->Step({&row, 1}).ok());
    return (OpsOf(*engine).traffic() - before).launches;
  };
  const uint64_t nothing = launches({}, false);
  EXPECT_EQ(launches({0, 1}, false), nothing);
  EXPECT_GT(launches({2}, false), nothing + 3);
  EXPECT_EQ(launches({}, true), launches({2}, false));
}

TEST(CudaFeaturesTest, GetMoreRoomWhenRowsAskForMore) {
  const auto model = SmallModel();
  const TokenIds tokens = SomeTokens(60, 131);
  const auto roomy = Open(*model, {.num_blocks = 6, .max_rows = 60, .feature_states = 4});
  const uint64_t before = OpsOf(*roomy).memory_used();
  const std::vector<Logits> expected = AllStates(roomy.get(), tokens, 60);
  EXPECT_EQ(OpsOf(*roomy).memory_used(), before);
  for (const uint32_t feature_states : {0u, 1u}) {
    const auto engine = Open(*model, {.num_blocks = 6, .max_rows = 60, .feature_states = feature_states});
    // Little at first, then more of the same.
    for (const uint32_t chunk : {3u, 60u, 7u}) {
      const std::vector<Logits> got = AllStates(engine.get(), tokens, chunk);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_TRUE(SameBits(got[i], expected[i])) << chunk << ", " << i;
    }
  }
}

TEST(CudaFeaturesTest, OfNoSuchLayerAreRefused) {
  const auto engine = Open(*SmallModel(), {.num_blocks = 6, .max_rows = 8});
  const std::vector<BlockId> blocks = {0};
  const auto refusal = [&](const FeatureRequest& request) {
    const StepRow row = {.token = 3, .context = {.blocks = blocks, .num_committed = 1}, .features = &request};
    const absl::Status status = engine->Step({&row, 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  Logits states(64);
  const std::vector<uint32_t> beyond = {3};
  const std::vector<uint32_t> backwards = {2, 1};
  EXPECT_THAT(refusal({.layers = beyond, .states = states.data()}), HasSubstr("expected 0 to 2"));
  EXPECT_THAT(refusal({.layers = backwards, .states = states.data()}), HasSubstr("in ascending order"));
  EXPECT_THAT(refusal({.final_norm = true}), HasSubstr("a place for it"));
}

}  // namespace
}  // namespace tandem

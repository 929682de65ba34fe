#include "common/engine/cpu/cpu_engine.h"

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/testing/random_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

RandomModelOptions SmallModel() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.hidden_size = 32;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  config.intermediate_size = 40;
  config.vocab_size = 131;
  config.max_context = 40;
  return {.config = config};
}

class CpuEngineTest : public testing::Test {
 protected:
  CpuEngineTest() : model_(MakeRandomModel(SmallModel())) {
    engine_ = CreateCpuEngine(model_, {.num_blocks = 4, .max_rows = 8, .num_threads = 2}).value();
  }

  // Computes `tokens` as the positions from 0 on in `blocks`, and returns the logits after the last.
  std::vector<float> Run(const TokenIds& tokens, const std::vector<BlockId>& blocks) {
    std::vector<float> logits(131);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const StepRow row = {.token = tokens[i],
                           .context = {.blocks = blocks, .num_committed = static_cast<uint32_t>(i + 1)},
                           .logits = i + 1 == tokens.size() ? logits.data() : nullptr};
      const absl::Status status = engine_->Step({row});
      EXPECT_TRUE(status.ok()) << status;
    }
    return logits;
  }

  std::shared_ptr<const Model> model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(CpuEngineTest, SaysWhatItIs) {
  EXPECT_EQ(engine_->num_blocks(), 4u);
  EXPECT_EQ(engine_->max_rows(), 8u);
  EXPECT_EQ(engine_->config().vocab_size, 131);
}

TEST_F(CpuEngineTest, OutlivesTheModelItWasMadeFrom) {
  const std::vector<float> before = Run({1, 2, 3}, {0});
  model_.reset();
  EXPECT_EQ(Run({1, 2, 3}, {1}), before);
}

TEST_F(CpuEngineTest, AnEmptyStepIsNothing) {
  EXPECT_TRUE(engine_->Step({}).ok());
  EXPECT_TRUE(engine_->CopyKv({}).ok());
}

TEST_F(CpuEngineTest, RefusesHostileRowsBeforeAnythingIsWritten) {
  const std::vector<float> expected = Run({1, 2, 3, 4}, {0});
  Run({1, 2, 3}, {0});
  const std::vector<BlockId> blocks = {0, 1, 2};
  const std::vector<BlockId> bad_blocks = {0, 4, 2};
  const std::vector<SlotId> tail = {63};
  const std::vector<SlotId> bad_tail = {64, 63};
  const StepRow good = {.token = 9, .context = {.blocks = blocks, .num_committed = 1}};
  const SamplingParameters sampling;
  TokenId chosen = 0;
  const SeededChoice choice = {.sampling = &sampling, .token = &chosen};
  std::vector<float> state(32);
  const std::vector<uint32_t> descending = {1, 0};
  const std::vector<uint32_t> beyond = {3};
  const FeatureRequest nothing = {.states = state.data()};
  const FeatureRequest nowhere = {.final_norm = true};
  const FeatureRequest not_ascending = {.layers = descending, .states = state.data()};
  const FeatureRequest no_such_layer = {.layers = beyond, .states = state.data()};
  struct Case {
    std::string message;
    std::function<void(StepRow*)> spoil;
  };
  const std::vector<Case> cases = {
      {"token -1", [&](StepRow* row) { row->token = -1; }},
      {"token 131", [&](StepRow* row) { row->token = 131; }},
      {"context of 0", [&](StepRow* row) { row->context.num_committed = 0; }},
      {"context of 41", [&](StepRow* row) { row->context.num_committed = 41; }},
      {"context of 4294967295", [&](StepRow* row) { row->context.num_committed = UINT32_MAX; }},
      {"context of 4294967296",
       [&](StepRow* row) { row->context = {.blocks = blocks, .num_committed = UINT32_MAX, .tail = tail}; }},
      {"need 1", [&](StepRow* row) { row->context.blocks = {}; }},
      {"need 2",
       [&](StepRow* row) {
         row->context = {.blocks = absl::MakeConstSpan(blocks).first(1), .num_committed = 17};
       }},
      {"block 4", [&](StepRow* row) { row->context = {.blocks = bad_blocks, .num_committed = 33}; }},
      {"slot 64", [&](StepRow* row) { row->context.tail = bad_tail; }},
      {"as does an earlier row", [&](StepRow* row) { row->context.num_committed = 1; }},
      {"gives logits only", [&](StepRow* row) { row->choice = &choice; }},
      {"one state at least", [&](StepRow* row) { row->features = &nothing; }},
      {"a place for it", [&](StepRow* row) { row->features = &nowhere; }},
      {"after 0 layers; expected 0 to 2 in ascending order",
       [&](StepRow* row) { row->features = &not_ascending; }},
      {"after 3 layers; expected 0 to 2", [&](StepRow* row) { row->features = &no_such_layer; }},
  };
  for (const Case& test_case : cases) {
    std::vector<StepRow> rows = {good, good};
    test_case.spoil(&rows[1]);
    const absl::Status status = engine_->Step(rows);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test_case.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test_case.message));
  }
  EXPECT_EQ(engine_->Step(std::vector<StepRow>(9, good)).code(), absl::StatusCode::kInvalidArgument);

  // The first row of each, which was in order, would have overwritten position 0.
  std::vector<float> logits(131);
  const StepRow next = {
      .token = 4, .context = {.blocks = blocks, .num_committed = 4}, .logits = logits.data()};
  ASSERT_TRUE(engine_->Step({next}).ok());
  EXPECT_EQ(logits, expected);
}

TEST_F(CpuEngineTest, CopiesInOrderAfterCheckingAll) {
  const std::vector<float> expected = Run({1, 2, 3}, {0});
  EXPECT_EQ(engine_->CopyKv({{.from = 0, .to = 20}, {.from = 64, .to = 1}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->CopyKv({{.from = 0, .to = 64}}).code(), absl::StatusCode::kInvalidArgument);
  // Position 0 by way of another slot, position 1 directly.
  ASSERT_TRUE(engine_->CopyKv({{.from = 0, .to = 63}, {.from = 63, .to = 32}, {.from = 1, .to = 33}}).ok());
  std::vector<float> logits(131);
  const std::vector<BlockId> blocks = {2};
  ASSERT_TRUE(
      engine_
          ->Step({StepRow{
              .token = 3, .context = {.blocks = blocks, .num_committed = 3}, .logits = logits.data()}})
          .ok());
  EXPECT_EQ(logits, expected);
}

TEST_F(CpuEngineTest, WritesTheLogitsThatAreWantedAndNoOthers) {
  const std::vector<float> expected = Run({1, 2}, {0});
  std::vector<float> logits(131 + 1, 12345.0f);
  const std::vector<BlockId> blocks = {1};
  const std::vector<BlockId> other = {2};
  const std::vector<StepRow> rows = {
      {.token = 7, .context = {.blocks = other, .num_committed = 1}},
      {.token = 1, .context = {.blocks = blocks, .num_committed = 1}},
      {.token = 2, .context = {.blocks = blocks, .num_committed = 2}, .logits = logits.data()},
      {.token = 8, .context = {.blocks = other, .num_committed = 2}},
  };
  ASSERT_TRUE(engine_->Step(rows).ok());
  EXPECT_EQ(logits.back(), 12345.0f);
  logits.pop_back();
  EXPECT_EQ(logits, expected);
}

// Rows that want logits, states before, at and behind the end, both or nothing, all in one step.
TEST_F(CpuEngineTest, WritesTheStatesThatAreWantedAndNoOthers) {
  ASSERT_TRUE(engine_->has_features());
  const std::vector<float> expected = Run({1, 2}, {0});
  const std::vector<uint32_t> all = {0, 1, 2};
  const std::vector<uint32_t> middle = {1};
  const std::vector<BlockId> blocks = {1};
  const std::vector<BlockId> other = {2};
  const auto step = [&](const FeatureRequest* first, const FeatureRequest* second, float* logits) {
    const std::vector<StepRow> rows = {
        {.token = 1, .context = {.blocks = blocks, .num_committed = 1}, .features = first},
        {.token = 7, .context = {.blocks = other, .num_committed = 1}},
        {.token = 2, .context = {.blocks = blocks, .num_committed = 2}, .logits = logits, .features = second},
    };
    const absl::Status status = engine_->Step(rows);
    ASSERT_TRUE(status.ok()) << status;
  };
  std::vector<float> states(4 * 32 + 1, 12345.0f);
  std::vector<float> normed(32 + 1, 12345.0f);
  std::vector<float> logits(131);
  const FeatureRequest everything = {.layers = all, .final_norm = true, .states = states.data()};
  const FeatureRequest last = {.final_norm = true, .states = normed.data()};
  step(&last, &everything, logits.data());
  EXPECT_EQ(logits, expected);
  EXPECT_EQ(states.back(), 12345.0f);
  EXPECT_EQ(normed.back(), 12345.0f);
  EXPECT_THAT(absl::MakeConstSpan(states).first(128), testing::Not(testing::Contains(12345.0f)));

  // The others' wishes change nothing, nor does going without logits.
  std::vector<float> again(4 * 32 + 1, 12345.0f);
  const FeatureRequest alone = {.layers = all, .final_norm = true, .states = again.data()};
  step(nullptr, &alone, nullptr);
  EXPECT_EQ(again, states);
  std::vector<float> one(32 + 1, 12345.0f);
  const FeatureRequest of_middle = {.layers = middle, .states = one.data()};
  step(&last, &of_middle, nullptr);
  EXPECT_EQ(absl::MakeConstSpan(one).first(32), absl::MakeConstSpan(states).subspan(32, 32));
  EXPECT_EQ(one.back(), 12345.0f);
}

TEST_F(CpuEngineTest, InputsArePreparedForMatricesOfAnyTypes) {
  using DType = TensorView::DType;
  for (const auto& [others, gate] : {std::pair(DType::kBF16, DType::kF32), {DType::kF32, DType::kBF16}}) {
    RandomModelOptions options = SmallModel();
    options.dtype = others;
    options.gate_dtype = gate;
    model_ = MakeRandomModel(options);
    engine_ =
        CreateCpuEngine(model_, {.num_blocks = 4, .instruction_set = InstructionSet::kPortable}).value();
    const std::vector<float> expected = Run({1, 2, 3, 4, 5}, {0});
    for (const InstructionSet each : SupportedInstructionSets()) {
      engine_ = CreateCpuEngine(model_, {.num_blocks = 4, .instruction_set = each}).value();
      const uint32_t input_bits =
          SelectKernels(each).value()->products[static_cast<size_t>(WeightFormat::kBf16)].input_bits;
      EXPECT_THAT(Run({1, 2, 3, 4, 5}, {0}), Pointwise(FloatNear(input_bits < 16 ? 0.1f : 1e-3f), expected))
          << InstructionSetName(each);
    }
  }
}

TEST_F(CpuEngineTest, UsesTheWholeContext) {
  const std::vector<BlockId> blocks = {3, 0, 2};
  TokenIds tokens(40, 5);
  const std::vector<float> full = Run(tokens, blocks);
  tokens[0] = 6;
  EXPECT_NE(Run(tokens, blocks), full);
}

TEST_F(CpuEngineTest, TakesAsManyBlocksAsFitTheBytes) {
  // 2 layers * 1 head * (16 + 16) floats * 16 tokens.
  constexpr uint64_t kBlockBytes = 2 * 32 * 4 * 16;
  auto engine = CreateCpuEngine(model_, {.kv_bytes = 5 * kBlockBytes + 1});
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->num_blocks(), 5u);
  EXPECT_EQ(CreateCpuEngine(model_, {.kv_bytes = kBlockBytes - 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CpuEngineTest, RefusesOptionsOutOfRange) {
  for (const CpuEngineOptions& options :
       {CpuEngineOptions{.num_blocks = UINT32_MAX}, CpuEngineOptions{.num_blocks = 4, .max_rows = 0},
        CpuEngineOptions{.num_blocks = 4, .max_rows = 1u << 20},
        CpuEngineOptions{.num_blocks = 4, .num_threads = 0}}) {
    EXPECT_EQ(CreateCpuEngine(model_, options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(CpuEngineTest, RefusesWeightTypesThatItCannotKeep) {
  for (const char* name : {"int3", "INT8", "q8_0", ""}) {
    const absl::Status status = ParseWeightType(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              absl::StrCat("weight type \"", name,
                           "\", expected one of auto, exact, bf16, int8, int4, w8a8, w4a8, fp8, fp8-tensor"));
  }
  for (const WeightType type : {WeightType::kFp8, WeightType::kFp8Tensor}) {
    const absl::Status status = CreateCpuEngine(model_, {.num_blocks = 4, .weight_type = type}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr(absl::StrCat("weight type ", WeightTypeName(type))));
    EXPECT_THAT(status.message(), testing::HasSubstr("expected auto, exact, bf16, int8, int4, w8a8 or w4a8"));
  }
  for (const WeightType type : {WeightType::kW8A8, WeightType::kW4A8}) {
    EXPECT_TRUE(ValidateCpuWeightType(type).ok());
    const absl::Status status = ValidateGpuWeightType(type);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                testing::HasSubstr(absl::StrCat("weight type ", WeightTypeName(type), " on a GPU")));
  }
  EXPECT_TRUE(ValidateGpuWeightType(WeightType::kInt8).ok());
  // Which would have to round what the files hold.
  RandomModelOptions options = SmallModel();
  options.dtype = TensorView::DType::kBF16;
  options.gate_dtype = TensorView::DType::kF32;
  const absl::Status status =
      CreateCpuEngine(MakeRandomModel(options), {.num_blocks = 4, .weight_type = WeightType::kBf16}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("f32"));
}

// Groups of 64 inputs and tiles of 32 outputs are ours: a model need not fit them.
TEST_F(CpuEngineTest, KeepsMatricesOfAnySizeInAnyType) {
  RandomModelOptions options = SmallModel();
  options.config.hidden_size = 33;
  options.config.intermediate_size = 1;
  options.config.vocab_size = 67;
  options.config.num_heads = 1;
  options.config.num_kv_heads = 1;
  options.config.head_dim = 2;
  model_ = MakeRandomModel(options);
  ASSERT_NE(model_, nullptr);
  for (WeightType weight_type : {WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4}) {
    auto engine = CreateCpuEngine(model_, {.num_blocks = 4, .weight_type = weight_type});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (const float logit : Run({1, 2, 3, 4, 5}, {0})) EXPECT_TRUE(std::isfinite(logit));
  }
}

TEST_F(CpuEngineTest, ReportsAllOfLoading) {
  for (WeightType weight_type : {WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4}) {
    LoadProgress::Options options;
    options.terminal = false;
    options.log = [](absl::string_view) {};
    LoadProgress progress("small", model_->weight_bytes(), options);
    ASSERT_TRUE(
        CreateCpuEngine(model_, {.num_blocks = 1, .weight_type = weight_type, .progress = &progress}).ok());
    EXPECT_EQ(progress.ratio(), 1.0);
  }
}

TEST_F(CpuEngineTest, LoadingStopsAtTheNextMatrix) {
  LoadProgress::Options options;
  options.terminal = false;
  options.log = [](absl::string_view) {};
  LoadProgress progress("small", model_->weight_bytes(), options);
  progress.StopWhen([] { return true; });
  EXPECT_TRUE(absl::IsCancelled(CreateCpuEngine(model_, {.num_blocks = 1, .progress = &progress}).status()));
  // The first tensor is a norm.
  EXPECT_EQ(progress.ratio(), static_cast<double>(model_->layers().front().input_norm.num_bytes()) /
                                  static_cast<double>(model_->weight_bytes()));

  // Asked for the last time it is as good as done, but it is not what was asked for.
  int asked = 0;
  LoadProgress all("small", model_->weight_bytes(), options);
  all.StopWhen([&] { return ++asked < 0; });
  ASSERT_TRUE(CreateCpuEngine(model_, {.num_blocks = 1, .progress = &all}).ok());
  LoadProgress last("small", model_->weight_bytes(), options);
  last.StopWhen([&asked] { return --asked == 0; });
  EXPECT_TRUE(absl::IsCancelled(CreateCpuEngine(model_, {.num_blocks = 1, .progress = &last}).status()));
}

}  // namespace
}  // namespace tandem

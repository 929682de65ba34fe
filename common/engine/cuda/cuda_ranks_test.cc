// Several emulated GPUs that share a model.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/engine/cuda/testing/small_engine.h"
#include "common/model/testing/family_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class CudaRanksWeights : public testing::TestWithParam<WeightType> {};

INSTANTIATE_TEST_SUITE_P(All, CudaRanksWeights, testing::ValuesIn(kGpuProductTypes),
                         [](const auto& param_info) { return TestName(param_info.param); });

// Calls `use` with the engine of rank 0 of emulated ranks.
void OnRanks(const Model& model, uint32_t world_size, const CudaEngine::Options& options,
             const std::function<void(CudaEngine*)>& use) {
  const auto ranks = std::make_shared<HostRanks>(world_size);
  std::vector<std::thread> followers;
  for (uint32_t rank = 1; rank < world_size; ++rank) {
    followers.emplace_back([&, rank] {
      const auto engine = Open(model, options, {.seed = rank, .rank = rank, .ranks = ranks});
      const absl::Status status = engine->Follow();
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  use(Open(model, options, {.ranks = ranks}).get());
  for (std::thread& follower : followers) follower.join();
}

std::vector<Logits> RunOnRanks(const Model& model, uint32_t world_size, const TokenIds& tokens,
                               uint32_t chunk, WeightType weight_type = WeightType::kAsInFile) {
  std::vector<Logits> logits;
  OnRanks(model, world_size, {.num_blocks = 4, .max_rows = 70, .weight_type = weight_type},
          [&](CudaEngine* engine) {
            logits = ComputeAll(engine, tokens, chunk);
            const std::vector<KvCopy> copies = {{.from = 3, .to = 40}};
            EXPECT_TRUE(engine->CopyKv(copies).ok());
          });
  return logits;
}

// Heads and an intermediate size that ranks can share without cutting a group of 64 inputs.
ModelConfig DivisibleConfig() {
  ModelConfig config = SmallConfig();
  config.num_heads = 12;
  config.head_dim = 16;
  config.intermediate_size = 200;
  return config;
}

TEST_P(CudaRanksWeights, GiveTheLogitsOfOneGpuButForTheOrderOfSums) {
  for (const bool tied : {false, true}) {
    ModelConfig config = DivisibleConfig();
    config.tied_embeddings = tied;
    const auto model = SmallModel(config);
    const auto alone = Open(*model, {.num_blocks = 4, .max_rows = 70, .weight_type = GetParam()});
    const TokenIds tokens = SomeTokens(20, 131);
    const auto expected = ComputeAll(alone.get(), tokens, 20);
    // 4 heads each make three groups.
    const auto got = RunOnRanks(*model, 3, tokens, 20, GetParam());
    EXPECT_LT(RelativeError(got, expected), 0.01);
    const auto one_by_one = RunOnRanks(*model, 3, tokens, 1, GetParam());
    for (size_t i = 0; i < tokens.size(); ++i) ASSERT_TRUE(SameBits(got[i], one_by_one[i])) << i;
  }
}

// With what each rank is started. All have to refuse it alike, so that none waits for another; returns how.
struct Started {
  std::shared_ptr<const Model> model;
  CudaEngine::Options options;
};
std::string Refusal(const std::vector<Started>& started) {
  const auto ranks = std::make_shared<HostRanks>(static_cast<uint32_t>(started.size()));
  std::vector<absl::Status> statuses(started.size());
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < started.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] =
          CudaEngine::Create(*started[rank].model, started[rank].options,
                             std::make_unique<HostOps>(HostOps::Options{.rank = rank, .ranks = ranks}))
              .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status, statuses[0]);
  }
  return std::string(statuses[0].message());
}

TEST(CudaRanksTest, HaveToBeStartedAlike) {
  const Started usual = {SmallModel(), {.num_blocks = 4, .max_rows = 70}};
  Started other = usual;
  other.options.weight_type = WeightType::kInt8;
  EXPECT_THAT(Refusal({usual, usual, other}), HasSubstr("rank 2 was started with another weight type"));
  EXPECT_THAT(Refusal({other, usual, usual}), HasSubstr("rank 1 was started with another weight type"));
  other = usual;
  other.options.num_blocks = 3;
  EXPECT_THAT(Refusal({usual, other}), HasSubstr("rank 1 was started with other room for keys and values"));
  other = usual;
  other.options.max_rows = 71;
  EXPECT_THAT(Refusal({usual, other}), HasSubstr("rank 1 was started with other steps"));
  other = usual;
  other.model = MakeRandomModel({.config = SmallConfig(), .dtype = TensorView::DType::kBF16, .seed = 5});
  EXPECT_THAT(Refusal({usual, other}), HasSubstr("rank 1 was started with another model"));
}

TEST(CudaRanksTest, DoNotCutGroupsOfWeights) {
  const auto refusal = [](const ModelConfig& config, uint32_t world_size) {
    const Started started = {SmallModel(config), {.num_blocks = 4, .weight_type = WeightType::kInt8}};
    return Refusal(std::vector<Started>(world_size, started));
  };
  EXPECT_THAT(refusal(DivisibleConfig(), 2), HasSubstr("rank 1 of 2 would begin at head 6 of 16, input 96"));
  ModelConfig config = DivisibleConfig();
  config.intermediate_size = 128;
  EXPECT_THAT(refusal(config, 3), HasSubstr("an intermediate size of 128"));
}

// Floats have scales of whole outputs or matrices, those that all ranks would find.
TEST(CudaRanksTest, DivideFloatsAnywhere) {
  const auto model = SmallModel(DivisibleConfig());
  const TokenIds tokens = SomeTokens(20, 131);
  for (const WeightType weight_type : {WeightType::kFp8, WeightType::kFp8Tensor}) {
    const auto alone = Open(*model, {.num_blocks = 4, .max_rows = 70, .weight_type = weight_type});
    const auto expected = ComputeAll(alone.get(), tokens, 20);
    EXPECT_LT(RelativeError(RunOnRanks(*model, 2, tokens, 20, weight_type), expected), 0.01);
  }
}

TEST(CudaRanksTest, GiveTheLogitsOfOneGpuButForTheOrderOfSums) {
  const auto model = SmallModel();
  const auto alone = Open(*model, {.num_blocks = 4, .max_rows = 70});
  const TokenIds tokens = SomeTokens(20, 131);
  const auto expected = ComputeAll(alone.get(), tokens, 20);
  // 2 KV heads of 3 query heads each; 4 units of the intermediate size: 3 ranks cut a KV head in two.
  for (uint32_t world_size : {2u, 3u, 4u}) {
    const auto got = RunOnRanks(*model, world_size, tokens, 20);
    EXPECT_LT(RelativeError(got, expected), 0.01) << world_size;
    const auto one_by_one = RunOnRanks(*model, world_size, tokens, 1);
    for (size_t i = 0; i < tokens.size(); ++i) ASSERT_TRUE(SameBits(got[i], one_by_one[i])) << world_size;
  }
}

// Every rank has a part of each expert, and all take the same ones. With a shared expert, and without.
TEST(CudaRanksTest, ShareExperts) {
  for (const char* const name : {"mixtral", "qwen2-moe"}) {
    const auto model = MakeFamilyModel(name, TensorView::DType::kBF16);
    ASSERT_NE(model, nullptr);
    const TokenIds tokens = SomeTokens(20, model->config().vocab_size);
    for (const WeightType weight_type : {WeightType::kAsInFile, WeightType::kFp8}) {
      const auto alone = Open(*model, {.num_blocks = 4, .max_rows = 70, .weight_type = weight_type});
      const auto expected = ComputeAll(alone.get(), tokens, 20);
      const auto got = RunOnRanks(*model, 2, tokens, 20, weight_type);
      EXPECT_LT(RelativeError(got, expected), 0.01) << name;
      const auto one_by_one = RunOnRanks(*model, 2, tokens, 1, weight_type);
      for (size_t i = 0; i < tokens.size(); ++i) ASSERT_TRUE(SameBits(got[i], one_by_one[i])) << name;
    }
    // 48 or 24 intermediate outputs are less than a group of 64 for each.
    const Started started = {model, {.num_blocks = 4, .weight_type = WeightType::kInt8}};
    EXPECT_THAT(Refusal({started, started}), HasSubstr(" have a part for each of 2 ranks"));
  }
}

// The vocabulary is divided; what is chosen from is whole.
TEST(CudaRanksTest, ChooseWhatTheTargetSamplerChooses) {
  const auto model = SmallModel();
  for (uint32_t world_size : {2u, 3u, 4u}) {
    OnRanks(*model, world_size, {.num_blocks = 18, .max_rows = 80}, [&](CudaEngine* engine) {
      ChoiceProbe probe(engine, 3, world_size);
      for (const uint32_t most_nodes : {4u, 24u}) probe.ExpectTheSamplersChoices(most_nodes);
      EXPECT_GT(probe.num_choices(), 10u);
    });
  }
}

// Every rank has the whole stream; what rank 0 has of it is handed out, beside choices from all ranks'
// logits.
TEST_P(CudaRanksWeights, GiveTheFeaturesOfOneGpuButForTheOrderOfSums) {
  const auto model = SmallModel(DivisibleConfig());
  const TokenIds tokens = SomeTokens(20, 131);
  const std::vector<uint32_t> layers = {0, 1, 2};
  const SamplingParameters sampling = {.temperature = 0.9f, .seed = 4};
  const std::vector<BlockId> blocks = {0, 1, 2, 3};
  struct Result {
    std::vector<Logits> states;
    TokenIds chosen;
  };
  const auto compute = [&](CudaEngine* engine, uint32_t chunk, bool chooses) {
    Result result{std::vector<Logits>(20, Logits(size_t{4} * 32)), TokenIds(20, -1)};
    for (uint32_t begin = 0; begin < 20; begin += chunk) {
      std::vector<FeatureRequest> requests(20);
      std::vector<SeededChoice> choices(20);
      std::vector<StepRow> rows;
      for (uint32_t i = begin; i < std::min(begin + chunk, 20u); ++i) {
        requests[i] = {.layers = layers, .final_norm = true, .states = result.states[i].data()};
        choices[i] = {.sampling = &sampling, .position = i + 1, .token = &result.chosen[i]};
        rows.push_back({.token = tokens[i],
                        .context = {.blocks = blocks, .num_committed = i + 1},
                        .choice = chooses && i % 2 == 0 ? &choices[i] : nullptr,
                        .features = &requests[i]});
      }
      const absl::Status status = engine->Step(rows);
      EXPECT_TRUE(status.ok()) << status;
    }
    return result;
  };
  const CudaEngine::Options options = {.num_blocks = 4, .max_rows = 70, .weight_type = GetParam()};
  const auto alone = Open(*model, options);
  const std::vector<Logits> expected = compute(alone.get(), 20, false).states;
  // 12 heads of 16: with two ranks or four, the second's part would begin within a group of 64 inputs.
  const bool has_groups = GetParam() == WeightType::kInt8 || GetParam() == WeightType::kInt4;
  for (const uint32_t world_size : {2u, 3u, 4u}) {
    if (has_groups && world_size != 3) continue;
    OnRanks(*model, world_size, options, [&](CudaEngine* engine) {
      const Result together = compute(engine, 20, true);
      EXPECT_LT(RelativeError(together.states, expected), 0.01) << world_size;
      const Result one_by_one = compute(engine, 1, true);
      const Result without_choices = compute(engine, 7, false);
      EXPECT_EQ(together.chosen, one_by_one.chosen);
      for (size_t i = 0; i < 20; ++i) {
        ASSERT_TRUE(SameBits(together.states[i], one_by_one.states[i])) << world_size << ", " << i;
        ASSERT_TRUE(SameBits(together.states[i], without_choices.states[i])) << world_size << ", " << i;
      }
    });
  }
}

}  // namespace
}  // namespace tandem

// What needs a GPU, or at least the module that talks to one. Tests that need a GPU skip, saying why, where
// there is none.

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/engine/cpu/testing/random_model.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/engine/cuda/create_cuda_engine.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/cuda/testing/engine_probe.h"
#include "common/engine/cuda/testing/host_ops.h"
#include "common/speculation/target_sampler.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

#define TANDEM_NEEDS_GPU()                                                                \
  if (const auto opened = OpenCudaDevice({}); !opened.ok()) {                             \
    /* Anything else is a failure of ours, not a machine without a GPU. */                \
    ASSERT_EQ(opened.status().code(), absl::StatusCode::kUnavailable) << opened.status(); \
    GTEST_SKIP() << "needs a GPU: " << opened.status();                                   \
  }

std::shared_ptr<const Model> SomeModel() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.hidden_size = 256;
  config.num_layers = 3;
  config.num_heads = 12;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.intermediate_size = 704;
  config.vocab_size = 4099;
  config.max_context = 1500;
  config.qk_norm = true;
  return MakeRandomModel({.config = config, .dtype = TensorView::DType::kBF16});
}

// With a shared expert, a softmax over all, and a dense layer.
std::shared_ptr<const Model> SomeMixture() {
  ModelConfig config;
  config.architecture = "Qwen2MoeForCausalLM";
  config.hidden_size = 256;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.intermediate_size = 704;
  config.vocab_size = 4099;
  config.max_context = 1500;
  config.block.experts = {.num_experts = 24,
                          .num_chosen = 4,
                          .intermediate_size = 192,
                          .scores_add_up_to_one = false,
                          .shared_size = 320};
  config.block.layers.resize(3);
  config.block.layers[0].is_sparse = false;
  const auto model = Model::Random(config, 1);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : nullptr;
}

std::unique_ptr<CudaEngine> OpenOnGpu(const Model& model, CudaEngine::Options options) {
  auto engine = CreateCudaEngine(model, {}, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

// Without a GPU too: what the module brings along takes nothing from the stacks of other threads. Those of an
// HTTP server that this project uses have 100 KB.
TEST(CudaModuleTest, LeavesThreadsTheirStacks) {
  const absl::Status loaded = PrepareDevice({.is_cuda = true});
  ASSERT_TRUE(loaded.ok()) << loaded;
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 100 << 10), 0);
  pthread_t thread;
  const auto body = [](void* /*argument*/) -> void* { return nullptr; };
  ASSERT_EQ(pthread_create(&thread, &attributes, body, nullptr), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_EQ(pthread_attr_destroy(&attributes), 0);
}

TEST(GpuEngineTest, GivesTheGoldenLogits) {
  TANDEM_NEEDS_GPU();
  for (const char* name : {"tandem-target-15m", "tandem-draft-general-1m"}) {
    const auto model = Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/", name));
    ASSERT_TRUE(model.ok()) << model.status();
    const auto text = ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/", name, ".json"), 16 << 20);
    ASSERT_TRUE(text.ok()) << text.status();
    const auto engine = OpenOnGpu(**model, {.num_blocks = 64});
    ASSERT_NE(engine, nullptr);
    const nlohmann::json golden = nlohmann::json::parse(*text);
    ASSERT_FALSE(golden["cases"].empty());
    for (const nlohmann::json& test_case : golden["cases"]) {
      const auto prompt = test_case["prompt_ids"].get<TokenIds>();
      const Logits logits = ComputeAll(engine.get(), prompt, 512).back();
      const auto top_ids = test_case["top8_ids"].get<TokenIds>();
      const auto top_logits = test_case["top8_logits"].get<std::vector<float>>();
      for (size_t i = 0; i < top_ids.size(); ++i) {
        EXPECT_NEAR(logits[static_cast<size_t>(top_ids[i])], top_logits[i], 0.1) << test_case["label"];
      }
    }
  }
}

class GpuEngineWeights : public testing::TestWithParam<WeightType> {};

INSTANTIATE_TEST_SUITE_P(All, GpuEngineWeights,
                         testing::Values(WeightType::kAsInFile, WeightType::kInt8, WeightType::kInt4,
                                         WeightType::kFp8),
                         [](const auto& param_info) {
                           return std::string(WeightTypeName(param_info.param));
                         });

// Law 1 where it can break: prompts in chunks of any size, single launches or graphs, trees beside other
// sessions.
TEST_P(GpuEngineWeights, RowsDoNotDependOnTheirCompany) {
  TANDEM_NEEDS_GPU();
  const auto model = SomeModel();
  const TokenIds tokens = SomeTokens(700, 4099);
  const auto plain =
      OpenOnGpu(*model, {.num_blocks = 90, .max_rows = 1, .weight_type = GetParam(), .use_graphs = false});
  ASSERT_NE(plain, nullptr);
  const auto expected = ComputeAll(plain.get(), tokens, 1);
  const auto engine = OpenOnGpu(*model, {.num_blocks = 90, .max_rows = 512, .weight_type = GetParam()});
  ASSERT_NE(engine, nullptr);
  for (uint32_t chunk : {512u, 64u, 33u, 7u}) {
    const auto got = ComputeAll(engine.get(), tokens, chunk);
    for (size_t i = 0; i < tokens.size(); ++i)
      ASSERT_TRUE(SameBits(got[i], expected[i])) << chunk << ", " << i;
  }
  // Chains as tails, in the company of others and at any place of the tile.
  std::vector<BlockId> blocks(60);
  for (BlockId block = 0; block < blocks.size(); ++block) blocks[block] = block;
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<SlotId>> tails;
    std::vector<StepRow> rows;
    std::vector<size_t> positions;
    std::vector<Logits> logits(64, Logits(4099));
    for (uint32_t chain = 0; chain < 8; ++chain) {
      const auto base = static_cast<uint32_t>(random() % 690);
      for (uint32_t depth = 0; depth < 1 + random() % 8; ++depth) {
        std::vector<SlotId> tail;
        for (uint32_t i = 0; i <= depth; ++i) tail.push_back((60 + chain) * 16 + i);
        tails.push_back(std::move(tail));
        positions.push_back(base + depth);
      }
    }
    size_t row = 0;
    for (const std::vector<SlotId>& tail : tails) {
      const size_t position = positions[row];
      rows.push_back({.token = tokens[position],
                      .context = {.blocks = blocks,
                                  .num_committed = static_cast<uint32_t>(position + 1 - tail.size()),
                                  .tail = tail},
                      .logits = logits[row].data()});
      ++row;
    }
    ASSERT_TRUE(engine->Step(rows).ok());
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(SameBits(logits[i], expected[positions[i]])) << "round " << round << ", row " << i;
    }
  }
}

TEST_P(GpuEngineWeights, GraphsGiveTheBitsOfSingleLaunches) {
  TANDEM_NEEDS_GPU();
  const auto model = SomeModel();
  const TokenIds tokens = SomeTokens(300, 4099);
  const auto eager = OpenOnGpu(*model, {.num_blocks = 90, .weight_type = GetParam(), .use_graphs = false});
  const auto graphs = OpenOnGpu(*model, {.num_blocks = 90, .weight_type = GetParam()});
  ASSERT_TRUE(eager != nullptr && graphs != nullptr);
  for (uint32_t chunk : {300u, 50u, 3u}) {
    const auto expected = ComputeAll(eager.get(), tokens, chunk);
    const auto got = ComputeAll(graphs.get(), tokens, chunk);
    for (size_t i = 0; i < tokens.size(); ++i)
      ASSERT_TRUE(SameBits(got[i], expected[i])) << chunk << ", " << i;
  }
}

// Matrix units add up in an order of their own, in products and in attention. All other bits are equal.
TEST_P(GpuEngineWeights, IsCloseToItsEmulation) {
  TANDEM_NEEDS_GPU();
  const auto model = SomeModel();
  const TokenIds tokens = SomeTokens(20, 4099);
  const auto engine = OpenOnGpu(*model, {.num_blocks = 4, .weight_type = GetParam()});
  auto emulated = CudaEngine::Create(*model, {.num_blocks = 4, .max_rows = 64, .weight_type = GetParam()},
                                     std::make_unique<HostOps>(HostOps::Options{}));
  ASSERT_TRUE(engine != nullptr && emulated.ok());
  const auto got = ComputeAll(engine.get(), tokens, 20);
  const auto expected = ComputeAll(emulated->get(), tokens, 20);
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t j = 0; j < got[i].size(); ++j) {
      error += std::pow(got[i][j] - expected[i][j], 2.0);
      size += std::pow(expected[i][j], 2.0);
    }
  }
  EXPECT_LT(std::sqrt(error / size), 0.01);
}

// Grouped products, whose items change with the company of a row.
TEST_P(GpuEngineWeights, MixturesDoNotDependOnTheirCompanyAndAreCloseToTheirEmulation) {
  const auto model = SomeMixture();
  ASSERT_NE(model, nullptr);
  TANDEM_NEEDS_GPU();
  const TokenIds tokens = SomeTokens(200, 4099);
  const auto plain =
      OpenOnGpu(*model, {.num_blocks = 16, .max_rows = 1, .weight_type = GetParam(), .use_graphs = false});
  const auto engine = OpenOnGpu(*model, {.num_blocks = 16, .max_rows = 512, .weight_type = GetParam()});
  ASSERT_TRUE(plain != nullptr && engine != nullptr);
  const auto expected = ComputeAll(plain.get(), tokens, 1);
  for (uint32_t chunk : {200u, 64u, 33u, 7u}) {
    const auto got = ComputeAll(engine.get(), tokens, chunk);
    for (size_t i = 0; i < tokens.size(); ++i)
      ASSERT_TRUE(SameBits(got[i], expected[i])) << chunk << ", " << i;
  }
  auto emulated = CudaEngine::Create(*model, {.num_blocks = 4, .max_rows = 64, .weight_type = GetParam()},
                                     std::make_unique<HostOps>(HostOps::Options{}));
  ASSERT_TRUE(emulated.ok()) << emulated.status();
  const TokenIds first(tokens.begin(), tokens.begin() + 20);
  const auto close = ComputeAll(emulated->get(), first, 20);
  for (size_t i = 0; i < close.size(); ++i) {
    double error = 0;
    double size = 0;
    for (size_t j = 0; j < close[i].size(); ++j) {
      error += std::pow(close[i][j] - expected[i][j], 2.0);
      size += std::pow(expected[i][j], 2.0);
    }
    EXPECT_LT(std::sqrt(error / size), 0.05) << i;
  }
}

// With weights as integers, products have bits of their own in neither. A row without a context has the value
// of its own token alone, whatever the order in which matrix units add up.
TEST(GpuEngineTest, GivesTheBitsOfItsEmulationWithWeightsAsIntegers) {
  TANDEM_NEEDS_GPU();
  const auto model = SomeModel();
  const TokenIds tokens = SomeTokens(20, 4099);
  for (const WeightType weight_type : {WeightType::kInt8, WeightType::kInt4}) {
    const auto engine = OpenOnGpu(*model, {.num_blocks = 4, .weight_type = weight_type});
    auto emulated = CudaEngine::Create(*model, {.num_blocks = 4, .max_rows = 64, .weight_type = weight_type},
                                       std::make_unique<HostOps>(HostOps::Options{}));
    ASSERT_TRUE(engine != nullptr && emulated.ok());
    for (const TokenId token : tokens) {
      const auto got = ComputeAll(engine.get(), {token}, 1);
      const auto expected = ComputeAll(emulated->get(), {token}, 1);
      ASSERT_TRUE(SameBits(got[0], expected[0])) << token;
    }
  }
}

// Features of a language model's rows, and heads that read such, in random batches.
TEST_P(GpuEngineWeights, FeaturesAndHeadsDoNotDependOnTheirCompany) {
  TANDEM_NEEDS_GPU();
  for (const auto& options : {LlamaModel(), EagleModel(), Eagle3Model(), MtpModel()}) {
    const auto model = MakeRandomModel(options);
    ASSERT_NE(model, nullptr);
    auto plain =
        OpenOnGpu(*model, {.num_blocks = 48, .max_rows = 1, .weight_type = GetParam(), .use_graphs = false});
    ASSERT_NE(plain, nullptr);
    Reference reference(std::move(plain));
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto engine = OpenOnGpu(*model, {.num_blocks = 60, .max_rows = 61, .weight_type = GetParam()});
      ASSERT_NE(engine, nullptr);
      Simulation simulation(engine.get(), &reference, seed);
      simulation.Run(20);
      EXPECT_GT(simulation.num_compared(), 50);
      EXPECT_GT(simulation.num_states_compared(), 50);
      if (HasFailure()) return;
    }
  }
}

// A down projection whose sums are computed in four parts, for one row and for many.
TEST(GpuEngineTest, LongSumsDoNotDependOnTheNumberOfRows) {
  TANDEM_NEEDS_GPU();
  ModelConfig config = SomeModel()->config();
  config.num_layers = 1;
  config.intermediate_size = 16384;
  const auto model = MakeRandomModel({.config = config, .dtype = TensorView::DType::kBF16});
  ASSERT_NE(model, nullptr);
  const TokenIds tokens = SomeTokens(600, 4099);
  const auto plain = OpenOnGpu(*model, {.num_blocks = 40, .max_rows = 1, .use_graphs = false});
  const auto engine = OpenOnGpu(*model, {.num_blocks = 40, .max_rows = 600});
  auto emulated = CudaEngine::Create(*model, {.num_blocks = 4, .max_rows = 64},
                                     std::make_unique<HostOps>(HostOps::Options{}));
  ASSERT_TRUE(plain != nullptr && engine != nullptr && emulated.ok());
  const auto expected = ComputeAll(plain.get(), tokens, 1);
  for (const uint32_t chunk : {600u, 512u, 300u, 128u, 64u}) {
    const auto got = ComputeAll(engine.get(), tokens, chunk);
    for (size_t i = 0; i < tokens.size(); ++i)
      ASSERT_TRUE(SameBits(got[i], expected[i])) << chunk << ", " << i;
  }
  const auto close = ComputeAll(emulated->get(), TokenIds(tokens.begin(), tokens.begin() + 8), 8);
  for (size_t i = 0; i < close.size(); ++i) {
    for (size_t j = 0; j < close[i].size(); ++j) {
      ASSERT_NEAR(close[i][j], expected[i][j], 0.05 * (1 + std::abs(close[i][j]))) << i << ", " << j;
    }
  }
}

// A lack of memory concerns the allocation that meets it, and no launch after it.
TEST(GpuEngineTest, LaunchesAfterALackOfMemory) {
  TANDEM_NEEDS_GPU();
  auto opened = OpenCudaDevice({});
  ASSERT_TRUE(opened.ok()) << opened.status();
  DeviceOps& ops = **opened;
  EXPECT_EQ(ops.AllocateBlock(uint64_t{1} << 46, "test").status().code(),
            absl::StatusCode::kResourceExhausted);
  const auto numbers = ops.Allocate<float>(8, "test");
  ASSERT_TRUE(numbers.ok());
  const AddPartsKernel add = {
      .parts = numbers->Part(0, 4), .outputs = numbers->Part(4, 4), .num_parts = 1, .size = 4};
  EXPECT_TRUE(ops.Launch(add, AddPartsShape(4)).ok());
  EXPECT_TRUE(ops.Synchronize().ok());
}

// Law 2: the same token as on the processor, always, for vocabularies of any size.
TEST(GpuEngineTest, ChoosesWhatTheTargetSamplerChooses) {
  TANDEM_NEEDS_GPU();
  std::mt19937_64 random(4);
  auto opened = OpenCudaDevice({});
  ASSERT_TRUE(opened.ok()) << opened.status();
  DeviceOps& ops = **opened;
  const std::vector<BlockId> blocks = {0, 1, 2};
  for (const int32_t vocab : {1, 77, 32000, 151937}) {
    constexpr uint32_t kRows = 40;
    const auto width = static_cast<size_t>(vocab);
    std::vector<SamplingParameters> samplings(kRows);
    std::vector<TargetSampler> samplers;
    std::vector<std::vector<TokenCount>> counts(kRows);
    std::vector<SeededChoice> choices(kRows);
    std::vector<StepRow> rows;
    const TokenIds history = SomeTokens(30, vocab);
    TokenId nowhere = 0;
    Logits logits(kRows * width);
    for (float& logit : logits) logit = 4 * std::normal_distribution<float>()(random);
    for (uint32_t i = 0; i < kRows; ++i) {
      SamplingParameters& sampling = samplings[i];
      sampling.temperature = i % 5 == 0 ? 0.0f : 0.3f * static_cast<float>(1 + i % 4);
      sampling.top_k = i % 3 == 0 ? 1 + i : 0;
      sampling.top_p = i % 2 == 0 ? 0.9f : 1.0f;
      sampling.min_p = i % 7 == 0 ? 0.05f : 0.0f;
      sampling.repetition_penalty = i % 4 == 0 ? 1.2f : 1.0f;
      sampling.frequency_penalty = i % 6 == 0 ? 0.4f : 0.0f;
      sampling.logit_bias = {{0, 1.5f}};
      sampling.seed = random();
      samplers.emplace_back(sampling, vocab, history);
      for (const TokenId token : history) samplers[i].Append(token);
      counts[i] = samplers[i].Counts();
      choices[i] = {.sampling = &sampling, .position = 900 + i, .counts = counts[i], .token = &nowhere};
      rows.push_back({.context = {.blocks = blocks, .num_committed = i + 1}, .choice = &choices[i]});
    }
    std::vector<uint32_t> words;
    WriteStepWords(rows, {.max_rows = kRows}, &words);
    const auto device_words = ops.Allocate<uint32_t>(words.size(), "test");
    const auto device_logits = ops.Allocate<float>(logits.size(), "test");
    const auto device_chosen = ops.Allocate<uint32_t>(kRows, "test");
    ASSERT_TRUE(device_words.ok() && device_logits.ok() && device_chosen.ok());
    ASSERT_TRUE(ops.Upload(device_words->data, words.data(), words.size() * sizeof(uint32_t)).ok());
    ASSERT_TRUE(ops.Upload(device_logits->data, logits.data(), logits.size() * sizeof(float)).ok());
    const ChoiceKernel kernel = {StepWords{*device_words, kRows}, *device_logits, *device_chosen, 0,
                                 static_cast<uint32_t>(vocab)};
    ASSERT_TRUE(ops.Launch(kernel, ChoiceShape(kRows, static_cast<uint32_t>(vocab))).ok());
    std::vector<uint32_t> chosen(kRows);
    ASSERT_TRUE(ops.Download(chosen.data(), device_chosen->data, kRows * sizeof(uint32_t)).ok());
    ASSERT_TRUE(ops.Synchronize().ok());
    for (uint32_t i = 0; i < kRows; ++i) {
      const auto own = absl::MakeSpan(logits).subspan(i * width, width);
      ASSERT_EQ(static_cast<TokenId>(chosen[i]), samplers[i].Choose(own, 900 + i).token)
          << vocab << ", row " << i;
    }
  }
}

// And from the engine's own logits, in steps where other rows ask for these.
TEST(GpuEngineTest, ChoosesInStepsWhatTheTargetSamplerChooses) {
  TANDEM_NEEDS_GPU();
  const auto model = SomeModel();
  for (const bool use_graphs : {false, true}) {
    const auto engine = OpenOnGpu(*model, {.num_blocks = 60, .max_rows = 400, .use_graphs = use_graphs});
    ASSERT_NE(engine, nullptr);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      ChoiceProbe probe(engine.get(), 10, seed);
      for (const uint32_t most_nodes : {0u, 7u, 30u}) probe.ExpectTheSamplersChoices(most_nodes);
      EXPECT_GT(probe.num_choices(), 0u);
    }
  }
}

TEST(GpuEngineTest, KeepsToItsMemoryLimit) {
  TANDEM_NEEDS_GPU();
  const auto model = SomeModel();
  EXPECT_EQ(
      CreateCudaEngine(*model, {.memory_limit = uint64_t{40} << 20}, {.num_blocks = 60000}).status().code(),
      absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(OpenCudaDevice({.index = 1000}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem

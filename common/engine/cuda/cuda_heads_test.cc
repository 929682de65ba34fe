// Draft heads with layers on an emulated GPU: the same rows as on the CPU.

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/engine/cuda/testing/golden_heads.h"
#include "common/engine/cuda/testing/small_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// As in vLLM's speculators, with a norm over each query and key head.
RandomModelOptions NormedEagle3Model() {
  RandomModelOptions options = Eagle3Model();
  options.config.architecture = "Qwen3ForCausalLM";
  options.config.qk_norm = true;
  options.config.head->norm_before_residual = true;
  // An odd number of inputs: the last has a word to itself.
  options.config.head->target_hidden_size = 33;
  options.config.head->state_norms = HeadConfig::StateNorms::kTogether;
  return options;
}

struct HeadCase {
  const char* name;
  RandomModelOptions (*options)();
  WeightType weight_type;
};

// In failures.
void PrintTo(const HeadCase& head, std::ostream* stream) {
  *stream << head.name;
}

class CudaHeads : public testing::TestWithParam<HeadCase> {};

INSTANTIATE_TEST_SUITE_P(All, CudaHeads,
                         testing::Values(HeadCase{"Eagle", EagleModel, WeightType::kAsInFile},
                                         HeadCase{"EagleInt8", EagleModel, WeightType::kInt8},
                                         HeadCase{"Eagle3", Eagle3Model, WeightType::kAsInFile},
                                         HeadCase{"Eagle3Int8", Eagle3Model, WeightType::kInt8},
                                         HeadCase{"Eagle3Int4", Eagle3Model, WeightType::kInt4},
                                         HeadCase{"Eagle3Fp8", Eagle3Model, WeightType::kFp8},
                                         HeadCase{"DeepEagle3", DeepEagle3Model, WeightType::kAsInFile},
                                         HeadCase{"DeepEagle3Int8", DeepEagle3Model, WeightType::kInt8},
                                         HeadCase{"Unprojected", UnprojectedEagle3Model,
                                                  WeightType::kAsInFile},
                                         HeadCase{"Mtp", MtpModel, WeightType::kAsInFile},
                                         HeadCase{"MtpInt8", MtpModel, WeightType::kInt8},
                                         HeadCase{"NormedEagle3", NormedEagle3Model, WeightType::kAsInFile},
                                         HeadCase{"NormedEagle3Int4", NormedEagle3Model, WeightType::kInt4}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// Law 1 over rows that read the target's states beside rows that read their own.
TEST_P(CudaHeads, RowsDoNotDependOnTheirCompany) {
  const auto& [name, options, weight_type] = GetParam();
  const auto model = MakeRandomModel(options());
  ASSERT_NE(model, nullptr);
  Reference plain(
      Open(*model, {.num_blocks = 16, .max_rows = 1, .weight_type = weight_type, .use_graphs = false}));
  const auto engine =
      Open(*model, {.num_blocks = 60, .max_rows = 61, .weight_type = weight_type}, {.seed = 3});
  ASSERT_NE(engine, nullptr);
  Simulation simulation(engine.get(), &plain, 4);
  simulation.Run(kSanitized ? 3 : 9);
  EXPECT_GT(simulation.num_compared(), kSanitized ? 5 : 50);
  EXPECT_GT(simulation.num_states_compared(), kSanitized ? 5 : 50);
  EXPECT_GT(OpsOf(*engine).num_replays(), 0u);
}

// What rows of a prompt give: logits of the tokens that the head drafts, and the states after no layer, after
// its one and behind the last norm.
struct HeadRows {
  std::vector<Logits> logits;
  std::vector<Logits> states;
  std::vector<std::vector<bool>> drafts;  // Which tokens have logits that are finite.
};
HeadRows RunHead(Engine* engine, const TokenIds& tokens, uint32_t chunk) {
  const ModelConfig& config = engine->config();
  std::vector<BlockId> blocks(engine->num_blocks());
  std::iota(blocks.begin(), blocks.end(), 0u);
  const std::vector<uint32_t> layers = {0, 1};
  HeadRows result;
  for (uint32_t begin = 0; begin < tokens.size(); begin += chunk) {
    const uint32_t count = std::min<uint32_t>(chunk, static_cast<uint32_t>(tokens.size()) - begin);
    std::vector<Logits> logits(count, Logits(static_cast<size_t>(config.vocab_size)));
    std::vector<Logits> read(count);
    std::vector<InputState> inputs(count);
    std::vector<FeatureRequest> requests(count);
    const size_t first = result.states.size();
    result.states.resize(first + count, Logits(3 * static_cast<size_t>(config.hidden_size)));
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < count; ++i) {
      const TokenIds before(tokens.begin(), tokens.begin() + begin + i + 1);
      read[i] = StateFor(config, before);
      inputs[i] = {.values = read[i], .own = ReadsOwnState(before)};
      requests[i] = {.layers = layers, .final_norm = true, .states = result.states[first + i].data()};
      rows.push_back({.token = tokens[begin + i],
                      .context = {.blocks = blocks, .num_committed = begin + i + 1},
                      .logits = logits[i].data(),
                      .features = &requests[i],
                      .state = &inputs[i]});
    }
    const absl::Status status = engine->Step(rows);
    EXPECT_TRUE(status.ok()) << status;
    for (Logits& row : logits) {
      std::vector<bool> drafts;
      for (float& logit : row) {
        drafts.push_back(std::isfinite(logit));
        EXPECT_TRUE(drafts.back() || logit == -std::numeric_limits<float>::infinity()) << logit;
        if (!drafts.back()) logit = 0.0f;
      }
      result.drafts.push_back(std::move(drafts));
      result.logits.push_back(std::move(row));
    }
  }
  return result;
}

TEST_P(CudaHeads, GiveTheCpuEnginesRowsButForRoundings) {
  const auto& [name, options, weight_type] = GetParam();
  const auto model = MakeRandomModel(options());
  ASSERT_NE(model, nullptr);
  const bool is_of_gpus = IsGpuWeightType(weight_type);
  auto reference = CreateCpuEngine(model, {.num_blocks = 7,
                                           .instruction_set = InstructionSet::kPortable,
                                           .weight_type = is_of_gpus ? WeightType::kAsInFile : weight_type});
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto engine = Open(*model, {.num_blocks = 7, .max_rows = 70, .weight_type = weight_type});
  ASSERT_NE(engine, nullptr);
  const TokenIds tokens = SomeTokens(80, 131);
  const HeadRows expected = RunHead(reference->get(), tokens, 80);
  const HeadRows got = RunHead(engine.get(), tokens, 70);
  EXPECT_EQ(got.drafts, expected.drafts);
  EXPECT_LT(RelativeError(got.logits, expected.logits), is_of_gpus ? 0.15 : 0.02);
  EXPECT_LT(RelativeError(got.states, expected.states), is_of_gpus ? 0.15 : 0.02);
}

// What goes up with a step is what its rows read, and what comes down the logits that there are and the
// states that are asked for.
TEST(CudaHeadsTest, AStepIsOneUploadAndOneWait) {
  const auto model = MakeRandomModel(Eagle3Model());
  const auto engine = Open(*model, {.num_blocks = 7, .max_rows = 30});
  EXPECT_FALSE(engine->chooses());
  EXPECT_TRUE(engine->has_features());
  RunHead(engine.get(), SomeTokens(20, 131), 20);
  const HostOps::Traffic before = OpsOf(*engine).traffic();
  const uint64_t launched_alone = OpsOf(*engine).num_eager();
  RunHead(engine.get(), SomeTokens(20, 131), 20);
  const HostOps::Traffic traffic = OpsOf(*engine).traffic() - before;
  EXPECT_EQ(traffic.uploads, 1u);
  EXPECT_EQ(traffic.downloads, 2u);
  EXPECT_EQ(traffic.bytes_down, uint64_t{20} * (77 + 3 * 40) * 4);
  EXPECT_EQ(traffic.waits, 1u);
  // The rest is one graph.
  EXPECT_EQ(OpsOf(*engine).num_eager() - launched_alone, 3u);
}

TEST(CudaHeadsTest, RefuseWhatHeadsDoNotTake) {
  const auto model = MakeRandomModel(Eagle3Model());
  const auto engine = Open(*model, {.num_blocks = 7, .max_rows = 30});
  const std::vector<BlockId> blocks = {0};
  const auto refusal = [&](const InputState* state, const SeededChoice* choice = nullptr) {
    const StepRow row = {
        .token = 3, .context = {.blocks = blocks, .num_committed = 1}, .choice = choice, .state = state};
    const absl::Status status = engine->Step({&row, 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const Logits numbers(3 * 56);
  const InputState target = {.values = numbers};
  const InputState own = {.values = numbers, .own = true};
  const SamplingParameters sampling;
  TokenId token = 0;
  const SeededChoice choice = {.sampling = &sampling, .token = &token};
  EXPECT_THAT(refusal(nullptr), HasSubstr("comes without a state"));
  EXPECT_THAT(refusal(&own),
              HasSubstr("a state of 168 numbers of its own; a draft head's rows each read 168 numbers of the "
                        "target or 40 of its own"));
  EXPECT_THAT(refusal(&target, &choice), HasSubstr("this engine gives logits only"));

  // Ranks compare what they were started with before either refuses.
  const auto ranks = std::make_shared<HostRanks>(2);
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] =
          CudaEngine::Create(*model, {.num_blocks = 7},
                             std::make_unique<HostOps>(HostOps::Options{.rank = rank, .ranks = ranks}))
              .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("a draft head on 2 GPUs; expected one"));
  }
}

// --- Files ---

class CudaHeadGolden : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Formats, CudaHeadGolden,
                         testing::Values("eagle3-specforge", "eagle3-specforge-normed",
                                         "eagle3-speculators-llama", "eagle3-speculators-qwen3",
                                         "eagle3-speculators-normed", "eagle31-speculators",
                                         "eagle31-specforge", "eagle3-modelopt-normed",
                                         "eagle3-modelopt-final", "eagle3-deep-llama", "eagle3-deep-qwen3",
                                         "eagle1", "mimo"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::erase(name, '-');
                           return name;
                         });

// As a drafter runs it: the accepted text in one step, then row by row below it, each reading what the one
// above gave.
TEST_P(CudaHeadGolden, GivesTheReferencesOutputsButForRoundings) {
  const auto model = LoadInBf16(GoldenHead(GetParam()));
  ASSERT_NE(model, nullptr);
  const auto text = ReadFile(GoldenHead(GetParam()) + "/golden.json", 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json golden = nlohmann::json::parse(*text);
  const auto engine = Open(*model, {.num_blocks = 8, .max_rows = 16});
  ASSERT_NE(engine, nullptr);
  const auto hidden = static_cast<size_t>(model->config().hidden_size);
  const std::vector<BlockId> blocks = {4, 2};
  const std::vector<uint32_t> layers = {static_cast<uint32_t>(model->config().num_layers)};
  const auto tokens = golden["tokens"].get<TokenIds>();
  const size_t length = tokens.size() - 1;
  const size_t all = length + golden["chain"].size();
  std::vector<Logits> logits(all, Logits(static_cast<size_t>(model->config().vocab_size)));
  std::vector<Logits> outputs(all, Logits(hidden));
  std::vector<Logits> read(all);
  std::vector<FeatureRequest> requests(all);
  std::vector<InputState> inputs(all);
  std::vector<Logits> expected_logits;
  std::vector<Logits> expected_outputs;
  std::vector<StepRow> rows;
  const auto add = [&](size_t j, TokenId token, const nlohmann::json& row_logits,
                       const nlohmann::json& row_output) {
    requests[j] = {.layers = layers, .states = outputs[j].data()};
    if (model->config().head->own_state_is_normed) {
      requests[j] = {.final_norm = true, .states = outputs[j].data()};
    }
    inputs[j] = {.values = read[j], .own = j >= length};
    rows.push_back({.token = token,
                    .context = {.blocks = blocks, .num_committed = static_cast<uint32_t>(j + 1)},
                    .logits = logits[j].data(),
                    .features = &requests[j],
                    .state = &inputs[j]});
    expected_logits.push_back(FiniteNumbers(row_logits));
    expected_outputs.push_back(FiniteNumbers(row_output));
  };
  for (size_t j = 0; j < length; ++j) {
    read[j] = FiniteNumbers(golden["states"][j]);
    add(j, tokens[j + 1], golden["logits"][j], golden["outputs"][j]);
  }
  ASSERT_TRUE(engine->Step(rows).ok());
  for (size_t j = length; j < all; ++j) {
    rows.clear();
    const nlohmann::json& next = golden["chain"][j - length];
    read[j] = outputs[j - 1];
    add(j, next["token"], next["logits"], next["output"]);
    ASSERT_TRUE(engine->Step(rows).ok());
  }
  for (Logits& row : logits) {
    std::erase_if(row, [](float logit) { return logit == -std::numeric_limits<float>::infinity(); });
  }
  for (size_t j = 0; j < all; ++j) ASSERT_EQ(logits[j].size(), expected_logits[j].size()) << j;
  EXPECT_LT(RelativeError(logits, expected_logits), 0.02);
  EXPECT_LT(RelativeError(outputs, expected_outputs), 0.02);
}

// Nothing is rounded to bfloat16 unasked; to integers anything is.
TEST(CudaHeadFilesTest, InFloat32TakeIntegers) {
  const auto model = Model::Load(GoldenHead("eagle3-specforge"));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto refused =
      CudaEngine::Create(**model, {.num_blocks = 2}, std::make_unique<HostOps>(HostOps::Options{}));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("float32"));
  EXPECT_NE(Open(**model, {.num_blocks = 2, .weight_type = WeightType::kInt8}), nullptr);
}

// Both are the target's where the head's file leaves them out, and the device has once what is one matrix.
TEST(CudaHeadFilesTest, ShareTheOutputMatrixWithTheEmbedding) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.hidden_size = 32;
  config.num_layers = 9;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 16;
  config.vocab_size = 48;
  config.max_context = 64;
  const auto memory = [&](bool tied) {
    config.tied_embeddings = tied;
    const auto head = Model::LoadHead(GoldenHead("eagle3-shared"), Model::Random(config, 1).value());
    EXPECT_TRUE(head.ok()) << head.status();
    const auto engine = Open(**head, {.num_blocks = 7, .max_rows = 30, .weight_type = WeightType::kInt8});
    return OpsOf(*engine).memory_used();
  };
  EXPECT_EQ(memory(false) - memory(true),
            uint64_t{NumPackedTiles(48)} * NumInputGroups(32) * (kInt8GroupWords * 4 + kPackedOutputs * 2));
}

}  // namespace
}  // namespace tandem

// Medusa heads on an emulated GPU: the authors' logits, and law 1.

#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cuda/cuda_medusa_engine.h"
#include "common/engine/cuda/testing/golden_heads.h"
#include "common/engine/cuda/testing/small_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kStateWidth = 72;
constexpr int32_t kMedusaTokens = 131;

// Two blocks in front of each of three outputs.
std::shared_ptr<const Model> SomeMedusaHeads(bool shares_output) {
  ModelConfig config;
  config.architecture = "MedusaModel";
  config.hidden_size = kStateWidth;
  config.vocab_size = kMedusaTokens;
  config.max_context = 1 << 20;
  config.head = HeadConfig{.kind = HeadConfig::Kind::kMedusa,
                           .feature_final_norm = true,
                           .target_hidden_size = kStateWidth,
                           .draft_vocab_size = kMedusaTokens,
                           .num_positions = 3,
                           .num_blocks = 2,
                           .shares_output = shares_output};
  return Model::Random(config, /*seed=*/3).value();
}

std::unique_ptr<CudaMedusaEngine> OpenMedusa(const Model& model, const CudaEngine::Options& options,
                                             uint64_t seed = 0) {
  auto engine =
      CudaMedusaEngine::Create(model, options, std::make_unique<HostOps>(HostOps::Options{.seed = seed}));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::vector<float> SomeState(uint64_t seed, size_t width = kStateWidth) {
  std::vector<float> state(width);
  for (size_t i = 0; i < width; ++i) {
    state[i] = static_cast<float>(static_cast<int64_t>(Mix64(1000 * seed + i) % 2001) - 1000) / 500.0f;
  }
  return state;
}

// Logits of rows that read `states`, in one step; empty where `wants` says no.
std::vector<Logits> MedusaLogits(Engine* engine, const std::vector<std::vector<float>>& states,
                                 const std::vector<bool>& wants) {
  std::vector<Logits> logits(states.size());
  std::vector<InputState> inputs(states.size());
  std::vector<SlotId> slots(states.size());
  std::vector<StepRow> rows;
  for (size_t i = 0; i < states.size(); ++i) {
    inputs[i] = {.values = states[i]};
    slots[i] = static_cast<SlotId>(i);
    if (wants[i]) logits[i].resize(engine->config().logits_size());
    rows.push_back({.token = 0,
                    .context = {.tail = absl::MakeConstSpan(&slots[i], 1)},
                    .logits = wants[i] ? logits[i].data() : nullptr,
                    .state = &inputs[i]});
  }
  const absl::Status status = engine->Step(rows);
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

struct CudaMedusaCase {
  const char* name;
  bool shares_output;
  WeightType weight_type;
};

// In failures.
void PrintTo(const CudaMedusaCase& heads, std::ostream* stream) {
  *stream << heads.name;
}

class CudaMedusa : public testing::TestWithParam<CudaMedusaCase> {};

INSTANTIATE_TEST_SUITE_P(All, CudaMedusa,
                         testing::Values(CudaMedusaCase{"Separate", false, WeightType::kAsInFile},
                                         CudaMedusaCase{"Shared", true, WeightType::kAsInFile},
                                         CudaMedusaCase{"SeparateInt8", false, WeightType::kInt8},
                                         CudaMedusaCase{"SharedInt4", true, WeightType::kInt4},
                                         CudaMedusaCase{"SharedFp8", true, WeightType::kFp8}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_P(CudaMedusa, RowsDoNotDependOnTheirCompany) {
  const auto model = SomeMedusaHeads(GetParam().shares_output);
  const CudaEngine::Options options = {
      .num_blocks = 20, .max_rows = 60, .weight_type = GetParam().weight_type};
  const auto plain = OpenMedusa(*model, options, 1);
  ASSERT_NE(plain, nullptr);
  std::vector<Logits> alone;
  for (uint64_t state = 0; state < 5; ++state) {
    alone.push_back(MedusaLogits(plain.get(), {SomeState(state)}, {true})[0]);
  }
  const auto engine = OpenMedusa(*model, options, 2);
  std::mt19937_64 random(3);
  for (const size_t num_rows : {1u, 2u, 15u, 17u, 60u}) {
    std::vector<std::vector<float>> states;
    std::vector<bool> wants;
    std::vector<size_t> which;
    for (size_t i = 0; i < num_rows; ++i) {
      which.push_back(random() % alone.size());
      states.push_back(SomeState(which[i]));
      wants.push_back(random() % 4 > 0);
    }
    const std::vector<Logits> got = MedusaLogits(engine.get(), states, wants);
    for (size_t i = 0; i < num_rows; ++i) {
      if (!wants[i]) continue;
      ASSERT_TRUE(SameBits(got[i], alone[which[i]])) << "row " << i << " of " << num_rows;
    }
  }
}

TEST_P(CudaMedusa, GiveTheCpuEnginesLogitsButForRoundings) {
  const auto model = SomeMedusaHeads(GetParam().shares_output);
  const bool is_of_gpus = IsGpuWeightType(GetParam().weight_type);
  auto reference =
      CreateCpuEngine(model, {.num_blocks = 20,
                              .instruction_set = InstructionSet::kPortable,
                              .weight_type = is_of_gpus ? WeightType::kAsInFile : GetParam().weight_type});
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto engine =
      OpenMedusa(*model, {.num_blocks = 20, .max_rows = 20, .weight_type = GetParam().weight_type});
  ASSERT_NE(engine, nullptr);
  std::vector<std::vector<float>> states;
  for (uint64_t i = 0; i < 20; ++i) states.push_back(SomeState(i));
  const std::vector<bool> wants(20, true);
  EXPECT_LT(
      RelativeError(MedusaLogits(engine.get(), states, wants), MedusaLogits(reference->get(), states, wants)),
      is_of_gpus ? 0.15 : 0.02);
}

class CudaMedusaGolden : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Formats, CudaMedusaGolden, testing::Values("medusa", "medusa-vllm"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(CudaMedusaGolden, GivesTheReferencesLogitsButForRoundings) {
  const auto model = LoadInBf16(GoldenHead(GetParam()));
  ASSERT_NE(model, nullptr);
  const auto text = ReadFile(GoldenHead(GetParam()) + "/golden.json", 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json golden = nlohmann::json::parse(*text);
  const auto engine = OpenMedusa(*model, {.num_blocks = 4, .max_rows = 40});
  ASSERT_NE(engine, nullptr);
  std::vector<std::vector<float>> states;
  std::vector<Logits> expected;
  for (size_t row = 0; row < golden["states"].size(); ++row) {
    states.push_back(FiniteNumbers(golden["states"][row]));
    Logits of_row;
    for (const nlohmann::json& head : golden["logits"][row]) {
      const Logits of_head = FiniteNumbers(head);
      of_row.insert(of_row.end(), of_head.begin(), of_head.end());
    }
    expected.push_back(std::move(of_row));
  }
  const std::vector<Logits> got = MedusaLogits(engine.get(), states, std::vector<bool>(states.size(), true));
  for (size_t row = 0; row < got.size(); ++row) ASSERT_EQ(got[row].size(), expected[row].size());
  EXPECT_LT(RelativeError(got, expected), 0.02);
}

TEST(CudaMedusaTest, AStepCostsWhatItsRowsWant) {
  for (const bool shares_output : {false, true}) {
    const auto model = SomeMedusaHeads(shares_output);
    const auto engine = OpenMedusa(*model, {.num_blocks = 20, .max_rows = 60});
    HostOps& ops = static_cast<HostOps&>(engine->ops());
    const std::vector<std::vector<float>> states(20, SomeState(1));
    HostOps::Traffic before = ops.traffic();
    MedusaLogits(engine.get(), states, std::vector<bool>(20, false));
    EXPECT_EQ((ops.traffic() - before).waits, 0u);
    before = ops.traffic();
    std::vector<bool> wants(20, false);
    wants[3] = wants[7] = true;
    MedusaLogits(engine.get(), states, wants);
    const HostOps::Traffic traffic = ops.traffic() - before;
    EXPECT_EQ(traffic.uploads, 1u);
    EXPECT_EQ(traffic.bytes_up, 2 * 72 * 4u);
    EXPECT_EQ(traffic.downloads, shares_output ? 1u : 3u);
    EXPECT_EQ(traffic.bytes_down, 2 * 3 * 131 * 4u);
    EXPECT_EQ(traffic.waits, 1u);
  }
}

TEST(CudaMedusaTest, RefusesWhatMedusaHeadsDoNotTake) {
  const auto model = SomeMedusaHeads(false);
  const auto engine = OpenMedusa(*model, {.num_blocks = 2, .max_rows = 3});
  const SlotId slot = 0;
  const auto refusal = [&](const StepRow& asked) {
    StepRow row = asked;
    row.context = {.tail = absl::MakeConstSpan(&slot, 1)};
    const absl::Status status = engine->Step({&row, 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::vector<float> state = SomeState(1);
  const InputState own = {.values = state, .own = true};
  const InputState target = {.values = state};
  EXPECT_THAT(refusal({}), HasSubstr("comes without a state"));
  EXPECT_THAT(refusal({.state = &own}), HasSubstr("of its own"));
  Logits states(kStateWidth);
  const FeatureRequest features = {.final_norm = true, .states = states.data()};
  EXPECT_THAT(refusal({.features = &features, .state = &target}), HasSubstr("asks for features"));
  EXPECT_EQ(engine->CopyKv({{.from = 0, .to = 32}}).code(), absl::StatusCode::kInvalidArgument);

  const auto ops = [](std::shared_ptr<HostRanks> ranks) {
    return std::make_unique<HostOps>(HostOps::Options{.ranks = std::move(ranks)});
  };
  const auto several = CudaMedusaEngine::Create(*model, {}, ops(std::make_shared<HostRanks>(2)));
  EXPECT_THAT(std::string(several.status().message()), HasSubstr("a draft head on 2 GPUs; expected one"));
  const auto layers = CudaEngine::Create(*model, {.num_blocks = 2}, ops(nullptr));
  EXPECT_EQ(layers.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(layers.status().message()), HasSubstr("a draft head of kind medusa"));
}

}  // namespace
}  // namespace tandem

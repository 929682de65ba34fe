// Mixtures of experts on an emulated GPU beyond what every family is asked (cuda_family_test): every weight
// type, graphs, and what a step uploads and waits for.

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/engine/cuda/testing/small_engine.h"
#include "common/model/testing/family_fixture.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// One with a shared expert and a dense layer, softmax over all; and one with biases, limits and sinks,
// softmax over those chosen.
constexpr const char* kMixtures[] = {"qwen2-moe", "gpt-oss"};

class CudaExperts : public testing::TestWithParam<std::tuple<const char*, WeightType>> {
 protected:
  void SetUp() override {
    model_ = MakeFamilyModel(std::get<0>(GetParam()), TensorView::DType::kBF16);
    ASSERT_NE(model_, nullptr);
  }
  WeightType weight_type() const { return std::get<1>(GetParam()); }
  std::unique_ptr<CudaEngine> Start(const CudaEngine::Options& options, const HostOps::Options& ops = {}) {
    CudaEngine::Options own = options;
    own.weight_type = weight_type();
    return Open(*model_, own, ops);
  }

  std::shared_ptr<const Model> model_;
};

INSTANTIATE_TEST_SUITE_P(All, CudaExperts,
                         testing::Combine(testing::ValuesIn(kMixtures), testing::ValuesIn(kGpuWeightTypes)),
                         [](const auto& param_info) {
                           std::string name = absl::StrCat(std::get<0>(param_info.param), "_",
                                                           TestName(std::get<1>(param_info.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// What weights lose as integers, both engines' lose alike.
TEST_P(CudaExperts, GiveTheCpuEnginesLogitsButForRoundings) {
  const bool is_of_gpus = IsGpuWeightType(weight_type());
  auto reference =
      CreateCpuEngine(model_, {.num_blocks = 7,
                               .instruction_set = InstructionSet::kPortable,
                               .weight_type = is_of_gpus ? WeightType::kAsInFile : weight_type()});
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto engine = Start({.num_blocks = 7, .max_rows = 70});
  ASSERT_NE(engine, nullptr);
  const TokenIds tokens = SomeTokens(45, model_->config().vocab_size);
  const auto expected = ComputeAll(reference->get(), tokens, 45);
  EXPECT_LT(RelativeError(ComputeAll(engine.get(), tokens, 20), expected), is_of_gpus ? 0.3 : 0.05);
}

// With graphs, whose items are others in every step.
TEST_P(CudaExperts, RowsDependOnTheirOwnContextAlone) {
  Reference reference(Start({.num_blocks = 7, .max_rows = 1, .use_graphs = false}));
  const auto engine = Start({.num_blocks = 40, .max_rows = 50}, {.seed = 5, .num_multiprocessors = 3});
  ASSERT_NE(engine, nullptr);
  Simulation simulation(engine.get(), &reference, 2, {.max_new = 16, .max_tokens = 38, .max_sessions = 3});
  simulation.Run(kSanitized ? 3 : 8);
  EXPECT_GT(simulation.num_compared(), kSanitized ? 3 : 8);
  EXPECT_GT(OpsOf(*engine).num_replays(), 0u);
}

// A row alone reads what it takes in each layer; others read more, and all of them at most all there are.
TEST(CudaExpertsTest, ReadTheExpertsOfTheirRowsAlone) {
  const auto model = MakeFamilyModel("qwen3-moe", TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const auto engine = Open(*model, {.num_blocks = 4, .max_rows = 64});
  auto reference = CreateCpuEngine(model, {.num_blocks = 4});
  ASSERT_TRUE(engine != nullptr && reference.ok());
  const std::vector<BlockId> blocks = {0, 1, 2, 3};
  const auto read_by = [&](uint32_t num_rows) {
    std::vector<StepRow> rows;
    Logits logits(static_cast<size_t>(model->config().vocab_size));
    for (uint32_t i = 0; i < num_rows; ++i) {
      rows.push_back({.token = static_cast<TokenId>(i * 5 % 61),
                      .context = {.blocks = blocks, .num_committed = i + 1},
                      .logits = logits.data()});
    }
    EXPECT_TRUE(engine->Step(rows).ok());
    EXPECT_TRUE((*reference)->Step(rows).ok());
    const absl::StatusOr<uint64_t> read = engine->CountExpertsRead();
    EXPECT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read.value_or(0), ExpertsRead(**reference)) << num_rows << " rows";
    return read.value_or(0);
  };
  // One of three layers has 8 experts, of which a row takes 2.
  EXPECT_EQ(read_by(1), 2u);
  EXPECT_GT(read_by(3), 2u);
  EXPECT_LE(read_by(30), 8u);
}

TEST(CudaExpertsTest, AStepIsStillOneUploadOneGraphAndOneWait) {
  const auto model = MakeFamilyModel("mixtral", TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const auto engine = Open(*model, {.num_blocks = 4, .max_rows = 64});
  ASSERT_NE(engine, nullptr);
  const std::vector<BlockId> blocks = {0, 1, 2, 3};
  Logits logits(static_cast<size_t>(model->config().vocab_size));
  const auto step = [&] {
    std::vector<StepRow> rows;
    for (uint32_t i = 0; i < 11; ++i) {
      rows.push_back({.token = static_cast<TokenId>(i % 7 + 3),
                      .context = {.blocks = blocks, .num_committed = i + 1},
                      .logits = i == 10 ? logits.data() : nullptr});
    }
    const HostOps::Traffic before = OpsOf(*engine).traffic();
    EXPECT_TRUE(engine->Step(rows).ok());
    return OpsOf(*engine).traffic() - before;
  };
  // A graph of this size is captured when it first occurs.
  step();
  const uint64_t replays = OpsOf(*engine).num_replays();
  const HostOps::Traffic traffic = step();
  EXPECT_EQ(OpsOf(*engine).num_replays(), replays + 1);
  EXPECT_EQ(traffic.uploads, 1u);
  EXPECT_EQ(traffic.downloads, 1u);
  EXPECT_EQ(traffic.waits, 1u);
}

}  // namespace
}  // namespace tandem

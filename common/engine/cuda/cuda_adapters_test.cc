// Adapters on an emulated GPU: peft's logits as far as bfloat16 activations keep them, law 1 by bits
// whichever adapters share a step, and memory that comes back.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/engine/cuda/testing/small_engine.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/lora_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

std::vector<Logits> AdaptedLogits(Engine* engine, const nlohmann::json& sequence, AdapterId adapter) {
  const auto tokens = sequence.at("tokens").get<TokenIds>();
  const auto positions = sequence.at("positions").get<std::vector<size_t>>();
  std::vector<BlockId> blocks(engine->num_blocks());
  for (BlockId block = 0; block < blocks.size(); ++block) blocks[block] = block;
  std::vector<Logits> logits(positions.size(), Logits(static_cast<size_t>(engine->config().vocab_size)));
  std::vector<StepRow> rows;
  for (uint32_t position = 0; position < tokens.size(); ++position) {
    rows.push_back({.token = tokens[position],
                    .context = {.blocks = blocks, .num_committed = position + 1},
                    .adapter = adapter});
    const auto found = std::find(positions.begin(), positions.end(), position);
    if (found != positions.end()) {
      rows.back().logits = logits[static_cast<size_t>(found - positions.begin())].data();
    }
  }
  const absl::Status status = engine->Step(rows);
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

double ErrorOf(Engine* engine, const nlohmann::json& sequence, AdapterId adapter) {
  return RelativeError(AdaptedLogits(engine, sequence, adapter),
                       sequence.at("logits").get<std::vector<Logits>>());
}

class CudaAdapters : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = AdapterGolden(GetParam());
    model_ = MakeAdaptedModel(golden_, TensorView::DType::kBF16);
    ASSERT_NE(model_, nullptr);
    for (const nlohmann::json& each : golden_.at("adapters")) {
      adapters_.push_back(MakeAdapter(golden_, each.at("seed").get<uint64_t>(), model_->config()));
      ASSERT_NE(adapters_.back(), nullptr);
    }
  }

  static AdapterId Add(Engine* engine, const LoraAdapter& adapter) {
    const absl::StatusOr<AdapterId> id = engine->AddAdapter(adapter);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(kNoAdapter);
  }

  nlohmann::json golden_;
  std::shared_ptr<const Model> model_;
  std::vector<std::shared_ptr<const LoraAdapter>> adapters_;
};

INSTANTIATE_TEST_SUITE_P(All, CudaAdapters, testing::ValuesIn(AdapterNames()), [](const auto& param_info) {
  std::string name = param_info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(CudaAdapters, GiveTheReferencesLogitsButForRoundings) {
  const auto engine = Open(*model_, {.num_blocks = 24, .max_rows = 320});
  ASSERT_NE(engine, nullptr);
  const nlohmann::json plain = FamilyGolden(golden_.at("family").get<std::string>()).at("models").at(0);
  const nlohmann::json& without = plain.at("sequences").back();
  // Graphs that were captured before there were adapters go on serving rows without.
  const std::vector<Logits> before = AdaptedLogits(engine.get(), without, kNoAdapter);
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const AdapterId id = Add(engine.get(), *adapters_[i]);
    for (const nlohmann::json& sequence : golden_.at("adapters").at(i).at("sequences")) {
      EXPECT_LT(ErrorOf(engine.get(), sequence, id), 0.05);
    }
  }
  const std::vector<Logits> after = AdaptedLogits(engine.get(), without, kNoAdapter);
  for (size_t i = 0; i < before.size(); ++i) ASSERT_TRUE(SameBits(before[i], after[i]));
}

// What rows with an adapter give alone on an engine of their own, and rows without on one that has never had
// any, is what they give in each other's company.
TEST_P(CudaAdapters, RowsDependOnTheirOwnContextAndAdapterAlone) {
  for (const WeightType weight_type : {WeightType::kAsInFile, WeightType::kInt8}) {
    const auto alone = [&] {
      return Open(*model_, {.num_blocks = 7, .max_rows = 1, .weight_type = weight_type, .use_graphs = false});
    };
    Reference plain(alone());
    Reference with_first(alone(), adapters_[0].get()), with_second(alone(), adapters_[1].get());
    const auto engine =
        Open(*model_, {.num_blocks = 40, .max_rows = 50, .weight_type = weight_type}, {.seed = 3});
    ASSERT_NE(engine, nullptr);
    const AdapterId first = Add(engine.get(), *adapters_[0]), second = Add(engine.get(), *adapters_[1]);
    const auto context = static_cast<size_t>(model_->config().max_context);
    Simulation simulation(
        engine.get(), &plain, 1,
        {.max_new = 16,
         .max_tokens = std::min<size_t>(context - 26, 38),
         .max_sessions = 3,
         .adapters = {{.id = first, .reference = &with_first}, {.id = second, .reference = &with_second}}});
    simulation.Run(kSanitized ? 3 : 8);
    EXPECT_GT(simulation.num_adapted_compared(), kSanitized ? 2 : 8);
    EXPECT_GT(simulation.num_compared() - simulation.num_adapted_compared(), 0);
  }
}

TEST_P(CudaAdapters, ADroppedAdaptersMemoryComesBackAndItsNumberDoesNot) {
  const auto engine = Open(*model_, {.num_blocks = 24, .max_rows = 320});
  ASSERT_NE(engine, nullptr);
  const AdapterId first = Add(engine.get(), *adapters_[0]);
  const uint64_t with_one = OpsOf(*engine).memory_used();
  const AdapterId second = Add(engine.get(), *adapters_[1]);
  const uint64_t with_two = OpsOf(*engine).memory_used();
  EXPECT_GT(with_two, with_one);
  ASSERT_EQ(engine->DropAdapter(first), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(engine->DropAdapter(first)));
  EXPECT_LT(OpsOf(*engine).memory_used(), with_two);
  const std::vector<BlockId> blocks = {0};
  const StepRow row = {.token = 1, .context = {.blocks = blocks, .num_committed = 1}, .adapter = first};
  const absl::Status status = engine->Step(absl::MakeConstSpan(&row, 1));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("names adapter ", first)));
  // Where the first one was, and not as it was.
  const AdapterId third = Add(engine.get(), *adapters_[0]);
  EXPECT_NE(third, first);
  EXPECT_NE(third, second);
  EXPECT_EQ(OpsOf(*engine).memory_used(), with_two);
  EXPECT_LT(ErrorOf(engine.get(), golden_.at("adapters").at(0).at("sequences").at(0), third), 0.05);
  EXPECT_LT(ErrorOf(engine.get(), golden_.at("adapters").at(1).at("sequences").at(0), second), 0.05);
  // More than the table had places for.
  std::vector<AdapterId> more;
  for (int i = 0; i < 9; ++i) more.push_back(Add(engine.get(), *adapters_[0]));
  EXPECT_LT(ErrorOf(engine.get(), golden_.at("adapters").at(1).at("sequences").at(0), second), 0.05);
  EXPECT_LT(ErrorOf(engine.get(), golden_.at("adapters").at(0).at("sequences").at(0), more.back()), 0.05);
}

TEST(CudaAdaptersTest, CostNothingWhereNoRowNamesOne) {
  const nlohmann::json golden = AdapterGolden("llama");
  const auto model = MakeAdaptedModel(golden, TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const auto adapter = MakeAdapter(golden, 1, model->config());
  const auto engine = Open(*model, {.num_blocks = 4, .max_rows = 8});
  ASSERT_TRUE(adapter != nullptr && engine != nullptr);
  const std::vector<BlockId> blocks = {0};
  Logits logits(static_cast<size_t>(model->config().vocab_size));
  const auto launches = [&](AdapterId id) {
    const StepRow row = {.token = 1,
                         .context = {.blocks = blocks, .num_committed = 1},
                         .logits = logits.data(),
                         .adapter = id};
    const uint64_t before = OpsOf(*engine).traffic().launches;
    EXPECT_TRUE(engine->Step(absl::MakeConstSpan(&row, 1)).ok());
    return OpsOf(*engine).traffic().launches - before;
  };
  const uint64_t plain = launches(kNoAdapter);
  const absl::StatusOr<AdapterId> id = engine->AddAdapter(*adapter);
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(launches(kNoAdapter), plain);
  // Two for each product that adapters have a part in.
  EXPECT_EQ(launches(*id), plain + 2 * 4 * static_cast<uint64_t>(model->config().num_layers));
}

TEST(CudaAdaptersTest, OfAnotherModelOrWithoutMemoryAreRefused) {
  const nlohmann::json golden = AdapterGolden("llama");
  const auto model = MakeAdaptedModel(golden, TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const auto adapter = MakeAdapter(golden, 1, model->config());
  const auto other = Open(*SmallModel(), {.num_blocks = 4, .max_rows = 4});
  ASSERT_TRUE(adapter != nullptr && other != nullptr);
  const absl::Status misfit = other->AddAdapter(*adapter).status();
  EXPECT_TRUE(absl::IsInvalidArgument(misfit)) << misfit;
  EXPECT_THAT(std::string(misfit.message()), HasSubstr("an adapter for another model"));
  const auto roomy = Open(*model, {.num_blocks = 4, .max_rows = 4});
  ASSERT_NE(roomy, nullptr);
  const uint64_t without = OpsOf(*roomy).memory_used();
  const auto tight = Open(*model, {.num_blocks = 4, .max_rows = 4}, {.memory_limit = without + 300});
  ASSERT_NE(tight, nullptr);
  const absl::Status full = tight->AddAdapter(*adapter).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  // It serves on without.
  const std::vector<BlockId> blocks = {0};
  const StepRow row = {.token = 1, .context = {.blocks = blocks, .num_committed = 1}};
  EXPECT_EQ(tight->Step(absl::MakeConstSpan(&row, 1)), absl::OkStatus());
}

}  // namespace
}  // namespace tandem

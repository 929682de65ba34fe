// Adapters on the processor: peft's logits and greedy tokens, and law 1 by bits, whichever adapters share a
// step.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/golden_sequences.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/lora_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class LoraTest : public testing::TestWithParam<std::string> {
 protected:
  LoraTest() : golden_(AdapterGolden(GetParam())) {}

  std::shared_ptr<const LoraAdapter> Adapter(const Model& model, size_t index,
                                             TensorView::DType dtype = TensorView::DType::kF32) const {
    return MakeAdapter(golden_, golden_.at("adapters").at(index).at("seed").get<uint64_t>(), model.config(),
                       dtype);
  }

  // The engine with both adapters.
  std::unique_ptr<Engine> Open(std::shared_ptr<const Model> model, const CpuEngineOptions& options,
                               std::vector<AdapterId>* ids,
                               TensorView::DType dtype = TensorView::DType::kF32) const {
    auto engine = CreateCpuEngine(model, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->has_adapters());
    for (size_t i = 0; i < 2; ++i) {
      const absl::StatusOr<AdapterId> id = (*engine)->AddAdapter(*Adapter(*model, i, dtype));
      EXPECT_TRUE(id.ok()) << id.status();
      ids->push_back(id.value_or(kNoAdapter));
    }
    return *std::move(engine);
  }

  const nlohmann::json golden_;
};

TEST_P(LoraTest, GivesTheReferenceLogitsAndGreedyTokens) {
  const auto model = MakeAdaptedModel(golden_);
  ASSERT_NE(model, nullptr);
  const nlohmann::json plain = FamilyGolden(golden_.at("family").get<std::string>()).at("models").at(0);
  for (InstructionSet instruction_set : TestedInstructionSets()) {
    // Files in bfloat16 hold the same numbers.
    for (TensorView::DType dtype : {TensorView::DType::kF32, TensorView::DType::kBF16}) {
      SCOPED_TRACE(absl::StrCat(InstructionSetName(instruction_set), ", dtype ", static_cast<int>(dtype)));
      std::vector<AdapterId> ids;
      const auto engine =
          Open(model, {.num_blocks = 40, .num_threads = 2, .instruction_set = instruction_set}, &ids, dtype);
      ASSERT_EQ(golden_.at("adapters").size(), ids.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        for (const nlohmann::json& sequence : golden_.at("adapters").at(i).at("sequences")) {
          CompareSequence(engine.get(), sequence, kGoldenTolerance, ids[i]);
          if (HasFatalFailure()) return;
        }
      }
      for (const nlohmann::json& sequence : plain.at("sequences")) {
        CompareSequence(engine.get(), sequence, kGoldenTolerance);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// What rows with an adapter give alone on an engine of their own, and rows without on one that has never had
// any, is what they give in each other's company.
TEST_P(LoraTest, RowsDependOnTheirOwnContextAndAdapterAlone) {
  struct Case {
    WeightType weights = WeightType::kAsInFile;
    KvType kv = KvType::kF32;
  };
  const auto model = MakeAdaptedModel(golden_, TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const auto first = Adapter(*model, 0), second = Adapter(*model, 1);
  const auto context = static_cast<size_t>(model->config().max_context);
  int num_compared = 0, num_adapted = 0, num_cache_hits = 0;
  for (const Case& each : {Case{}, Case{.weights = WeightType::kInt8, .kv = KvType::kInt8},
                           Case{.weights = WeightType::kW4A8}}) {
    References plain(model, each.weights, each.kv);
    References with_first(model, each.weights, each.kv, first.get());
    References with_second(model, each.weights, each.kv, second.get());
    for (InstructionSet instruction_set : TestedInstructionSets()) {
      for (int num_threads : {1, 3}) {
        const bool is_best = instruction_set == SupportedInstructionSets().front();
        if ((kSanitized || !is_best) && num_threads == 1) continue;
        SCOPED_TRACE(absl::StrCat(InstructionSetName(instruction_set), ", ", num_threads, " threads"));
        std::vector<AdapterId> ids;
        const auto engine = Open(model,
                                 {.num_blocks = 60,
                                  .max_rows = 61,
                                  .num_threads = num_threads,
                                  .instruction_set = instruction_set,
                                  .weight_type = each.weights,
                                  .kv_type = each.kv},
                                 &ids);
        const SimulationOptions options = {
            .num_shared = kBlockTokens,
            .max_new = 20,
            .max_tokens = std::min<size_t>(context - 26, 90),
            .adapters = {{.id = ids[0], .reference = with_first.For(instruction_set)},
                         {.id = ids[1], .reference = with_second.For(instruction_set)}}};
        for (uint64_t seed = 1; seed <= (kSanitized ? 1 : 2); ++seed) {
          Simulation simulation(engine.get(), plain.For(instruction_set), seed, options);
          simulation.Run(20);
          if (HasFailure()) return;
          num_compared += simulation.num_compared();
          num_adapted += simulation.num_adapted_compared();
          num_cache_hits += simulation.num_cache_hits();
        }
      }
    }
  }
  EXPECT_GT(num_adapted, kSanitized ? 30 : 300);
  EXPECT_GT(num_compared - num_adapted, kSanitized ? 15 : 150);
  EXPECT_GT(num_cache_hits, kSanitized ? 0 : 10);
}

TEST_P(LoraTest, ADroppedAdapterIsGoneAndTheOtherIsNot) {
  const auto model = MakeAdaptedModel(golden_);
  ASSERT_NE(model, nullptr);
  std::vector<AdapterId> ids;
  const auto engine = Open(model, {.num_blocks = 40, .num_threads = 2}, &ids);
  ASSERT_EQ(engine->DropAdapter(ids[0]), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(engine->DropAdapter(ids[0])));
  CompareSequence(engine.get(), golden_.at("adapters").at(1).at("sequences").at(0), kGoldenTolerance, ids[1]);
  const std::vector<BlockId> blocks = {0};
  StepRow row = {.token = 1, .context = {.blocks = blocks, .num_committed = 1}, .adapter = ids[0]};
  const absl::Status status = engine->Step(absl::MakeConstSpan(&row, 1));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("names adapter ", ids[0])));
  // Its number is not given again.
  const absl::StatusOr<AdapterId> again = engine->AddAdapter(*Adapter(*model, 0));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *again), 0);
  CompareSequence(engine.get(), golden_.at("adapters").at(0).at("sequences").at(0), kGoldenTolerance, *again);
}

INSTANTIATE_TEST_SUITE_P(All, LoraTest, testing::ValuesIn(AdapterNames()), [](const auto& param_info) {
  std::string name = param_info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(LoraEngineTest, RefusesAnAdapterOfAnotherModel) {
  const nlohmann::json golden = AdapterGolden("llama");
  const auto adapter = MakeAdapter(golden, 1, MakeAdaptedModel(golden)->config());
  ASSERT_NE(adapter, nullptr);
  for (const char* const other : {"bloom-6-heads", "smollm3"}) {
    auto engine = CreateCpuEngine(MakeFamilyModel(other), {.num_blocks = 4});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const absl::StatusOr<AdapterId> added = (*engine)->AddAdapter(*adapter);
    EXPECT_TRUE(absl::IsInvalidArgument(added.status())) << added.status();
    EXPECT_THAT(std::string(added.status().message()), HasSubstr("another model"));
  }
}

TEST(LoraEngineTest, HeadsHaveNone) {
  const nlohmann::json golden = AdapterGolden("llama");
  const auto adapter = MakeAdapter(golden, 1, MakeAdaptedModel(golden)->config());
  auto engine = CreateCpuEngine(MakeRandomModel(EagleModel()), {.num_blocks = 4});
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_FALSE((*engine)->has_adapters());
  EXPECT_TRUE(absl::IsUnimplemented((*engine)->AddAdapter(*adapter).status()));
}

}  // namespace
}  // namespace tandem

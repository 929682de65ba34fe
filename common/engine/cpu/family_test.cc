// Every family that there is (common/model/config), on the processor: the reference's logits and greedy
// tokens, and law 1 by bits.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/golden_sequences.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/model/testing/family_fixture.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

class FamilyTest : public testing::TestWithParam<std::string> {
 protected:
  FamilyTest() : golden_(FamilyGolden(GetParam())) {}

  std::unique_ptr<Engine> Open(uint64_t seed, TensorView::DType dtype, InstructionSet instruction_set) {
    const auto model = MakeFamilyModel(golden_, seed, dtype);
    if (model == nullptr) return nullptr;
    auto engine =
        CreateCpuEngine(model, {.num_blocks = 40, .num_threads = 2, .instruction_set = instruction_set});
    if (!engine.ok()) ADD_FAILURE() << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  const nlohmann::json golden_;
};

TEST_P(FamilyTest, GivesTheReferenceLogitsAndGreedyTokens) {
  ASSERT_GE(golden_.at("models").size(), 2u);
  for (InstructionSet instruction_set : TestedInstructionSets()) {
    SCOPED_TRACE(InstructionSetName(instruction_set));
    for (const nlohmann::json& model : golden_.at("models")) {
      const auto engine = Open(model.at("seed").get<uint64_t>(), TensorView::DType::kF32, instruction_set);
      ASSERT_NE(engine, nullptr);
      for (const nlohmann::json& sequence : model.at("sequences")) {
        CompareSequence(engine.get(), sequence, kGoldenTolerance);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The same numbers as bfloat16: products with inputs of as many bits as the instruction set keeps.
TEST_P(FamilyTest, GivesTheReferenceLogitsWithBf16Weights) {
  for (InstructionSet instruction_set : TestedInstructionSets()) {
    SCOPED_TRACE(InstructionSetName(instruction_set));
    const KernelTable* const kernels = SelectKernels(instruction_set).value();
    const uint32_t bits = kernels->products[static_cast<size_t>(WeightFormat::kBf16)].input_bits;
    const double tolerance = bits == 24 ? kGoldenTolerance : bits >= 16 ? 1e-3 : 0.1;
    const nlohmann::json& model = golden_.at("models").at(0);
    const auto engine = Open(model.at("seed").get<uint64_t>(), TensorView::DType::kBF16, instruction_set);
    ASSERT_NE(engine, nullptr);
    for (const nlohmann::json& sequence : model.at("sequences")) {
      CompareSequence(engine.get(), sequence, tolerance);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(FamilyTest, RowsDependOnTheirOwnContextAlone) {
  struct Case {
    WeightType weights = WeightType::kAsInFile;
    KvType kv = KvType::kF32;
  };
  const auto model = MakeFamilyModel(GetParam(), TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const auto context = static_cast<size_t>(model->config().max_context);
  const SimulationOptions options = {.max_new = 20, .max_tokens = std::min<size_t>(context - 26, 90)};
  int num_compared = 0;
  for (const Case& each : {Case{}, Case{.weights = WeightType::kInt8, .kv = KvType::kInt8}}) {
    References references(model, each.weights, each.kv);
    for (InstructionSet instruction_set : TestedInstructionSets()) {
      for (int num_threads : {1, 3}) {
        const bool is_best = instruction_set == SupportedInstructionSets().front();
        if ((kSanitized || !is_best) && num_threads == 1) continue;
        SCOPED_TRACE(absl::StrCat(InstructionSetName(instruction_set), ", ", num_threads, " threads"));
        auto engine = CreateCpuEngine(model, {.num_blocks = 60,
                                              .max_rows = 61,
                                              .num_threads = num_threads,
                                              .instruction_set = instruction_set,
                                              .weight_type = each.weights,
                                              .kv_type = each.kv});
        ASSERT_TRUE(engine.ok()) << engine.status();
        for (uint64_t seed = 1; seed <= (kSanitized ? 1 : 2); ++seed) {
          Simulation simulation(engine->get(), references.For(instruction_set), seed, options);
          simulation.Run(20);
          if (HasFailure()) return;
          num_compared += simulation.num_compared();
        }
      }
    }
  }
  EXPECT_GT(num_compared, kSanitized ? 50 : 500);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTest, testing::ValuesIn(FamilyModelNames()), [](const auto& param_info) {
  std::string name = param_info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace tandem

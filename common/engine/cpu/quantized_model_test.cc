// Quantised checkpoints (common/model/testdata/quantized) on the processor: the logits of transformers for
// the matrices that other implementations make of them.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/golden_sequences.h"
#include "common/engine/sequence_kv.h"
#include "common/engine/weight_type.h"
#include "common/model/model.h"
#include "common/model/testing/quantized_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Model> LoadQuantizedModel(const nlohmann::json& golden) {
  const TemporaryFolder folder;
  WriteQuantizedModel(golden, folder);
  // The weights stay mapped.
  auto model = Model::Load(folder.path());
  if (!model.ok()) ADD_FAILURE() << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// Of a whole text. [tokens, vocab]
std::vector<std::vector<float>> LogitsOfText(Engine* engine, const TokenIds& tokens) {
  BlockPool pool({.num_blocks = engine->num_blocks()});
  SequenceKv sequence(&pool, 0);
  sequence.Append(tokens);
  EXPECT_TRUE(sequence.Reserve(static_cast<uint32_t>(tokens.size())).ok());
  std::vector<std::vector<float>> logits(
      tokens.size(), std::vector<float>(static_cast<size_t>(engine->config().vocab_size)));
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    rows.push_back({.token = tokens[i], .context = sequence.CommittedRow(i), .logits = logits[i].data()});
  }
  EXPECT_EQ(engine->Step(rows), absl::OkStatus());
  return logits;
}

class QuantizedModelTest : public testing::TestWithParam<std::string> {};

TEST_P(QuantizedModelTest, GivesTheReferenceLogits) {
  const nlohmann::json golden = QuantizedGolden(GetParam());
  const auto model = LoadQuantizedModel(golden);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(KeptWeightType(*model, WeightType::kExact), "f32");
  const bool is_coded = HoldsIntegers(*model);
  EXPECT_EQ(KeptWeightType(*model, WeightType::kAsInFile), is_coded ? "file-codes" : "f32");
  const nlohmann::json& sequence = golden.at("sequence");
  const auto tokens = sequence.at("tokens").get<TokenIds>();
  const auto positions = sequence.at("positions").get<std::vector<size_t>>();
  const auto expected = sequence.at("logits").get<std::vector<std::vector<float>>>();
  // As they are, with rounded inputs, and rounded again.
  struct Case {
    WeightType type;
    double tolerance;
  };
  for (const Case& each :
       {Case{WeightType::kExact, 1e-4}, Case{WeightType::kAsInFile, is_coded ? 0.05 : 1e-4},
        Case{WeightType::kInt8, 0.1}}) {
    SCOPED_TRACE(WeightTypeName(each.type));
    const auto engine = CreateCpuEngine(model, {.num_blocks = 8, .num_threads = 2, .weight_type = each.type});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const std::vector<std::vector<float>> logits = LogitsOfText(engine->get(), tokens);
    for (size_t i = 0; i < positions.size(); ++i) {
      ASSERT_EQ(expected[i].size(), logits[positions[i]].size());
      for (size_t token = 0; token < expected[i].size(); ++token) {
        const float want = expected[i][token];
        ASSERT_NEAR(logits[positions[i]][token], want, each.tolerance * (1 + std::abs(want)))
            << "position " << positions[i] << ", token " << token;
      }
    }
  }
}

// Law 1, and the same bits on every instruction set.
TEST_P(QuantizedModelTest, RowsAndInstructionSetsDoNotChangeABit) {
  const nlohmann::json golden = QuantizedGolden(GetParam());
  const auto model = LoadQuantizedModel(golden);
  ASSERT_NE(model, nullptr);
  const auto tokens = golden.at("sequence").at("tokens").get<TokenIds>();
  std::vector<std::vector<float>> expected;
  for (InstructionSet instruction_set : SupportedInstructionSets()) {
    SCOPED_TRACE(InstructionSetName(instruction_set));
    // Its products with bfloat16, of what is not quantised, are others.
    const auto kernels = SelectKernels(instruction_set);
    if ((*kernels)->products[static_cast<size_t>(WeightFormat::kBf16)].input_bits < 24) continue;
    const auto engine =
        CreateCpuEngine(model, {.num_blocks = 8, .num_threads = 2, .instruction_set = instruction_set});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const std::vector<std::vector<float>> together = LogitsOfText(engine->get(), tokens);
    if (expected.empty()) expected = together;
    EXPECT_EQ(together, expected);
    GoldenText one_by_one(engine->get());
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(one_by_one.Add({tokens[i]}).front(), expected[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedModelTest, testing::ValuesIn(QuantizedModelNames()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(QuantizedModelTest, Bf16IsRefusedAsItWouldRound) {
  nlohmann::json golden = QuantizedGolden("awq");
  for (nlohmann::json& tensor : golden.at("tensors")) {
    if (tensor.at(0).get<std::string>().ends_with(".weight")) tensor.at(1) = "BF16";
  }
  const auto model = LoadQuantizedModel(golden);
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(HoldsQuantized(*model));
  const auto engine = CreateCpuEngine(model, {.num_blocks = 8, .weight_type = WeightType::kBf16});
  EXPECT_THAT(
      std::string(engine.status().message()),
      HasSubstr("in integers or floats with scales; expected bf16, or the weight type auto, int8 or int4"));
}

}  // namespace
}  // namespace tandem

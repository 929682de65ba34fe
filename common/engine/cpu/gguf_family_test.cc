// Families whose GGUF files are laid out otherwise than their folders are: what an engine makes of a file is
// what it makes of the same weights in a folder, bit for bit.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/golden_sequences.h"
#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/model/testing/family_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

struct GgufCase {
  const char* name;
  TensorView::DType dtype = TensorView::DType::kBF16;
  // What the keys hold in float32 is what a folder holds in decimals. If not, logits are near.
  bool is_exact = true;
};

// What a folder must say that a file takes for granted.
nlohmann::json Overrides(const std::string& name) {
  const std::string path = absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/gguf/overrides.json");
  const nlohmann::json all = nlohmann::json::parse(ReadFile(path, 1 << 20).value());
  return all.value(name, nlohmann::json::object());
}

class GgufFamilyTest : public testing::TestWithParam<GgufCase> {
 protected:
  static std::unique_ptr<Engine> OpenEngine(const std::shared_ptr<const Model>& model, InstructionSet set) {
    auto engine = CreateCpuEngine(model, {.num_blocks = 40, .num_threads = 2, .instruction_set = set});
    if (!engine.ok()) ADD_FAILURE() << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }
};

TEST_P(GgufFamilyTest, GivesTheLogitsOfTheFolder) {
  nlohmann::json golden = FamilyGolden(GetParam().name);
  nlohmann::json& config = golden.at("config");
  const nlohmann::json overrides = Overrides(GetParam().name);
  config.update(overrides);
  // A file has one of the two.
  bool is_reference = overrides.empty();
  if (config.contains("kv_lora_rank")) {
    nlohmann::json& rope = config.at("rope_parameters");
    is_reference = rope.value("mscale", 0.0) == rope.value("mscale_all_dim", 0.0);
    if (!is_reference) rope["mscale"] = rope["mscale_all_dim"];
  }
  const nlohmann::json& reference = golden.at("models").at(0);
  const auto from_folder = MakeFamilyModel(golden, reference.at("seed").get<uint64_t>(), GetParam().dtype);
  const auto from_file =
      Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/gguf/", GetParam().name, ".gguf"));
  ASSERT_TRUE(from_file.ok()) << from_file.status();
  ASSERT_NE(from_folder, nullptr);
  EXPECT_EQ((*from_file)->config().architecture, from_folder->config().architecture);
  EXPECT_EQ((*from_file)->config().max_context, from_folder->config().max_context);
  for (InstructionSet instruction_set : TestedInstructionSets()) {
    SCOPED_TRACE(InstructionSetName(instruction_set));
    const auto file_engine = OpenEngine(*from_file, instruction_set);
    const auto folder_engine = OpenEngine(from_folder, instruction_set);
    ASSERT_TRUE(file_engine != nullptr && folder_engine != nullptr);
    for (const nlohmann::json& sequence : reference.at("sequences")) {
      const auto tokens = sequence.at("tokens").get<TokenIds>();
      const auto found = GoldenText(file_engine.get()).Add(tokens);
      const auto expected = GoldenText(folder_engine.get()).Add(tokens);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        if (!GetParam().is_exact) {
          ASSERT_THAT(found[i], testing::Pointwise(testing::FloatNear(1e-5f), expected[i])) << i;
          continue;
        }
        ASSERT_EQ(std::memcmp(found[i].data(), expected[i].data(), found[i].size() * sizeof(float)), 0) << i;
      }
      const KernelTable* const kernels = SelectKernels(instruction_set).value();
      const bool rounds_inputs = GetParam().dtype == TensorView::DType::kBF16 &&
                                 kernels->products[static_cast<size_t>(WeightFormat::kBf16)].input_bits < 24;
      if (is_reference && !rounds_inputs) CompareSequence(file_engine.get(), sequence, kGoldenTolerance);
      if (HasFatalFailure()) return;
    }
  }
}

std::string CaseName(const testing::TestParamInfo<GgufCase>& instance) {
  std::string name = instance.param.name;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufFamilyTest,
                         testing::Values(GgufCase{"gemma2"}, GgufCase{"gemma3"}, GgufCase{"phi3"},
                                         GgufCase{.name = "phi4-mini", .is_exact = false},
                                         GgufCase{"granite"}, GgufCase{"olmo2"}, GgufCase{"glm4"},
                                         GgufCase{"smollm3"}, GgufCase{"starcoder2"}, GgufCase{"gpt-oss"},
                                         GgufCase{"gpt2"}, GgufCase{"gpt-neox"},
                                         GgufCase{"gpt-neox-sequential"}, GgufCase{"bloom"},
                                         GgufCase{"mixtral"}),
                         CaseName);

// With latents' matrices in one tensor, and in two; in groups, by sigmoids, with biases that choose.
INSTANTIATE_TEST_SUITE_P(DeepSeek, GgufFamilyTest,
                         testing::Values(GgufCase{"deepseek-v2-lite", TensorView::DType::kBF16},
                                         GgufCase{"deepseek-v2", TensorView::DType::kBF16},
                                         GgufCase{"deepseek-v3", TensorView::DType::kF32}),
                         CaseName);

}  // namespace
}  // namespace tandem

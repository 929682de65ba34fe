// Every family that there is, on an emulated GPU: the reference's logits as far as bfloat16 activations keep
// them, law 1 by bits, and what is refused.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/engine/cpu/testing/row_invariance_simulation.h"
#include "common/engine/cuda/testing/small_engine.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/quantized_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

std::vector<std::string> FamiliesOnGpus() {
  std::vector<std::string> names = FamilyModelNames();
  std::erase_if(names, [](const std::string& name) {
    const auto config = ParseModelConfig(FamilyGolden(name).at("config").dump(), name);
    return !config.ok() || !OnlyOnProcessors(config->block).empty();
  });
  return names;
}

std::vector<Logits> LogitsOf(Engine* engine, const TokenIds& tokens, const std::vector<size_t>& positions) {
  std::vector<BlockId> blocks(engine->num_blocks());
  for (BlockId block = 0; block < blocks.size(); ++block) blocks[block] = block;
  std::vector<Logits> logits(positions.size(), Logits(static_cast<size_t>(engine->config().vocab_size)));
  std::vector<StepRow> rows;
  for (size_t position = 0; position < tokens.size(); ++position) {
    rows.push_back({.token = tokens[position],
                    .context = {.blocks = blocks, .num_committed = static_cast<uint32_t>(position) + 1}});
    const auto found = std::find(positions.begin(), positions.end(), position);
    if (found != positions.end()) {
      rows.back().logits = logits[static_cast<size_t>(found - positions.begin())].data();
    }
  }
  const absl::Status status = engine->Step(rows);
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

class CudaFamily : public testing::TestWithParam<std::string> {};

TEST_P(CudaFamily, GivesTheReferencesLogitsButForRoundings) {
  const nlohmann::json golden = FamilyGolden(GetParam());
  for (const nlohmann::json& reference : golden.at("models")) {
    const auto model =
        MakeFamilyModel(golden, reference.at("seed").get<uint64_t>(), TensorView::DType::kBF16);
    ASSERT_NE(model, nullptr);
    const auto engine = Open(*model, {.num_blocks = 24, .max_rows = 320, .use_graphs = false});
    ASSERT_NE(engine, nullptr);
    const nlohmann::json& sequence = reference.at("sequences").back();
    const auto got = LogitsOf(engine.get(), sequence.at("tokens").get<TokenIds>(),
                              sequence.at("positions").get<std::vector<size_t>>());
    EXPECT_LT(RelativeError(got, sequence.at("logits").get<std::vector<Logits>>()), 0.05);
  }
}

TEST_P(CudaFamily, RowsDependOnTheirOwnContextAlone) {
  const auto model = MakeFamilyModel(GetParam(), TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  Reference reference(Open(*model, {.num_blocks = 7, .max_rows = 1, .use_graphs = false}));
  const auto engine = Open(*model, {.num_blocks = 40, .max_rows = 50, .use_graphs = false}, {.seed = 3});
  ASSERT_NE(engine, nullptr);
  const auto context = static_cast<size_t>(model->config().max_context);
  Simulation simulation(engine.get(), &reference, 1,
                        {.max_new = 16, .max_tokens = std::min<size_t>(context - 26, 38), .max_sessions = 3});
  simulation.Run(kSanitized ? 3 : 8);
  EXPECT_GT(simulation.num_compared(), kSanitized ? 5 : 20);
}

INSTANTIATE_TEST_SUITE_P(All, CudaFamily, testing::ValuesIn(FamiliesOnGpus()), [](const auto& param_info) {
  std::string name = param_info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(CudaFamilyTest, WhatDoesNotRunIsRefusedByName) {
  const auto refusal = [](const std::string& name, const HostOps::Options& ops) {
    const auto model = MakeFamilyModel(name, TensorView::DType::kBF16);
    const auto engine = CudaEngine::Create(*model, {.num_blocks = 8}, std::make_unique<HostOps>(ops));
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnimplemented);
    return std::string(engine.status().message());
  };
  EXPECT_THAT(
      refusal("opt-350m", {}),
      testing::HasSubstr("config.json: field architectures: found OPTForCausalLM with norms behind the "
                         "sums (do_layer_norm_before false), supported on the device cuda: "));
  EXPECT_THAT(refusal("deepseek-v3", {}),
              testing::HasSubstr("config.json: field architectures: found DeepseekV3ForCausalLM with latent "
                                 "attention (kv_lora_rank 20), supported on the device cuda: "));
  EXPECT_THAT(refusal("gpt-oss", {.ranks = std::make_shared<HostRanks>(2)}),
              testing::HasSubstr("config.json: field architectures: found GptOssForCausalLM with attention "
                                 "sinks, supported on the device cuda: on several GPUs blocks as Llama's"));
}

TEST(CudaFamilyTest, QuantisedFilesAreRoundedToWhatIsAskedForAndNotSilently) {
  nlohmann::json golden = QuantizedGolden("awq");
  for (nlohmann::json& tensor : golden.at("tensors")) {
    if (tensor.at(0).get<std::string>().ends_with(".weight")) tensor.at(1) = "BF16";
  }
  const TemporaryFolder folder;
  WriteQuantizedModel(golden, folder);
  const auto model = Model::Load(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto engine =
      Open(**model, {.num_blocks = 24, .weight_type = WeightType::kInt8, .use_graphs = false});
  ASSERT_NE(engine, nullptr);
  const nlohmann::json& sequence = golden.at("sequence");
  const auto got = LogitsOf(engine.get(), sequence.at("tokens").get<TokenIds>(),
                            sequence.at("positions").get<std::vector<size_t>>());
  EXPECT_LT(RelativeError(got, sequence.at("logits").get<std::vector<Logits>>()), 0.05);
  const auto refused =
      CudaEngine::Create(**model, {.num_blocks = 8}, std::make_unique<HostOps>(HostOps::Options()));
  EXPECT_THAT(std::string(refused.status().message()),
              testing::HasSubstr("in integers or floats with scales; bfloat16 does not hold its numbers, and "
                                 "nothing is rounded silently: expected --weight-dtype int8 or int4"));
}

}  // namespace
}  // namespace tandem

// Draft heads of every file format against what reference implementations compute with them
// (common/model/testdata/make_tiny_heads.py).

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/model/model.h"
#include "common/model/target_fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Row = std::vector<float>;

std::string HeadFolder(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/heads/", name);
}

Row Numbers(const nlohmann::json& values) {
  Row row;
  for (const nlohmann::json& value : values) {
    row.push_back(value.is_null() ? -std::numeric_limits<float>::infinity() : value.get<float>());
  }
  return row;
}

void ExpectNear(const Row& actual, const Row& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i])) {
      EXPECT_EQ(actual[i], expected[i]) << what << " " << i;
    } else {
      EXPECT_NEAR(actual[i], expected[i], 2e-5) << what << " " << i;
    }
  }
}

struct RowOutput {
  Row logits;
  Row output;
};

// Runs rows one after the other.
class HeadRunner {
 public:
  explicit HeadRunner(Engine* engine)
      : engine_(engine), pool_({.num_blocks = engine->num_blocks()}), sequence_(&pool_, 0) {}

  RowOutput Add(TokenId token, const Row& state, bool own) {
    const auto position = static_cast<uint32_t>(sequence_.tokens().size());
    sequence_.Append({token});
    EXPECT_TRUE(sequence_.Reserve(position + 1).ok());
    RowOutput result{.logits = Row(static_cast<size_t>(engine_->config().vocab_size)),
                     .output = Row(static_cast<size_t>(engine_->config().hidden_size))};
    const std::vector<uint32_t> layers = {1};
    FeatureRequest request{.layers = layers, .states = result.output.data()};
    if (engine_->config().head->own_state_is_normed)
      request = {.final_norm = true, .states = result.output.data()};
    const InputState input{.values = state, .own = own};
    const StepRow row{.token = token,
                      .context = sequence_.CommittedRow(position),
                      .logits = result.logits.data(),
                      .features = &request,
                      .state = &input};
    const absl::Status stepped = engine_->Step({&row, 1});
    EXPECT_TRUE(stepped.ok()) << stepped;
    sequence_.MarkComputed(position + 1);
    return result;
  }

 private:
  Engine* const engine_;
  BlockPool pool_;
  SequenceKv sequence_;
};

// A head of a folder of its own, or the module in a target's.
absl::StatusOr<std::shared_ptr<const Model>> LoadTestHead(const std::string& folder) {
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(folder);
  if (!model.ok() || (*model)->config().head.has_value()) return model;
  return Model::LoadHead(folder, *model);
}

class HeadGolden : public testing::TestWithParam<std::string> {};

TEST_P(HeadGolden, GivesTheReferencesOutputs) {
  const auto model = LoadTestHead(HeadFolder(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto text = ReadFile(HeadFolder(GetParam()) + "/golden.json", 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json golden = nlohmann::json::parse(*text);
  for (const InstructionSet instruction_set : SupportedInstructionSets()) {
    auto engine = CreateCpuEngine(*model, {.num_blocks = 8, .instruction_set = instruction_set});
    ASSERT_TRUE(engine.ok()) << engine.status();
    HeadRunner runner(engine->get());
    RowOutput last;
    const nlohmann::json& tokens = golden["tokens"];
    for (size_t j = 0; j + 1 < tokens.size(); ++j) {
      last = runner.Add(tokens[j + 1], Numbers(golden["states"][j]), /*own=*/false);
      ExpectNear(last.logits, Numbers(golden["logits"][j]), absl::StrCat("logits of row ", j));
      ExpectNear(last.output, Numbers(golden["outputs"][j]), absl::StrCat("output of row ", j));
    }
    for (const nlohmann::json& next : golden["chain"]) {
      last = runner.Add(next["token"], last.output, /*own=*/true);
      ExpectNear(last.logits, Numbers(next["logits"]), "logits of the chain");
      ExpectNear(last.output, Numbers(next["output"]), "output of the chain");
    }
    if (HasFailure()) FAIL() << InstructionSetName(instruction_set);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, HeadGolden,
                         testing::Values("eagle3-specforge", "eagle3-specforge-normed",
                                         "eagle3-speculators-llama", "eagle3-speculators-qwen3",
                                         "eagle3-speculators-normed", "eagle1", "mimo"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::erase(name, '-');
                           return name;
                         });

// A copy of a head in which some fields of config.json are others.
std::shared_ptr<const Model> LoadChanged(const std::string& name, const nlohmann::json& fields,
                                         const HeadOptions& options = {}) {
  const TemporaryFolder copy;
  nlohmann::json config = nlohmann::json::parse(ReadFile(HeadFolder(name) + "/config.json", 1 << 20).value());
  config.update(fields);
  copy.Write("config.json", config.dump());
  copy.Write("model.safetensors", ReadFile(HeadFolder(name) + "/model.safetensors", 16 << 20).value());
  auto head = Model::LoadHead(copy.path(), nullptr, options);
  EXPECT_TRUE(head.ok()) << head.status();
  return head.ok() ? *std::move(head) : nullptr;
}

// How far the rows of the chain, which read their own states, are from the reference's, at most.
float ErrorInChain(const std::shared_ptr<const Model>& head, const std::string& name) {
  const nlohmann::json golden =
      nlohmann::json::parse(ReadFile(HeadFolder(name) + "/golden.json", 16 << 20).value());
  const auto engine =
      CreateCpuEngine(head, {.num_blocks = 8, .instruction_set = InstructionSet::kPortable}).value();
  HeadRunner runner(engine.get());
  RowOutput last;
  const nlohmann::json& tokens = golden["tokens"];
  for (size_t j = 0; j + 1 < tokens.size(); ++j) {
    last = runner.Add(tokens[j + 1], Numbers(golden["states"][j]), /*own=*/false);
    ExpectNear(last.logits, Numbers(golden["logits"][j]), absl::StrCat("logits of row ", j));
  }
  float most = 0;
  for (const nlohmann::json& next : golden["chain"]) {
    last = runner.Add(next["token"], last.output, /*own=*/true);
    const Row expected = Numbers(next["logits"]);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isfinite(expected[i])) most = std::max(most, std::abs(last.logits[i] - expected[i]));
    }
  }
  return most;
}

// What the next level reads: the state as it left the layer, or behind the norm. Logits are from the normed
// state in both, so that only rows below a row tell them apart.
TEST(NormOutputTest, SaysWhatTheNextLevelReads) {
  // golden.json of a plain head, and of one with normed states.
  EXPECT_LT(ErrorInChain(LoadChanged("eagle3-specforge", {{"norm_output", false}}), "eagle3-specforge"),
            2e-5);
  EXPECT_GT(ErrorInChain(LoadChanged("eagle3-specforge", {{"norm_output", true}}), "eagle3-specforge"), 0.1);
  EXPECT_LT(ErrorInChain(LoadChanged("eagle3-specforge-normed", {{"norm_output", true}}),
                         "eagle3-specforge-normed"),
            2e-5);
  EXPECT_GT(ErrorInChain(LoadChanged("eagle3-specforge-normed", {{"norm_output", false}}),
                         "eagle3-specforge-normed"),
            0.1);
  // With the meaning that it had in SpecForge from May to September 2026.
  EXPECT_LT(ErrorInChain(LoadChanged("eagle3-specforge", {{"norm_output", true}}, {.plain_eagle3 = true}),
                         "eagle3-specforge"),
            2e-5);
}

TEST(NormOutputTest, IsTakenAsPlainOnlyWhereItCanBe) {
  // Absent, false (logits without a norm, at that time), and of a format which never had that meaning.
  for (const char* const name : {"eagle3-specforge", "eagle3-speculators-normed", "eagle1"}) {
    const absl::Status refused = Model::LoadHead(HeadFolder(name), nullptr, {.plain_eagle3 = true}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("field norm_output: --plain-eagle3 expects"))
        << name;
  }
}

TEST(HeadFilesTest, SayWhichStatesTheHeadReads) {
  const auto specforge = Model::Load(HeadFolder("eagle3-specforge"));
  ASSERT_TRUE(specforge.ok()) << specforge.status();
  // Outputs of layers 0, 2 and 3.
  EXPECT_THAT((*specforge)->config().head->feature_layers, ElementsAre(1, 3, 4));
  const auto speculators = Model::Load(HeadFolder("eagle3-speculators-qwen3"));
  ASSERT_TRUE(speculators.ok()) << speculators.status();
  EXPECT_THAT((*speculators)->config().head->feature_layers, ElementsAre(1, 3));
  EXPECT_TRUE((*speculators)->config().qk_norm);
  const auto eagle = Model::Load(HeadFolder("eagle1"));
  ASSERT_TRUE(eagle.ok()) << eagle.status();
  EXPECT_TRUE((*eagle)->config().head->feature_final_norm);
  for (const char* const name : {"eagle3-specforge", "eagle1"}) {
    EXPECT_TRUE(Model::IsHead(HeadFolder(name)).value()) << name;
  }
  EXPECT_FALSE(Model::IsHead(absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/tiny-llama")).value());
}

TEST(HeadFilesTest, ATargetsOwnFolderStandsForItsNextTokenModule) {
  const std::string folder = HeadFolder("mimo");
  EXPECT_FALSE(Model::IsHead(folder).value());
  EXPECT_TRUE(Model::IsHead(folder, folder + "/").value());
  const auto target = Model::Load(folder);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_FALSE((*target)->config().head.has_value());
  const auto module = Model::LoadHead(folder, *target);
  ASSERT_TRUE(module.ok()) << module.status();
  const HeadConfig& head = *(*module)->config().head;
  EXPECT_EQ(HeadKindName(head.kind), "mtp");
  EXPECT_TRUE(head.feature_final_norm && head.feature_layers.empty());
  EXPECT_EQ(head.target_fingerprint, TargetFingerprint(**target));
  EXPECT_EQ((*module)->output().data, (*target)->output().data);
  EXPECT_NE((*module)->final_norm().data, (*target)->final_norm().data);
  EXPECT_LT((*module)->weight_bytes(), (*target)->weight_bytes());
}

TEST(HeadFilesTest, WhatIsLeftOutIsTheTargets) {
  const absl::Status alone = Model::Load(HeadFolder("eagle3-shared")).status();
  EXPECT_EQ(alone.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(alone.message()), HasSubstr("--head-target"));

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
  const auto target = Model::Random(config, 1);
  ASSERT_TRUE(target.ok()) << target.status();
  const auto head = Model::LoadHead(HeadFolder("eagle3-shared"), *target);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_THAT((*head)->config().head->feature_layers, ElementsAre(2, 4, 6));
  EXPECT_EQ((*head)->embedding().data, (*target)->embedding().data);
  EXPECT_EQ((*head)->output().data, (*target)->output().data);

  config.vocab_size = 47;
  const auto other = Model::LoadHead(HeadFolder("eagle3-shared"), Model::Random(config, 1).value()).status();
  EXPECT_THAT(std::string(other.message()), HasSubstr("has shape [47, 32], expected [48, 32]"));
  config.num_layers = 4;
  const auto shallow =
      Model::LoadHead(HeadFolder("eagle3-shared"), Model::Random(config, 1).value()).status();
  EXPECT_THAT(std::string(shallow.message()), HasSubstr("a target of fewer than 6 layers"));
  const auto no_head =
      Model::LoadHead(absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/tiny-llama"), *target).status();
  EXPECT_THAT(std::string(no_head.message()), HasSubstr("expected a draft head's"));
}

}  // namespace
}  // namespace tandem

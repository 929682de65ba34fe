// Draft heads of every file format against what reference implementations compute with them
// (common/model/testdata/make_tiny_heads.py).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
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
    const std::vector<uint32_t> layers = {static_cast<uint32_t>(engine_->config().num_layers)};
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
                                         "eagle3-speculators-normed", "eagle31-speculators",
                                         "eagle31-specforge", "eagle3-modelopt-normed",
                                         "eagle3-modelopt-final", "eagle3-deep-llama", "eagle3-deep-qwen3",
                                         "eagle1", "mimo"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::erase(name, '-');
                           return name;
                         });

// The file with other names of tensors.
std::string Renamed(const std::string& file, const std::function<std::string(std::string)>& rename) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  const std::string data = file.substr(8 + size);
  // Not a temporary in the loop: items() refers to it.
  const nlohmann::json before = nlohmann::json::parse(file.substr(8, size));
  nlohmann::json header;
  for (const auto& [name, entry] : before.items()) {
    header[name == "__metadata__" ? name : rename(name)] = entry;
  }
  const std::string text = header.dump();
  size = text.size();
  return absl::StrCat(std::string(reinterpret_cast<const char*>(&size), sizeof(size)), text, data);
}

// A copy of a head in which some fields of config.json are others.
std::shared_ptr<const Model> LoadChanged(const std::string& name, const nlohmann::json& fields,
                                         const HeadOptions& options = {},
                                         const std::function<std::string(std::string)>& rename = {}) {
  const TemporaryFolder copy;
  nlohmann::json config = nlohmann::json::parse(ReadFile(HeadFolder(name) + "/config.json", 1 << 20).value());
  if (!fields.empty()) config.update(fields);
  copy.Write("config.json", config.dump());
  const std::string weights = ReadFile(HeadFolder(name) + "/model.safetensors", 16 << 20).value();
  copy.Write("model.safetensors", rename ? Renamed(weights, rename) : weights);
  auto head = Model::LoadHead(copy.path(), nullptr, options);
  EXPECT_TRUE(head.ok()) << head.status();
  return head.ok() ? *std::move(head) : nullptr;
}

// How far the logits of a head's rows are from the reference's, at most: those that read the target's states,
// and those of the chain, which read their own.
struct Errors {
  float of_rows = 0;
  float of_chain = 0;
};
Errors ErrorsOf(const std::shared_ptr<const Model>& head, const std::string& name) {
  const nlohmann::json golden =
      nlohmann::json::parse(ReadFile(HeadFolder(name) + "/golden.json", 16 << 20).value());
  const auto engine =
      CreateCpuEngine(head, {.num_blocks = 8, .instruction_set = InstructionSet::kPortable}).value();
  HeadRunner runner(engine.get());
  RowOutput last;
  const auto add = [&](const nlohmann::json& logits, float* most) {
    const Row expected = Numbers(logits);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isfinite(expected[i])) *most = std::max(*most, std::abs(last.logits[i] - expected[i]));
    }
  };
  Errors errors;
  const nlohmann::json& tokens = golden["tokens"];
  for (size_t j = 0; j + 1 < tokens.size(); ++j) {
    last = runner.Add(tokens[j + 1], Numbers(golden["states"][j]), /*own=*/false);
    add(golden["logits"][j], &errors.of_rows);
  }
  for (const nlohmann::json& next : golden["chain"]) {
    last = runner.Add(next["token"], last.output, /*own=*/true);
    add(next["logits"], &errors.of_chain);
  }
  return errors;
}

float ErrorOfRows(const std::shared_ptr<const Model>& head, const std::string& name) {
  return ErrorsOf(head, name).of_rows;
}

// Where nothing but the chain may differ.
float ErrorInChain(const std::shared_ptr<const Model>& head, const std::string& name) {
  const Errors errors = ErrorsOf(head, name);
  EXPECT_LT(errors.of_rows, 2e-5) << name;
  return errors.of_chain;
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

// What other trainers call the same head.
TEST(HeadNamesTest, DifferAndMeanTheSame) {
  EXPECT_LT(ErrorInChain(LoadChanged("eagle3-specforge",
                                     {{"architectures", nlohmann::json::array({"Eagle3LlamaForCausalLM"})}}),
                         "eagle3-specforge"),
            2e-5);
  // The authors'.
  const nlohmann::json authors = {{"architectures", nlohmann::json::array({"LlamaForCausalLM"})},
                                  {"eagle_config", nullptr},
                                  {"eagle_aux_hidden_state_layer_ids", {1, 3, 4}}};
  EXPECT_LT(ErrorInChain(LoadChanged("eagle3-specforge", authors), "eagle3-specforge"), 2e-5);
  // SGLang's further layers, and a name before all but the output matrix.
  const auto renamed = [](std::string name) {
    for (int i = 1; i < 3; ++i) {
      const std::string before = absl::StrCat("layers.", i, ".");
      if (name.starts_with(before))
        name = absl::StrCat("additional_layers.", i - 1, ".", name.substr(before.size()));
    }
    if (name.starts_with("additional") && name.ends_with("input_layernorm.weight")) {
      name = name.substr(0, name.find("input_layernorm")) + "hidden_norm.weight";
    }
    return name == "lm_head.weight" ? name : "model." + name;
  };
  EXPECT_LT(ErrorInChain(LoadChanged("eagle3-deep-llama", nlohmann::json::object(), {}, renamed),
                         "eagle3-deep-llama"),
            2e-5);
}

// A head is not its neighbour: each of these would load with the other's fields and give other numbers.
TEST(HeadNamesTest, FieldsMatterToTheOutput) {
  const nlohmann::json config =
      nlohmann::json::parse(ReadFile(HeadFolder("eagle3-deep-llama") + "/config.json", 1 << 20).value());
  nlohmann::json layer = config["transformer_layer_config"];
  layer["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_GT(ErrorOfRows(LoadChanged("eagle3-deep-llama", {{"transformer_layer_config", layer}}),
                        "eagle3-deep-llama"),
            0.01);
  layer = config["transformer_layer_config"];
  layer["sliding_window"] = 5;
  EXPECT_GT(ErrorOfRows(LoadChanged("eagle3-deep-llama", {{"transformer_layer_config", layer}}),
                        "eagle3-deep-llama"),
            0.01);
  EXPECT_GT(
      ErrorOfRows(LoadChanged("eagle31-specforge", {{"norm_before_residual", true}}), "eagle31-specforge"),
      0.01);
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

absl::StatusOr<std::shared_ptr<const Model>> LoadForTarget(const std::string& name,
                                                           const nlohmann::json& fields,
                                                           const std::shared_ptr<const Model>& target) {
  const TemporaryFolder copy;
  nlohmann::json config = nlohmann::json::parse(ReadFile(HeadFolder(name) + "/config.json", 1 << 20).value());
  config.update(fields);
  copy.Write("config.json", config.dump());
  copy.Write("model.safetensors", ReadFile(HeadFolder(name) + "/model.safetensors", 16 << 20).value());
  return Model::LoadHead(copy.path(), target);
}

// An eagle_config names layers, whose outputs the head reads. Files that name states give themselves away by
// the last one, or by what is everybody's choice.
TEST(HeadFilesTest, NumbersOfLayersOrOfStates) {
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
  using Layers = std::vector<uint32_t>;
  const std::vector<std::pair<Layers, Layers>> cases = {{{1, 3, 5}, {2, 4, 6}},
                                                        {{2, 4, 6}, {2, 4, 6}},
                                                        {{3, 5, 8}, {4, 6, 9}},
                                                        {{3, 6, 9}, {3, 6, 9}},
                                                        {{}, {2, 4, 6}}};
  for (const auto& [numbers, states] : cases) {
    const auto head = LoadForTarget(
        "eagle3-shared", {{"eagle_config", {{"eagle_aux_hidden_state_layer_ids", numbers}}}}, *target);
    ASSERT_TRUE(head.ok()) << head.status();
    EXPECT_EQ((*head)->config().head->feature_layers, states);
  }
  // Beside the file's own fields they are those of states.
  const auto plain =
      LoadForTarget("eagle3-shared", {{"eagle_aux_hidden_state_layer_ids", {1, 3, 5}}}, *target);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT((*plain)->config().head->feature_layers, ElementsAre(1, 3, 5));
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

  // A configuration may repeat the target's number of layers; the file has one.
  auto repeats = LoadForTarget("eagle3-shared", {{"num_hidden_layers", 9}}, *target);
  ASSERT_TRUE(repeats.ok()) << repeats.status();
  EXPECT_EQ((*repeats)->config().num_layers, 1);
  EXPECT_EQ((*repeats)->layers().size(), 1u);
  repeats = LoadForTarget("eagle3-shared", {{"num_hidden_layers", 8}}, *target);
  EXPECT_THAT(
      std::string(repeats.status().message()),
      HasSubstr("field num_hidden_layers: found 8, expected 1, as many layers as the file has, or the "
                "target's 9"));

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

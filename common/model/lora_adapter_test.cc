// Adapters as PEFT writes them: what is read, and that whatever else a folder holds is refused by file, field
// or tensor. What they compute is tested with the engine.

#include "common/model/lora_adapter.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/temporary_folder.h"
#include "common/model/config/lora_config.h"
#include "common/model/config/model_config.h"
#include "common/model/testing/lora_fixture.h"
#include "common/model/testing/model_folder_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig ConfigOf(const nlohmann::json& golden) {
  return MakeAdaptedModel(golden)->config();
}

TEST(LoraAdapterTest, ReadsRanksAndScalesByModule) {
  const nlohmann::json golden = AdapterGolden("llama");
  const ModelConfig model = ConfigOf(golden);
  const auto adapter = MakeAdapter(golden, 1, model);
  ASSERT_NE(adapter, nullptr);
  ASSERT_EQ(adapter->layers().size(), 2u);
  EXPECT_EQ(adapter->greatest_rank(), 8u);
  for (const LoraLayer& layer : adapter->layers()) {
    for (const LoraPair* pair : {&layer.query, &layer.key, &layer.value, &layer.attention_out, &layer.gate,
                                 &layer.up, &layer.down}) {
      EXPECT_TRUE(pair->exists());
    }
    EXPECT_EQ(layer.value.a.shape, (std::vector<int64_t>{3, 32}));
    EXPECT_EQ(layer.down.a.shape, (std::vector<int64_t>{8, 48}));
    EXPECT_EQ(layer.gate.b.shape, (std::vector<int64_t>{48, 8}));
    EXPECT_FLOAT_EQ(layer.value.scale, 16.0f / 3.0f);
    EXPECT_FLOAT_EQ(layer.key.scale, 2.0f);
  }
  EXPECT_FLOAT_EQ(adapter->layers()[0].query.scale, 2.0f);
  EXPECT_FLOAT_EQ(adapter->layers()[1].query.scale, 5.0f / 8.0f);
}

TEST(LoraAdapterTest, ReadsOneLayerWithAStabilisedRank) {
  const nlohmann::json golden = AdapterGolden("qwen2");
  const auto adapter = MakeAdapter(golden, 1, ConfigOf(golden));
  ASSERT_NE(adapter, nullptr);
  EXPECT_FALSE(adapter->layers()[0].query.exists());
  EXPECT_TRUE(adapter->layers()[1].query.exists());
  EXPECT_FALSE(adapter->layers()[1].key.exists());
  EXPECT_FLOAT_EQ(adapter->layers()[1].down.scale, static_cast<float>(6 / std::sqrt(4.0)));
}

TEST(LoraAdapterTest, PartsOfOneTensorShareItsFirstMatrix) {
  for (const char* const name : {"phi3", "gpt-neox", "gpt2"}) {
    const nlohmann::json golden = AdapterGolden(name);
    const ModelConfig model = ConfigOf(golden);
    const auto adapter = MakeAdapter(golden, 1, model);
    ASSERT_NE(adapter, nullptr);
    const LoraLayer& layer = adapter->layers()[0];
    EXPECT_EQ(layer.query.a.data, layer.value.a.data) << name;
    EXPECT_EQ(layer.query.b.shape[0], model.query_size()) << name;
    EXPECT_EQ(layer.key.b.shape[0], model.kv_size()) << name;
    EXPECT_NE(layer.query.b.data, layer.key.b.data) << name;
  }
}

TEST(LoraAdapterTest, FingerprintsTellAdaptersApart) {
  const nlohmann::json golden = AdapterGolden("llama");
  const ModelConfig model = ConfigOf(golden);
  const uint64_t one = MakeAdapter(golden, 1, model)->fingerprint();
  EXPECT_EQ(one, MakeAdapter(golden, 1, model)->fingerprint());
  EXPECT_NE(one, MakeAdapter(golden, 2, model)->fingerprint());
  nlohmann::json scaled = golden;
  scaled["config"]["lora_alpha"] = 17;
  EXPECT_NE(one, MakeAdapter(scaled, 1, model)->fingerprint());
}

// A one-layer Llama and an adapter of its queries.
class AdapterFolderTest : public testing::Test {
 protected:
  AdapterFolderTest() {
    model_ = ParseModelConfig(SmallConfig().dump(), "model/config.json").value();
    config_ = {{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"},     {"r", 2},
               {"lora_alpha", 4},     {"target_modules", {"q_proj"}}, {"bias", "none"}};
    tensors_ = {{Name("self_attn.q_proj", "A"), {2, 8}}, {Name("self_attn.q_proj", "B"), {8, 2}}};
  }

  static std::string Name(const std::string& module, const char* which) {
    return absl::StrCat("base_model.model.model.layers.0.", module, ".lora_", which, ".weight");
  }

  absl::Status Load() {
    folder_.Write("adapter_config.json", config_.dump());
    folder_.Write("adapter_model.safetensors", SafetensorsBytes(tensors_));
    return LoraAdapter::Load(folder_.path(), model_).status();
  }

  const TemporaryFolder folder_;
  ModelConfig model_;
  nlohmann::json config_;
  TensorShapes tensors_;
};

TEST_F(AdapterFolderTest, TakesWhatChangesNothing) {
  for (const auto& [field, value] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"lora_dropout", 0.1},
                                                           {"fan_in_fan_out", true},
                                                           {"init_lora_weights", "gaussian"},
                                                           {"base_model_name_or_path", "someone/model"},
                                                           {"layers_to_transform", 0},
                                                           {"layers_to_transform", {0}},
                                                           {"exclude_modules", {"k_proj"}},
                                                           {"target_modules", ".*q_proj"},
                                                           {"a_field_of_tomorrow", nullptr},
                                                           {"another_one", false}}) {
    const nlohmann::json before = config_;
    config_[field] = value;
    EXPECT_EQ(Load(), absl::OkStatus()) << field;
    config_ = before;
  }
}

TEST_F(AdapterFolderTest, RefusesFieldsByName) {
  struct Case {
    const char* field;
    nlohmann::json value;
    const char* found;
    absl::StatusCode code = absl::StatusCode::kUnimplemented;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (const Case& each :
       std::vector<Case>{{"peft_type", "IA3", "LORA"},
                         {"peft_type", nullptr, "LORA", kInvalid},
                         {"task_type", "SEQ_CLS", "CAUSAL_LM"},
                         {"bias", "lora_only", "none"},
                         {"use_dora", true, "false"},
                         {"lora_bias", true, "false"},
                         {"modules_to_save", {"lm_head"}, "none"},
                         {"init_lora_weights", "pissa_niter_4", "the model's own weights"},
                         {"layer_replication", nlohmann::json::parse("[[0, 1]]"), "none"},
                         {"trainable_token_indices", {1, 2}, "none"},
                         {"alora_invocation_tokens", {3}, "none"},
                         {"use_qalora", true, "none"},
                         {"a_field_of_tomorrow", 3, "none"},
                         {"rank_pattern", {{"q_.*", 3}}, "without patterns"},
                         {"rank_pattern", {{"q_proj", 0}}, "1 to 1024", kInvalid},
                         {"rank_pattern", {{"q_proj", 3}, {"self_attn.q_proj", 2}}, "both mean", kInvalid},
                         {"alpha_pattern", {{"q_proj", nullptr}}, "a number", kInvalid},
                         {"r", 0, "1 to 1024", kInvalid},
                         {"r", "8", "1 to 1024", kInvalid},
                         {"lora_alpha", -1, "from 0", kInvalid},
                         {"lora_alpha", nullptr, "a number", kInvalid},
                         {"target_modules", nullptr, "names", kInvalid},
                         {"target_modules", {1}, "names", kInvalid},
                         {"exclude_modules", "q.*", "names", kInvalid},
                         {"layers_to_transform", {-1}, "a layer's number", kInvalid},
                         {"use_rslora", 1, "true or false", kInvalid}}) {
    const nlohmann::json before = config_;
    config_[each.field] = each.value;
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), each.code) << each.field << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("adapter_config.json"), HasSubstr(each.field), HasSubstr(each.found)));
    config_ = before;
  }
}

TEST_F(AdapterFolderTest, RefusesTensorsByName) {
  struct Case {
    TensorShapes tensors;
    const char* found;
    absl::StatusCode code = absl::StatusCode::kUnimplemented;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::string a = Name("self_attn.q_proj", "A"), b = Name("self_attn.q_proj", "B");
  for (const Case& each : std::vector<Case>{
           {{{a, {2, 8}}}, "no counterpart", absl::StatusCode::kNotFound},
           {{{b, {8, 2}}}, "no counterpart", absl::StatusCode::kNotFound},
           {{{Name("self_attn.k_proj", "A"), {2, 8}}, {Name("self_attn.k_proj", "B"), {4, 2}}},
            "q_proj.lora_A.weight\" is missing",
            absl::StatusCode::kNotFound},
           {{{a, {3, 8}}, {b, {8, 3}}}, "shape [3, 8], expected [2, 8]", kInvalid},
           {{{a, {2, 8}}, {b, {9, 2}}}, "shape [9, 2], expected [8, 2]", kInvalid},
           {{{a, {16}}, {b, {8, 2}}}, "shape [16], expected [2, 8]", kInvalid},
           {{{a, {2, 8}}, {b, {8, 2}}, {Name("self_attn.x_proj", "A"), {2, 8}}}, "not a module"},
           {{{a, {2, 8}}, {b, {8, 2}}, {"base_model.model.lm_head.lora_A.weight", {2, 8}}}, "not a module"},
           {{{a, {2, 8}}, {b, {8, 2}}, {"base_model.model.model.embed_tokens.lora_embedding_A", {2, 10}}},
            "an embedding"},
           {{{a, {2, 8}}, {b, {8, 2}}, {"base_model.model.lm_head.weight", {10, 8}}}, "trained as a whole"},
           {{{a, {2, 8}},
             {b, {8, 2}},
             {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", {8}}},
            "DoRA"},
           {{{a, {2, 8}}, {b, {8, 2}}, {"model.layers.0.self_attn.q_proj.lora_A.weight", {2, 8}}},
            "not a name that PEFT gives"},
           {{{"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", {2, 8}}}, "not a module"}}) {
    tensors_ = each.tensors;
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), each.code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr(each.found)));
  }
}

TEST_F(AdapterFolderTest, NamesTheFileThatIsMissing) {
  ASSERT_EQ(Load(), absl::OkStatus());
  folder_.Remove("adapter_model.safetensors");
  absl::Status status = LoraAdapter::Load(folder_.path(), model_).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("adapter_model.safetensors"));
  folder_.Remove("adapter_config.json");
  status = LoraAdapter::Load(folder_.path(), model_).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("adapter_config.json"));
}

// Files of such models begin with one of two roots, or none; an adapter may have its tensors under either.
TEST(LoraAdapterTest, RefusesAModuleThatIsNamedTwice) {
  nlohmann::json golden = AdapterGolden("gpt2");
  const ModelConfig model = ConfigOf(golden);
  nlohmann::json again = golden["tensors"][0];
  std::string name = again[0].get<std::string>();
  name.erase(name.find("transformer."), std::string("transformer.").size());
  again[0] = name;
  golden["tensors"].push_back(again);
  const TemporaryFolder folder;
  WriteAdapter(golden, 1, folder);
  const absl::Status status = LoraAdapter::Load(folder.path(), model).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("for the same module"));
}

TEST(LoraAdapterTest, RefusesAnAdapterOfLatentAttention) {
  const nlohmann::json golden = AdapterGolden("llama");
  ModelConfig model = ConfigOf(golden);
  model.block.latent.kv_rank = 16;
  const TemporaryFolder folder;
  WriteAdapter(golden, 1, folder);
  const absl::Status status = LoraAdapter::Load(folder.path(), model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("adapter_config.json: an adapter of a LlamaForCausalLM with latent attention "
                              "(kv_lora_rank 16)"),
                    HasSubstr("supported: of models without")));
}

TEST(LoraAdapterTest, RefusesAnAdapterOfExperts) {
  nlohmann::json golden = AdapterGolden("mixtral");
  const ModelConfig model = ConfigOf(golden);
  golden["tensors"].push_back({"base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight",
                               {8, 32},
                               0.0,
                               0.0009765625,
                               8});
  const TemporaryFolder folder;
  WriteAdapter(golden, 1, folder);
  const absl::Status status = LoraAdapter::Load(folder.path(), model).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("experts"), HasSubstr("self_attn.q_proj")));
}

}  // namespace
}  // namespace tandem

// What the families' config.json mean, and what of them is refused; common/engine/cpu/family_test.cc compares
// what comes out with the reference.

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"
#include "common/model/config/family.h"
#include "common/model/config/model_config.h"
#include "common/model/tensor_convert.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/model_folder_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json ConfigOf(const std::string& family) {
  return FamilyGolden(family).at("config");
}

absl::StatusOr<ModelConfig> ParseWith(const std::string& family, const Json& changes = Json::object()) {
  Json config = ConfigOf(family);
  config.update(changes);
  return ParseModelConfig(config.dump(), "folder/config.json");
}

TEST(FamiliesTest, EveryTinyModelLoadsAndCountsItsParameters) {
  for (const std::string& name : FamilyModelNames()) {
    SCOPED_TRACE(name);
    const Json golden = FamilyGolden(name);
    const auto model = MakeFamilyModel(golden, 1);
    ASSERT_NE(model, nullptr);
    uint64_t num_parameters = 0;
    for (const Json& tensor : golden.at("tensors")) {
      uint64_t count = 1;
      for (const Json& size : tensor.at(1)) count *= size.get<uint64_t>();
      num_parameters += count;
    }
    EXPECT_EQ(model->num_parameters(), num_parameters);
  }
}

TEST(FamiliesTest, ATensorThatIsMissingIsNamed) {
  for (const std::string& name : FamilyModelNames()) {
    SCOPED_TRACE(name);
    Json golden = FamilyGolden(name);
    // The last of a layer.
    Json& tensors = golden.at("tensors");
    const std::string missing = tensors.at(tensors.size() / 2).at(0).get<std::string>();
    tensors.erase(tensors.size() / 2);
    const absl::Status status = LoadFamilyModel(golden, 1, TensorView::DType::kBF16).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("model.safetensors: tensor \"" + missing + "\" is missing"),
                      HasSubstr("expected with shape")));
  }
}

// Every field of an object, of those inside it, and every string.
void AddWords(const Json& value, std::set<std::string>& words) {
  if (value.is_string()) words.insert(value.get<std::string>());
  if (value.is_object()) {
    for (const auto& item : value.items()) words.insert(item.key());
  }
  if (!value.is_structured()) return;
  for (const Json& inner : value) AddWords(inner, words);
}

TEST(FamiliesTest, TheFuzzersDictionaryHasEveryWord) {
  const std::string path = absl::StrCat(TANDEM_SOURCE_DIR, "/tests/fuzz/dictionaries/model_config.dict");
  const auto dictionary = ReadFile(path, 1 << 20);
  ASSERT_TRUE(dictionary.ok()) << dictionary.status();
  for (const std::string& name : FamilyModelNames()) {
    SCOPED_TRACE(name);
    std::set<std::string> words;
    AddWords(ConfigOf(name), words);
    for (const std::string& word : words) {
      const std::string line = absl::StrCat("\n\"\\x22", word, "\\x22\"\n");
      EXPECT_TRUE(absl::StrContains(*dictionary, line)) << path << " lacks " << word;
    }
  }
}

TEST(FamiliesTest, OlderSpellingsOfTensorNamesAreRead) {
  const auto without = [](const std::string& family, const std::string& prefix) {
    Json golden = FamilyGolden(family);
    for (Json& tensor : golden.at("tensors")) {
      const auto name = tensor.at(0).get<std::string>();
      if (name.rfind(prefix, 0) == 0) tensor.at(0) = name.substr(prefix.size());
    }
    return golden;
  };
  EXPECT_NE(MakeFamilyModel(without("gpt2", "transformer."), 1), nullptr);
  EXPECT_NE(MakeFamilyModel(without("bloom", "transformer."), 1), nullptr);
  EXPECT_NE(MakeFamilyModel(without("opt", "model."), 1), nullptr);
}

TEST(FamiliesTest, BuffersOfOlderFilesAreIgnored) {
  Json golden = FamilyGolden("gpt2");
  golden.at("tensors").push_back({"transformer.h.0.attn.bias", {1, 1, 8, 8}, 0.0, 0.125, 4});
  EXPECT_NE(MakeFamilyModel(golden, 1), nullptr);
  golden.at("tensors").push_back({"transformer.h.0.attn.other", {8}, 0.0, 0.125, 4});
  EXPECT_THAT(std::string(LoadFamilyModel(golden, 1, TensorView::DType::kF32).status().message()),
              HasSubstr("attn.other"));
}

TEST(FamiliesTest, LongContextsAreThoseThatScalingStretches) {
  EXPECT_EQ(ParseWith("llama-dynamic")->max_context, 48);
  // 4 times 16.
  EXPECT_EQ(ParseWith("llama-yarn", {{"max_position_embeddings", 16}})->max_context, 64);
  const auto yarn = ParseWith("llama-yarn");
  EXPECT_EQ(yarn->rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_NEAR(yarn->rope_scaling.attention_factor, 1.1386, 1e-4);
  const auto longrope = ParseWith("phi3-longrope");
  EXPECT_EQ(longrope->rope_scaling.kind, RopeScaling::Kind::kLongRope);
  EXPECT_DOUBLE_EQ(longrope->rope_scaling.divisors.at(1), 1.9);
  // A context that is not stretched takes the short list.
  const auto original = ParseWith("phi3-longrope", {{"max_position_embeddings", 16}});
  EXPECT_DOUBLE_EQ(original->rope_scaling.divisors.at(1), 1.05);
}

TEST(FamiliesTest, LayersDifferAsTheySay) {
  const auto gemma = ParseWith("gemma2", {{"layer_types", nullptr}});
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_THAT((std::vector<int32_t>{gemma->window(0), gemma->window(1), gemma->window(2)}),
              ElementsAre(8, 0, 8));
  const auto gemma3 = ParseWith("gemma3");
  EXPECT_TRUE(gemma3->block.layer(0).is_local);
  EXPECT_FALSE(gemma3->block.layer(1).is_local);
  EXPECT_EQ(gemma3->rope_scaling.kind, RopeScaling::Kind::kLinear);
  const auto smollm = ParseWith("smollm3", {{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 3}});
  EXPECT_TRUE(smollm->block.layer(1).rotates);
  EXPECT_FALSE(smollm->block.layer(2).rotates);
}

TEST(FamiliesTest, ExpertsAreInTheLayersThatHaveThem) {
  const auto qwen2 = ParseWith("qwen2-moe");
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_THAT((std::vector<bool>{qwen2->block.has_experts(0), qwen2->block.has_experts(1)}),
              ElementsAre(false, true));
  EXPECT_FALSE(qwen2->block.experts.scores_add_up_to_one);
  EXPECT_EQ(qwen2->block.experts.shared_size, 40);
  const auto qwen3 = ParseWith("qwen3-moe");
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_THAT((std::vector<bool>{qwen3->block.has_experts(0), qwen3->block.has_experts(1),
                                 qwen3->block.has_experts(2)}),
              ElementsAre(false, true, false));
  EXPECT_TRUE(qwen3->block.experts.scores_add_up_to_one);
  const auto model = MakeFamilyModel("qwen2-moe");
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->layers()[0].experts.empty());
  EXPECT_EQ(model->layers()[1].experts.size(), 6u);
}

TEST(FamiliesTest, MixturesSlideWhereTheySay) {
  const auto windows = [](const absl::StatusOr<ModelConfig>& config) {
    std::vector<int32_t> of_layers;
    if (!config.ok()) ADD_FAILURE() << config.status();
    for (size_t i = 0; config.ok() && i < static_cast<size_t>(config->num_layers); ++i) {
      of_layers.push_back(config->window(i));
    }
    return of_layers;
  };
  EXPECT_THAT(windows(ParseWith("qwen2-moe-windows")), ElementsAre(8, 0, 8));
  // What transformers makes of a file without a list.
  EXPECT_THAT(windows(ParseWith("qwen2-moe-windows", {{"layer_types", nullptr}})), ElementsAre(8, 0, 8));
  EXPECT_THAT(windows(ParseWith("qwen2-moe-windows", {{"layer_types", nullptr}, {"max_window_layers", 2}})),
              ElementsAre(8, 0, 0));
  EXPECT_THAT(windows(ParseWith("qwen3-moe-windows")), ElementsAre(8, 8));
  EXPECT_THAT(windows(ParseWith("qwen3-moe-windows", {{"use_sliding_window", false}})), ElementsAre(0, 0));
}

TEST(FamiliesTest, StarCoder2HasTheDefaultsOfItsConfigurationClass) {
  Json config = ConfigOf("starcoder2");
  for (const char* name : {"use_bias", "num_key_value_heads", "sliding_window", "hidden_act", "norm_epsilon",
                           "max_position_embeddings", "tie_word_embeddings", "rope_parameters"}) {
    ASSERT_EQ(config.erase(name), 1u) << name;
  }
  const auto defaults = ParseModelConfig(config.dump(), "folder/config.json");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_TRUE(defaults->attention_bias && defaults->attention_output_bias && defaults->mlp_bias);
  EXPECT_TRUE(defaults->tied_embeddings);
  EXPECT_EQ(defaults->num_kv_heads, 2);
  EXPECT_EQ(defaults->window(0), 0);
  EXPECT_EQ(defaults->max_context, 4096);
  EXPECT_EQ(defaults->block.activation, Activation::kGeluTanh);
  EXPECT_FLOAT_EQ(defaults->rms_norm_epsilon, 1e-5f);
  EXPECT_DOUBLE_EQ(defaults->rope_theta, 10000.0);
  // The spelling of transformers 4, which the published files have.
  config["rope_theta"] = 999999.0;
  config["sliding_window"] = 4096;
  config["use_bias"] = false;
  const auto given = ParseModelConfig(config.dump(), "folder/config.json");
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_DOUBLE_EQ(given->rope_theta, 999999.0);
  EXPECT_EQ(given->window(1), 4096);
  EXPECT_FALSE(given->attention_bias || given->attention_output_bias || given->mlp_bias);
}

TEST(FamiliesTest, LatentsAreKeptAsOneHead) {
  const auto lite = ParseWith("deepseek-v2-lite");
  ASSERT_TRUE(lite.ok()) << lite.status();
  EXPECT_EQ(lite->num_kv_heads, 1);
  EXPECT_EQ(lite->head_dim, 20 + 8);
  EXPECT_EQ(lite->value_dim(), 20);
  EXPECT_EQ(lite->rotary_dim(), 8);
  EXPECT_EQ(lite->projected_size(), 4 * (12 + 8) + 20 + 8);
  EXPECT_EQ(lite->attended_size(), 4 * 10);
  // 0.1 * 0.707 * ln(4) + 1, squared.
  EXPECT_NEAR(lite->block.attention_scale.value(), 1.20563 / std::sqrt(20.0), 1e-5);
  EXPECT_DOUBLE_EQ(lite->rope_scaling.attention_factor, 1.0);
  EXPECT_EQ(lite->block.experts.shared_size, 2 * 24);
  EXPECT_FALSE(lite->block.experts.shared_gate);
  EXPECT_FALSE(lite->block.has_experts(0));
  EXPECT_TRUE(lite->block.has_experts(1));
  const auto v3 = ParseWith("deepseek-v3");
  ASSERT_TRUE(v3.ok()) << v3.status();
  EXPECT_EQ(v3->projected_size(), 24 + 20 + 8);
  EXPECT_EQ(v3->block.experts.score, ExpertScore::kSigmoid);
  EXPECT_EQ(v3->block.experts.group_places, 2);
  EXPECT_TRUE(v3->block.rotary_pairs_adjacent);
  const auto alone = ParseWith("deepseek-v3", {{"n_shared_experts", nullptr}});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->block.experts.shared_size, 0);
}

TEST(FamiliesTest, NextTokenModulesOfDeepSeekAreLeftAloneAndRefusedAsDraftHeads) {
  Json golden = FamilyGolden("deepseek-v3");
  golden.at("config")["num_nextn_predict_layers"] = 1;
  golden.at("tensors").push_back({"model.layers.2.eh_proj.weight", {32, 64}, 0.0, 0.125, 4});
  const TemporaryFolder folder;
  folder.Write("config.json", golden.at("config").dump());
  folder.Write("model.safetensors", GoldenTensorFile(golden.at("tensors"), 1, TensorView::DType::kBF16));
  const auto model = Model::Load(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status status = Model::LoadHead(folder.path(), *model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("config.json: field architectures: found DeepseekV3ForCausalLM, whose next-token module "
                "is layer 2, supported for a draft head"));
}

// gpt-oss with its experts in MXFP4, whose numbers follow from the place of each byte.
class MxFp4Folder {
 public:
  explicit MxFp4Folder(const Json& golden) : golden_(golden) {
    for (const Json& tensor : golden_.at("tensors")) {
      const auto name = tensor.at(0).get<std::string>();
      auto shape = tensor.at(1).get<std::vector<int64_t>>();
      if (!name.ends_with("experts.gate_up_proj") && !name.ends_with("experts.down_proj")) {
        AddBytes(name, "BF16", shape, 2);
        continue;
      }
      std::swap(shape[1], shape[2]);
      shape[2] /= 32;
      AddBytes(name + "_scales", "U8", shape, 1);
      shape.push_back(16);
      AddBytes(name + "_blocks", "U8", shape, 1);
    }
  }

  Json& header() { return header_; }

  absl::StatusOr<std::shared_ptr<const Model>> Load() const {
    const TemporaryFolder folder;
    Json config = golden_.at("config");
    config["quantization_config"] = {{"quant_method", "mxfp4"}};
    folder.Write("config.json", config.dump());
    folder.Write("model.safetensors", SafetensorsBytes(header_.dump(), data_));
    return Model::Load(folder.path());
  }

 private:
  void AddBytes(const std::string& name, const char* dtype, const std::vector<int64_t>& shape, size_t size) {
    for (const int64_t each : shape) size *= static_cast<size_t>(each);
    const size_t begin = data_.size();
    // Scales of 2^-7 to 2^0; bfloat16 numbers around 2^-7 are as good as others.
    for (size_t i = 0; i < size; ++i) data_.push_back(static_cast<char>(120 + (i * i + i / 7) % 8));
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }

  const Json golden_;
  Json header_;
  std::string data_;
};

std::vector<float> Floats(const TensorView& view) {
  std::vector<float> floats(static_cast<size_t>(view.num_elements()));
  ConvertToFloat(view, absl::MakeSpan(floats));
  return floats;
}

TEST(FamiliesTest, Mxfp4ExpertsAreReadAsTheyLie) {
  MxFp4Folder folder(FamilyGolden("gpt-oss"));
  const auto model = folder.Load();
  ASSERT_TRUE(model.ok()) << model.status();
  const LayerWeights& layer = (*model)->layers().at(1);
  ASSERT_EQ(layer.experts.size(), 4u);
  EXPECT_EQ(layer.experts[3].gate.dtype, TensorView::DType::kMxFp4);
  // Bytes are 0x78 to 0x7f: of two numbers the first is negative, the second 6, each times a scale.
  const auto number = [](size_t matrix_bytes, size_t expert, size_t row, size_t column) {
    const auto byte = [](size_t i) { return 120 + (i * i + i / 7) % 8; };
    const size_t i = expert * matrix_bytes + row * 16 + column / 2;
    const size_t half = column % 2 == 0 ? byte(i) & 0xf : byte(i) >> 4;
    constexpr float kValues[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};
    const size_t scale = byte(expert * matrix_bytes / 16 + row);
    return kValues[half] * std::ldexp(1.0f, static_cast<int>(scale) - 127);
  };
  // [64, 32] of gates and ups in turn, and [32, 32].
  const std::vector<float> gate = Floats(layer.experts[3].gate), up = Floats(layer.experts[3].up);
  const std::vector<float> down = Floats(layer.experts[3].down);
  ASSERT_EQ(gate.size(), 32u * 32);
  for (size_t row = 0; row < 32; ++row) {
    for (size_t column = 0; column < 32; ++column) {
      ASSERT_EQ(gate[row * 32 + column], number(1024, 3, 2 * row, column)) << row << ", " << column;
      ASSERT_EQ(up[row * 32 + column], number(1024, 3, 2 * row + 1, column)) << row << ", " << column;
      ASSERT_EQ(down[row * 32 + column], number(512, 3, row, column)) << row << ", " << column;
    }
  }
}

TEST(FamiliesTest, Mxfp4TensorsOfOtherShapesAreRefused) {
  MxFp4Folder folder(FamilyGolden("gpt-oss"));
  const std::string name = "model.layers.0.mlp.experts.down_proj_scales";
  Json& scales = folder.header()[name];
  const Json valid = scales;
  scales["shape"] = {4, 1, 32};
  absl::Status status = folder.Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor \"" + name + "\": U8 [4, 1, 32], expected U8 [4, 32, 1]"));
  folder.header()[name + "x"] = valid;
  folder.header().erase(name);
  status = folder.Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor \"" + name + "\" is missing"));
}

struct Refusal {
  const char* name;
  const char* family;
  Json changes;
  absl::StatusCode code;
  const char* message;
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

class RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, NamesFileFieldAndWhatIsSupported) {
  const absl::Status status = ParseWith(GetParam().family, GetParam().changes).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("folder/config.json: field "), HasSubstr(GetParam().message)));
}

constexpr absl::StatusCode kBad = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kOther = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    All, RefusalTest,
    ::testing::Values(
        Refusal{"OptWithoutNormWeights",
                "opt",
                {{"layer_norm_elementwise_affine", false}},
                kOther,
                "layer_norm_elementwise_affine: found false, supported: true"},
        Refusal{"OptActivation",
                "opt",
                {{"activation_function", "gelu_10"}},
                kOther,
                "activation_function: found \"gelu_10\", supported: silu, swish, gelu"},
        Refusal{"OptFeedForward", "opt", {{"ffn_dim", 0}}, kBad, "ffn_dim: found 0"},
        Refusal{"OptNarrow", "opt", {{"word_embed_proj_dim", 70000}}, kBad, "word_embed_proj_dim"},
        Refusal{"BloomResidual",
                "bloom",
                {{"apply_residual_connection_post_layernorm", true}},
                kOther,
                "apply_residual_connection_post_layernorm: found true, supported: false"},
        Refusal{"BloomHeads", "bloom", {{"n_head", 5}}, kBad, "a multiple of n_head, which is 5"},
        Refusal{"NeoXShare",
                "gpt-neox",
                {{"rope_parameters", {{"partial_rotary_factor", 0.05}}}},
                kBad,
                "rope_parameters.partial_rotary_factor: found 0.05, expected an even number of a head's 16"},
        Refusal{"Gpt2Scales",
                "gpt2",
                {{"scale_attn_by_inverse_layer_idx", true}},
                kOther,
                "scale_attn_by_inverse_layer_idx: found true, supported: false"},
        Refusal{"LlamaWithoutGate", "llama-yarn", {{"hidden_act", "relu"}}, kOther, "supported: silu"},
        Refusal{"LlamaCap",
                "llama-yarn",
                {{"attn_logit_softcapping", 50.0}},
                kOther,
                "attn_logit_softcapping: found 50.0, supported: none"},
        Refusal{"MinistralWindow",
                "ministral",
                {{"sliding_window", nullptr}},
                kBad,
                "sliding_window: found nothing, expected a number, for sliding_attention layers"},
        Refusal{"GemmaLooksAhead",
                "gemma3",
                {{"use_bidirectional_attention", true}},
                kOther,
                "use_bidirectional_attention: found true, supported: false"},
        Refusal{"GemmaRotations",
                "gemma3",
                {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
                kBad,
                "rope_parameters.sliding_attention: found nothing, expected an object"},
        Refusal{"SmolLayers", "smollm3", {{"no_rope_layers", {1, 2, 1}}}, kBad, "a list of 0 and 1"},
        Refusal{"SmolLayerCount", "smollm3", {{"no_rope_layers", {1}}}, kBad, "a list of 3"},
        Refusal{"NoExperts",
                "mixtral",
                {{"num_local_experts", 0}},
                kBad,
                "num_local_experts: found 0, expected a whole number from 1 to 4096"},
        Refusal{"ManyExperts", "mixtral", {{"num_local_experts", 1 << 30}}, kBad, "num_local_experts: found"},
        Refusal{"NoExpertChosen", "mixtral", {{"num_experts_per_tok", 0}}, kBad, "num_experts_per_tok"},
        Refusal{"MoreThanThereAre",
                "mixtral",
                {{"num_experts_per_tok", 5}},
                kBad,
                "num_experts_per_tok: found 5, expected at most num_local_experts, which is 4"},
        Refusal{
            "ExpertsOfNoSize", "qwen2-moe", {{"moe_intermediate_size", 0}}, kBad, "moe_intermediate_size"},
        Refusal{"SharedExpertOfNoSize",
                "qwen2-moe",
                {{"shared_expert_intermediate_size", -1}},
                kBad,
                "shared_expert_intermediate_size: found -1"},
        Refusal{"QwenMoeSlides",
                "qwen2-moe-windows",
                {{"use_sliding_window", false}},
                kBad,
                "use_sliding_window: found false, expected true, for sliding_attention layers"},
        Refusal{"QwenMoeWindow",
                "qwen2-moe-windows",
                {{"sliding_window", nullptr}},
                kBad,
                "sliding_window: found nothing, expected a number, as use_sliding_window is true"},
        Refusal{"Qwen3MoeLayers",
                "qwen3-moe-windows",
                {{"layer_types", {"full_attention", "sliding_attention"}}},
                kOther,
                "supported: sliding_attention, as use_sliding_window is true"},
        Refusal{"DeepSeekRank", "deepseek-v2", {{"kv_lora_rank", 0}}, kBad, "kv_lora_rank: found 0"},
        Refusal{"DeepSeekQueryRank", "deepseek-v2", {{"q_lora_rank", -1}}, kBad, "q_lora_rank: found -1"},
        Refusal{"DeepSeekTurns", "deepseek-v2", {{"qk_rope_head_dim", 7}}, kBad, "expected an even number"},
        Refusal{
            "DeepSeekValues", "deepseek-v3", {{"v_head_dim", 1 << 20}}, kBad, "v_head_dim: found 1048576"},
        Refusal{"DeepSeekHeads",
                "deepseek-v3",
                {{"num_key_value_heads", 2}},
                kBad,
                "num_key_value_heads: found 2, expected num_attention_heads, which is 4"},
        Refusal{"DeepSeekBiases",
                "deepseek-v3",
                {{"attention_bias", true}},
                kOther,
                "attention_bias: found true, supported: false"},
        Refusal{"DeepSeekMethod",
                "deepseek-v2",
                {{"topk_method", "noaux_tc"}},
                kOther,
                "topk_method: found \"noaux_tc\", supported: greedy, group_limited_greedy"},
        Refusal{"DeepSeekV3Method",
                "deepseek-v3",
                {{"topk_method", "greedy"}},
                kOther,
                "topk_method: found \"greedy\", supported: noaux_tc"},
        Refusal{"DeepSeekScores",
                "deepseek-v3",
                {{"scoring_func", "softmax"}},
                kOther,
                "scoring_func: found \"softmax\", supported: sigmoid"},
        Refusal{"DeepSeekNormalised",
                "deepseek-v2",
                {{"norm_topk_prob", true}},
                kOther,
                "norm_topk_prob: found true, supported: false"},
        Refusal{"DeepSeekLayers",
                "deepseek-v2",
                {{"moe_layer_freq", 2}},
                kOther,
                "moe_layer_freq: found 2, supported: 1"},
        Refusal{"DeepSeekGroups",
                "deepseek-v3",
                {{"n_group", 3}},
                kBad,
                "n_group: found 3, expected a number of groups of 2 or more experts each"},
        Refusal{"DeepSeekSmallGroups", "deepseek-v3", {{"n_group", 8}}, kBad, "n_group: found 8"},
        Refusal{"DeepSeekChosenGroups",
                "deepseek-v3",
                {{"topk_group", 5}},
                kBad,
                "topk_group: found 5, expected at most n_group, which is 4"},
        Refusal{"DeepSeekTooFewExperts",
                "deepseek-v3",
                {{"num_experts_per_tok", 5}},
                kBad,
                "num_experts_per_tok: found 5, expected at most the experts of 2 groups, which are 4"},
        Refusal{"DeepSeekChosen", "deepseek-v2", {{"num_experts_per_tok", nullptr}}, kBad, "found nothing"},
        Refusal{
            "SparseStep", "qwen3-moe", {{"decoder_sparse_step", 0}}, kBad, "decoder_sparse_step: found 0"},
        Refusal{"DenseLayers",
                "qwen3-moe",
                {{"mlp_only_layers", {0, 3}}},
                kBad,
                "mlp_only_layers: found [0,3], expected a list of layers, 0 to 2"},
        Refusal{"GptOssQuantised",
                "gpt-oss",
                {{"quantization_config", {{"quant_method", "fp8"}}}},
                kOther,
                "quantization_config.quant_method: found \"fp8\", supported: mxfp4"},
        Refusal{"GptOssLimit", "gpt-oss", {{"swiglu_limit", 0}}, kBad, "swiglu_limit: found 0"},
        Refusal{"GptOssAlpha", "gpt-oss", {{"swiglu_alpha", -1.0}}, kBad, "swiglu_alpha: found -1"},
        Refusal{"GptOssWindow",
                "gpt-oss",
                {{"sliding_window", nullptr}},
                kBad,
                "sliding_window: found nothing, expected a number"},
        Refusal{"GptOssRotations",
                "gpt-oss",
                {{"rope_parameters", nullptr}},
                kBad,
                "rope_scaling: found nothing"},
        Refusal{"QuantisedMixtral",
                "mixtral",
                {{"quantization_config", {{"quant_method", "mxfp4"}}}},
                kOther,
                "quantization_config"},
        Refusal{
            "DenseFamily", "granite", {{"num_experts", 4}}, kOther, "num_experts: found 4, supported: none"},
        Refusal{"GraniteScale", "granite", {{"logits_scaling", 0}}, kBad, "logits_scaling: found 0"},
        Refusal{"StarCoder2Activation",
                "starcoder2",
                {{"hidden_act", "gelu_10"}},
                kOther,
                "hidden_act: found \"gelu_10\", supported: silu, swish, gelu"},
        Refusal{"StarCoder2Bias", "starcoder2", {{"use_bias", 1}}, kBad, "use_bias: found 1"},
        Refusal{"StarCoder2Window", "starcoder2", {{"sliding_window", 0}}, kBad, "sliding_window: found 0"},
        Refusal{"StarCoder2Heads",
                "starcoder2",
                {{"num_key_value_heads", 3}},
                kBad,
                "num_attention_heads: found 4, expected a multiple of num_key_value_heads, which is 3"},
        Refusal{"StarCoder2Share",
                "starcoder2",
                {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
                kOther,
                "rope_parameters.partial_rotary_factor: found 0.5, supported: 1"}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tandem

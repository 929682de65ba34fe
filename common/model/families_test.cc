// What the families' config.json mean, and what of them is refused; common/engine/cpu/family_test.cc compares
// what comes out with the reference.

#include <string>

#include "common/model/families/family.h"
#include "common/model/family_fixture.h"
#include "common/model/model_config.h"
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
        Refusal{"GraniteScale", "granite", {{"logits_scaling", 0}}, kBad, "logits_scaling: found 0"}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tandem

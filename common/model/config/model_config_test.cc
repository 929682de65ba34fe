#include "common/model/config/model_config.h"

#include <string>

#include "common/model/testing/model_folder_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

absl::StatusOr<ModelConfig> Parse(const Json& config) {
  return ParseModelConfig(config.dump(), "folder/config.json");
}

// The small configuration with fields replaced (or, where null in `removed`, taken out).
Json With(Json changes) {
  Json config = SmallConfig();
  config.update(changes);
  return config;
}
Json Without(const Json& config, const std::string& field) {
  Json copy = config;
  copy.erase(field);
  return copy;
}
Json Architecture(const std::string& name, const std::string& type) {
  return With({{"architectures", {name}}, {"model_type", type}});
}

// A parser may take a zero byte for the end, and what follows for nothing.
TEST(ModelConfigTest, RefusesWhatFollowsAZeroByte) {
  const std::string text = SmallConfig().dump() + std::string(1, '\0') + "rest";
  EXPECT_THAT(std::string(ParseModelConfig(text, "folder/config.json").status().message()),
              HasSubstr("a byte that is zero"));
}

TEST(ModelConfigTest, ReadsALlama) {
  const auto config = Parse(SmallConfig());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->hidden_size, 8);
  EXPECT_EQ(config->num_layers, 1);
  EXPECT_EQ(config->num_heads, 2);
  EXPECT_EQ(config->num_kv_heads, 1);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->query_size(), 8);
  EXPECT_EQ(config->kv_size(), 4);
  EXPECT_EQ(config->intermediate_size, 6);
  EXPECT_EQ(config->vocab_size, 10);
  EXPECT_EQ(config->max_context, 64);
  EXPECT_EQ(config->rms_norm_epsilon, 1e-5f);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_FALSE(config->attention_bias || config->attention_output_bias || config->mlp_bias ||
               config->qk_norm);
  EXPECT_FALSE(config->sliding_window.has_value());
  EXPECT_THAT(config->eos_tokens, ElementsAre(2));
}

TEST(ModelConfigTest, AbsentFieldsMeanWhatTheArchitectureAssumes) {
  Json config = SmallConfig();
  for (const char* field :
       {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
        "tie_word_embeddings", "eos_token_id", "hidden_act", "model_type"}) {
    config.erase(field);
  }
  config["head_dim"] = nullptr;
  const auto llama = Parse(config);
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->num_kv_heads, 2);
  EXPECT_EQ(llama->head_dim, 4);
  EXPECT_EQ(llama->max_context, 2048);
  EXPECT_EQ(llama->rms_norm_epsilon, 1e-6f);
  EXPECT_EQ(llama->rope_theta, 10000.0);
  EXPECT_FALSE(llama->tied_embeddings);
  EXPECT_THAT(llama->eos_tokens, IsEmpty());

  const auto by_type = Parse(Without(SmallConfig(), "architectures"));
  ASSERT_TRUE(by_type.ok()) << by_type.status();
  EXPECT_EQ(by_type->architecture, "LlamaForCausalLM");

  Json mistral = Architecture("MistralForCausalLM", "mistral");
  mistral.update({{"num_attention_heads", 16}, {"hidden_size", 32}});
  mistral.erase("num_key_value_heads");
  EXPECT_EQ(Parse(mistral)->num_kv_heads, 8);
  EXPECT_EQ(Parse(mistral)->sliding_window, 4096);
  mistral["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Parse(mistral)->num_kv_heads, 16);

  EXPECT_EQ(Parse(Architecture("Qwen3ForCausalLM", "qwen3"))->head_dim, 128);
}

TEST(ModelConfigTest, ReadsEveryRopeSpelling) {
  const auto linear = Parse(With({{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}));
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ(linear->rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(linear->rope_scaling.factor, 4.0);

  Json llama3 = {{"rope_type", "llama3"},
                 {"factor", 8.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 3.0},
                 {"original_max_position_embeddings", 16}};
  const auto old_spelling = Parse(With({{"rope_scaling", llama3}, {"rope_theta", 5e5}}));
  ASSERT_TRUE(old_spelling.ok()) << old_spelling.status();
  EXPECT_EQ(old_spelling->rope_theta, 5e5);
  EXPECT_EQ(old_spelling->rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(old_spelling->rope_scaling.factor, 8.0);
  EXPECT_EQ(old_spelling->rope_scaling.low_frequency_factor, 1.0);
  EXPECT_EQ(old_spelling->rope_scaling.high_frequency_factor, 3.0);
  EXPECT_EQ(old_spelling->rope_scaling.original_context, 16);

  llama3["rope_theta"] = 7e5;
  llama3.erase("original_max_position_embeddings");
  const auto new_spelling = Parse(With({{"rope_parameters", llama3}}));
  ASSERT_TRUE(new_spelling.ok()) << new_spelling.status();
  EXPECT_EQ(new_spelling->rope_theta, 7e5);
  EXPECT_EQ(new_spelling->rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(new_spelling->rope_scaling.original_context, 64);  // max_position_embeddings.

  const auto plain = Parse(With({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->rope_theta, 1e6);
  EXPECT_EQ(plain->rope_scaling.kind, RopeScaling::Kind::kNone);
}

TEST(ModelConfigTest, ReadsTheVariants) {
  const auto llama = Parse(With({{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(llama->attention_bias && llama->attention_output_bias && llama->mlp_bias);

  Json mistral = Architecture("MistralForCausalLM", "mistral");
  mistral["sliding_window"] = nullptr;
  EXPECT_FALSE(Parse(mistral)->sliding_window.has_value());
  mistral["sliding_window"] = 8;
  EXPECT_EQ(Parse(mistral)->sliding_window, 8);

  const auto qwen2 = Parse(Architecture("Qwen2ForCausalLM", "qwen2"));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_TRUE(qwen2->attention_bias);
  EXPECT_FALSE(qwen2->attention_output_bias || qwen2->qk_norm);

  const auto qwen3 = Parse(Architecture("Qwen3ForCausalLM", "qwen3"));
  EXPECT_TRUE(qwen3->qk_norm);
  EXPECT_FALSE(qwen3->attention_bias);
}

TEST(ModelConfigTest, QwenSlidesInTheLayersThatItSays) {
  Json qwen = Architecture("Qwen2ForCausalLM", "qwen2");
  qwen.update({{"num_hidden_layers", 2},
               {"use_sliding_window", false},
               {"sliding_window", 16},
               {"max_window_layers", 0}});
  EXPECT_FALSE(Parse(qwen)->sliding_window.has_value());
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(Parse(qwen)->sliding_window, 16);
  qwen["max_window_layers"] = 2;
  EXPECT_FALSE(Parse(qwen)->sliding_window.has_value());
  qwen["max_window_layers"] = 1;
  EXPECT_EQ(Parse(qwen)->window(0), 0);
  EXPECT_EQ(Parse(qwen)->window(1), 16);
  qwen["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(Parse(qwen)->sliding_window, 16);
  EXPECT_EQ(Parse(qwen)->window(0), 16);
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(Parse(qwen)->window(0), 16);
  EXPECT_EQ(Parse(qwen)->window(1), 0);
  qwen["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_EQ(Parse(qwen).status().code(), absl::StatusCode::kUnimplemented);
  qwen["layer_types"] = {"full_attention"};
  EXPECT_EQ(Parse(qwen).status().code(), absl::StatusCode::kInvalidArgument);
}

struct BadConfig {
  const char* name;
  Json changes;
  absl::StatusCode code;
  const char* message;
};

void PrintTo(const BadConfig& bad, std::ostream* out) {
  *out << bad.name;
}

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedNamingTheField) {
  const absl::Status status = Parse(With(GetParam().changes)).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("folder/config.json: "), HasSubstr(GetParam().message)));
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnsupported = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    All, BadConfigTest,
    ::testing::Values(
        BadConfig{"UnknownArchitecture",
                  {{"architectures", {"GPTJForCausalLM"}}},
                  kUnsupported,
                  "field architectures: found [\"GPTJForCausalLM\"], supported: LlamaForCausalLM"},
        BadConfig{"TwoArchitectures", {{"architectures", {"A", "B"}}}, kInvalid, "field architectures"},
        BadConfig{"NumberArchitecture", {{"architectures", 5}}, kInvalid, "a list of one name"},
        BadConfig{"OtherModelType",
                  {{"model_type", "mistral"}},
                  kInvalid,
                  "field model_type: found \"mistral\", expected llama"},
        BadConfig{"NoArchitecture",
                  {{"architectures", nullptr}, {"model_type", nullptr}},
                  kInvalid,
                  "architectures"},
        BadConfig{
            "UnknownModelType", {{"architectures", nullptr}, {"model_type", "gemma"}}, kUnsupported, "gemma"},
        BadConfig{"ZeroHeads",
                  {{"num_attention_heads", 0}},
                  kInvalid,
                  "field num_attention_heads: found 0, expected a whole number from 1 to 1024"},
        BadConfig{"NegativeHidden", {{"hidden_size", -8}}, kInvalid, "hidden_size: found -8"},
        BadConfig{"FloatHidden", {{"hidden_size", 8.0}}, kInvalid, "hidden_size: found 8.0"},
        BadConfig{"HugeHidden", {{"hidden_size", 65537}}, kInvalid, "from 1 to 65536"},
        BadConfig{
            "WrappingHidden", {{"hidden_size", 4294967304u}}, kInvalid, "hidden_size: found 4294967304"},
        BadConfig{"BiggestNumber", {{"hidden_size", 18446744073709551615u}}, kInvalid, "hidden_size"},
        BadConfig{"HiddenMissing", {{"hidden_size", nullptr}}, kInvalid, "hidden_size: found nothing"},
        BadConfig{"StringLayers", {{"num_hidden_layers", "1"}}, kInvalid, "num_hidden_layers: found \"1\""},
        BadConfig{"TooManyLayers", {{"num_hidden_layers", 1025}}, kInvalid, "num_hidden_layers"},
        BadConfig{"TooManyWords", {{"vocab_size", 4194305}}, kInvalid, "vocab_size"},
        BadConfig{"ZeroIntermediate", {{"intermediate_size", 0}}, kInvalid, "intermediate_size"},
        BadConfig{"ZeroContext", {{"max_position_embeddings", 0}}, kInvalid, "max_position_embeddings"},
        BadConfig{
            "KvHeadsDoNotDivide",
            {{"num_attention_heads", 4}, {"num_key_value_heads", 3}},
            kInvalid,
            "field num_attention_heads: found 4, expected a multiple of num_key_value_heads, which is 3"},
        BadConfig{"MoreKvHeadsThanHeads", {{"num_key_value_heads", 4}}, kInvalid, "num_key_value_heads"},
        BadConfig{
            "OddHeadDim", {{"head_dim", 5}}, kInvalid, "field head_dim: found 5, expected an even number"},
        BadConfig{"OddDerivedHeadDim", {{"hidden_size", 6}}, kInvalid, "not 3"},
        BadConfig{"HugeHeadDim", {{"head_dim", 1026}}, kInvalid, "head_dim"},
        BadConfig{"HiddenDoesNotDivide", {{"hidden_size", 9}}, kInvalid, "a multiple of num_attention_heads"},
        BadConfig{"ZeroEpsilon", {{"rms_norm_eps", 0}}, kInvalid, "rms_norm_eps"},
        BadConfig{"NegativeTheta", {{"rope_theta", -1.0}}, kInvalid, "rope_theta"},
        BadConfig{"Gelu",
                  {{"hidden_act", "gelu"}},
                  kUnsupported,
                  "field hidden_act: found \"gelu\", supported: silu"},
        BadConfig{"Quantized", {{"quantization_config", {{"bits", 4}}}}, kUnsupported, "quantization_config"},
        BadConfig{"Experts", {{"num_local_experts", 8}}, kUnsupported, "num_local_experts"},
        BadConfig{"Yarn",
                  {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 0}}}},
                  kInvalid,
                  "rope_scaling.beta_fast: found 0"},
        BadConfig{"UnknownRope",
                  {{"rope_scaling", {{"rope_type", "proportional"}, {"factor", 4.0}}}},
                  kUnsupported,
                  "field rope_scaling.rope_type: found \"proportional\", supported: default, linear, llama3, "
                  "dynamic, yarn, longrope"},
        BadConfig{"LongRopeWithoutLists",
                  {{"rope_scaling", {{"type", "longrope"}, {"short_factor", {1.0, 2.0}}}}},
                  kInvalid,
                  "rope_scaling.long_factor: found nothing, expected a list of 2 numbers"},
        BadConfig{"LongRopeOfAnotherWidth",
                  {{"rope_scaling", {{"type", "su"}, {"short_factor", {1.0}}, {"long_factor", {1.0, 2.0}}}}},
                  kInvalid,
                  "rope_scaling.short_factor: found [1.0], expected a list of 2 numbers"},
        BadConfig{"RopeScalingIsAList", {{"rope_scaling", {1, 2}}}, kInvalid, "rope_scaling"},
        BadConfig{"RopeTypeIsANumber", {{"rope_scaling", {{"type", 3}}}}, kInvalid, "rope_scaling.type"},
        BadConfig{"RopePerLayer",
                  {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
                  kUnsupported,
                  "rope_parameters.full_attention"},
        BadConfig{
            "LinearWithoutFactor", {{"rope_scaling", {{"type", "linear"}}}}, kInvalid, "rope_scaling.factor"},
        BadConfig{"FactorBelowOne",
                  {{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}},
                  kInvalid,
                  "rope_scaling.factor: found 0.5"},
        BadConfig{"Llama3Frequencies",
                  {{"rope_scaling",
                    {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}},
                  kInvalid,
                  "rope_scaling.high_freq_factor: found 4, expected a number above low_freq_factor"},
        BadConfig{"PartialRotary", {{"partial_rotary_factor", 0.5}}, kUnsupported, "partial_rotary_factor"},
        BadConfig{"TieIsANumber", {{"tie_word_embeddings", 1}}, kInvalid, "tie_word_embeddings"},
        BadConfig{"NegativeEos", {{"eos_token_id", -1}}, kInvalid, "eos_token_id"},
        BadConfig{"EosText", {{"eos_token_id", {1, "2"}}}, kInvalid, "eos_token_id"},
        BadConfig{
            "TooManyEos", {{"eos_token_id", std::vector<int>(65, 1)}}, kInvalid, "a list of at most 64"}),
    [](const auto& instance) { return instance.param.name; });

TEST(ModelConfigTest, TextThatIsNotAnObjectIsRefused) {
  for (const char* text :
       {"", "[]", "7", "{", "{\"a\":1}x", "{\"a\":1,\"a\":1}", "{\"a\":NaN}", "{\"a\":1e999}"}) {
    const absl::Status status = ParseModelConfig(text, "config.json").status();
    EXPECT_EQ(status.code(), kInvalid) << text;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("config.json: "), HasSubstr("expected")))
        << text;
  }
  const absl::Status deep = ParseModelConfig("{\"a\":" + std::string(1'000'000, '['), "config.json").status();
  EXPECT_THAT(std::string(deep.message()), HasSubstr("nested too deep"));
}

TEST(GenerationDefaultsTest, ReadsWhatIsThere) {
  const auto defaults = ParseGenerationDefaults(
      R"({"eos_token_id":[4,9],"temperature":0.6,"top_p":0.9,"min_p":0.05,"top_k":20,"repetition_penalty":1.05,"x":[]})",
      "generation_config.json");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->eos_tokens, ElementsAre(4, 9));
  EXPECT_EQ(defaults->temperature, 0.6);
  EXPECT_EQ(defaults->top_p, 0.9);
  EXPECT_EQ(defaults->min_p, 0.05);
  EXPECT_EQ(defaults->top_k, 20);
  EXPECT_EQ(defaults->repetition_penalty, 1.05);

  const auto empty =
      ParseGenerationDefaults(R"({"eos_token_id":null,"top_k":null})", "generation_config.json");
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_THAT(empty->eos_tokens, IsEmpty());
  EXPECT_FALSE(empty->temperature || empty->top_p || empty->min_p || empty->top_k ||
               empty->repetition_penalty);
}

TEST(GenerationDefaultsTest, RefusesWhatNoSamplerCanUse) {
  for (const char* text :
       {R"({"temperature":-1})", R"({"top_p":1.5})", R"({"top_p":0})", R"({"repetition_penalty":11})",
        R"({"top_k":-1})", R"({"top_k":0.5})", R"({"repetition_penalty":0})", R"({"eos_token_id":"</s>"})",
        R"({"temperature":"hot"})"}) {
    const absl::Status status = ParseGenerationDefaults(text, "g.json").status();
    EXPECT_EQ(status.code(), kInvalid) << text;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("g.json: field "), HasSubstr("expected")))
        << text;
  }
}

}  // namespace
}  // namespace tandem

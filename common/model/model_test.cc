#include "common/model/model.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/model/tensor_convert.h"
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

std::string TestData(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/", name);
}

// Every tensor a model holds, under the name it has in the file.
std::map<std::string, TensorView> ByName(const Model& model) {
  std::map<std::string, TensorView> tensors = {{"model.embed_tokens.weight", model.embedding()},
                                               {"model.norm.weight", model.final_norm()}};
  if (!model.config().tied_embeddings) tensors["lm_head.weight"] = model.output();
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const LayerWeights& layer = model.layers()[i];
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const std::vector<std::pair<const char*, const TensorView*>> named = {
        {"input_layernorm.weight", &layer.input_norm},
        {"self_attn.q_proj.weight", &layer.query},
        {"self_attn.k_proj.weight", &layer.key},
        {"self_attn.v_proj.weight", &layer.value},
        {"self_attn.q_proj.bias", &layer.query_bias},
        {"self_attn.k_proj.bias", &layer.key_bias},
        {"self_attn.v_proj.bias", &layer.value_bias},
        {"self_attn.q_norm.weight", &layer.query_norm},
        {"self_attn.k_norm.weight", &layer.key_norm},
        {"self_attn.o_proj.weight", &layer.attention_out},
        {"self_attn.o_proj.bias", &layer.attention_out_bias},
        {"post_attention_layernorm.weight", &layer.post_attention_norm},
        {"mlp.gate_proj.weight", &layer.gate},
        {"mlp.up_proj.weight", &layer.up},
        {"mlp.down_proj.weight", &layer.down},
        {"mlp.gate_proj.bias", &layer.gate_bias},
        {"mlp.up_proj.bias", &layer.up_bias},
        {"mlp.down_proj.bias", &layer.down_bias}};
    for (const auto& [name, view] : named) {
      if (view->exists()) tensors[prefix + name] = *view;
    }
  }
  return tensors;
}

class TinyModelTest : public ::testing::TestWithParam<std::string> {};

// golden.json holds sums that make_tiny_models.py took from what the transformers library loaded.
TEST_P(TinyModelTest, EveryTensorHasTheValuesThatTransformersReads) {
  const auto model = Model::Load(TestData(GetParam()));
  ASSERT_TRUE(model.ok()) << model.status();
  const Json golden = Json::parse(*ReadFile(TestData(GetParam() + "/golden.json"), 1 << 20));
  const std::map<std::string, TensorView> tensors = ByName(**model);
  EXPECT_EQ(tensors.size(), golden["tensors"].size());
  uint64_t num_bytes = 0;
  for (const auto& [name, expected] : golden["tensors"].items()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(tensors.contains(name));
    const TensorView& view = tensors.at(name);
    EXPECT_EQ(view.shape, expected["shape"].get<std::vector<int64_t>>());
    std::vector<float> values(view.num_elements());
    ConvertToFloat(view, absl::MakeSpan(values));
    double sum = 0, weighted_sum = 0, scale = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      sum += values[i];
      weighted_sum += static_cast<double>(i + 1) * values[i];
      scale += static_cast<double>(i + 1) * std::abs(values[i]);
    }
    EXPECT_NEAR(sum, expected["sum"].get<double>(), 1e-12 * scale);
    EXPECT_NEAR(weighted_sum, expected["weighted_sum"].get<double>(), 1e-12 * scale);
    num_bytes += view.num_bytes();
  }
  EXPECT_EQ((*model)->weight_bytes(), num_bytes);
  EXPECT_THAT((*model)->generation_defaults().eos_tokens, ElementsAre(2));
}

INSTANTIATE_TEST_SUITE_P(All, TinyModelTest,
                         ::testing::Values("tiny-llama", "tiny-llama3", "tiny-llama-linear", "tiny-mistral",
                                           "tiny-qwen2", "tiny-qwen3"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(TinyModelConfigTest, ConfigurationsReadAsTheyWereMade) {
  const ModelConfig llama3 = Model::Load(TestData("tiny-llama3")).value()->config();
  EXPECT_EQ(llama3.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(llama3.rope_scaling.original_context, 64);
  EXPECT_EQ(llama3.num_kv_heads, 2);
  EXPECT_EQ(llama3.query_size(), 96);
  const ModelConfig linear = Model::Load(TestData("tiny-llama-linear")).value()->config();
  EXPECT_EQ(linear.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_TRUE(linear.attention_bias && linear.attention_output_bias && linear.mlp_bias);
  EXPECT_EQ(Model::Load(TestData("tiny-mistral")).value()->config().sliding_window, 8);
  const auto qwen2 = Model::Load(TestData("tiny-qwen2")).value();
  EXPECT_TRUE(qwen2->config().tied_embeddings);
  EXPECT_EQ(qwen2->output().data, qwen2->embedding().data);
  EXPECT_EQ(qwen2->config().rope_theta, 1e6);
  const ModelConfig qwen3 = Model::Load(TestData("tiny-qwen3")).value()->config();
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 16);
  EXPECT_EQ(qwen3.rope_theta, 1e6);
}

TEST(DemoModelTest, LoadsTheTarget) {
  const std::string folder = TANDEM_SOURCE_DIR "/deploy/demo-models/tandem-target-15m";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto model = Model::Load(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->folder(), folder);
  EXPECT_EQ((*model)->layers().size(), 8u);
  EXPECT_EQ((*model)->weight_bytes(), 2u * 14162304);
  EXPECT_THAT((*model)->generation_defaults().eos_tokens, ElementsAre(4091, 4094));
  EXPECT_EQ((*model)->generation_defaults().temperature, 0.8);
}

// A folder that holds the small model of the fixture, ready to be spoilt.
class ModelFolderTest : public ::testing::Test {
 protected:
  ModelFolderTest() {
    WriteConfig(nullptr);
    folder_.Write("model.safetensors", SafetensorsBytes(SmallTensors()));
  }

  void WriteConfig(const Json& changes) {
    Json config = SmallConfig();
    if (!changes.is_null()) config.update(changes);
    folder_.Write("config.json", config.dump());
  }

  // Replaces the single file by shards and an index.
  void WriteShards(const std::vector<TensorShapes>& shards, const Json& weight_map) {
    folder_.Remove("model.safetensors");
    for (size_t i = 0; i < shards.size(); ++i) {
      folder_.Write(absl::StrCat("s", i, ".safetensors"), SafetensorsBytes(shards[i]));
    }
    folder_.Write("model.safetensors.index.json", Json{{"weight_map", weight_map}}.dump());
  }

  // The small tensors in two shards, and their map.
  static std::pair<std::vector<TensorShapes>, Json> TwoShards() {
    std::vector<TensorShapes> shards(2);
    Json map;
    for (const auto& [name, shape] : SmallTensors()) {
      const int shard = name.find("mlp") == std::string::npos ? 0 : 1;
      shards[shard].emplace_back(name, shape);
      map[name] = absl::StrCat("s", shard, ".safetensors");
    }
    return {shards, map};
  }

  absl::StatusOr<std::shared_ptr<const Model>> Load() { return Model::Load(folder_.path()); }

  void ExpectError(absl::StatusCode code, absl::string_view file, absl::string_view message) {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder_.PathOf(file)), HasSubstr(std::string(message))));
  }

  const TemporaryFolder folder_;
};

constexpr absl::StatusCode kUnusable = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;

TEST_F(ModelFolderTest, LoadsAsWritten) {
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->weight_bytes(), 2u * (10 * 8 * 2 + 3 * 8 + 3 * 48 + 2 * 32 + 2 * 64));
  EXPECT_THAT((*model)->generation_defaults().eos_tokens, ElementsAre(2));
}

TEST_F(ModelFolderTest, MissingFilesAreNamed) {
  folder_.Remove("model.safetensors");
  ExpectError(kNotFound, "", "expected model.safetensors or model.safetensors.index.json");
  folder_.Remove("config.json");
  ExpectError(kNotFound, "config.json", "cannot open");
}

TEST_F(ModelFolderTest, GenerationConfigNamesTheEndTokens) {
  folder_.Write("generation_config.json", R"({"eos_token_id":[3,4],"top_k":5})");
  EXPECT_THAT(Load().value()->generation_defaults().eos_tokens, ElementsAre(3, 4));
  EXPECT_EQ(Load().value()->generation_defaults().top_k, 5);
  folder_.Write("generation_config.json", R"({"top_k":5})");
  EXPECT_THAT(Load().value()->generation_defaults().eos_tokens, ElementsAre(2));
  WriteConfig({{"eos_token_id", nullptr}});
  EXPECT_THAT(Load().value()->generation_defaults().eos_tokens, IsEmpty());
  folder_.Write("generation_config.json", R"({"eos_token_id":[3,10]})");
  ExpectError(kUnusable, "generation_config.json", "found 10, expected ids below vocab_size, which is 10");
  folder_.Write("generation_config.json", "{");
  ExpectError(kUnusable, "generation_config.json", "expected JSON");
}

TEST_F(ModelFolderTest, EndTokenBeyondTheVocabularyIsRefused) {
  WriteConfig({{"eos_token_id", 10}});
  ExpectError(kUnusable, "config.json",
              "field eos_token_id: found 10, expected ids below vocab_size, which is 10");
}

TEST_F(ModelFolderTest, ConfigurationAndWeightsMustAgree) {
  WriteConfig({{"vocab_size", 11}});
  ExpectError(kUnusable, "model.safetensors",
              "tensor \"model.embed_tokens.weight\": shape [10, 8], expected [11, 8] as in config.json");
  WriteConfig({{"num_key_value_heads", 2}});
  ExpectError(kUnusable, "model.safetensors", "self_attn.k_proj.weight\": shape [4, 8], expected [8, 8]");
  WriteConfig({{"num_hidden_layers", 2}});
  ExpectError(kUnusable, "model.safetensors",
              "tensor \"model.layers.1.input_layernorm.weight\" is missing, expected with shape [8]");
  WriteConfig({{"attention_bias", true}});
  ExpectError(kUnusable, "model.safetensors", "q_proj.bias\" is missing, expected with shape [8]");
  WriteConfig({{"architectures", {"Qwen3ForCausalLM"}}, {"model_type", "qwen3"}, {"head_dim", 4}});
  ExpectError(kUnusable, "model.safetensors", "q_norm.weight\" is missing, expected with shape [4]");
}

TEST_F(ModelFolderTest, AnyTensorMissingIsAnErrorNamingIt) {
  const TensorShapes all = SmallTensors();
  for (size_t i = 0; i < all.size(); ++i) {
    TensorShapes some = all;
    some.erase(some.begin() + i);
    folder_.Write("model.safetensors", SafetensorsBytes(some));
    ExpectError(kUnusable, "model.safetensors", absl::StrCat("tensor \"", all[i].first, "\" is missing"));
  }
}

TEST_F(ModelFolderTest, UnknownTensorsAreRefusedRotaryBuffersAreNot) {
  TensorShapes tensors = SmallTensors();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {2}});
  folder_.Write("model.safetensors", SafetensorsBytes(tensors));
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->weight_bytes(), 2u * (10 * 8 * 2 + 3 * 8 + 3 * 48 + 2 * 32 + 2 * 64));
  tensors.push_back({"model.layers.1.input_layernorm.weight", {8}});
  folder_.Write("model.safetensors", SafetensorsBytes(tensors));
  ExpectError(
      kUnusable, "model.safetensors",
      "tensor \"model.layers.1.input_layernorm.weight\": expected only the tensors of the LlamaForCausalLM");
}

TEST_F(ModelFolderTest, TypesThatWeightsCannotHaveAreUnimplemented) {
  std::string bytes = SafetensorsBytes(SmallTensors());
  bytes.replace(bytes.find("\"BF16\""), 6, "\"I16\" ");
  folder_.Write("model.safetensors", bytes);
  ExpectError(absl::StatusCode::kUnimplemented, "model.safetensors", "dtype I16, expected F32, F16 or BF16");
}

TEST_F(ModelFolderTest, ATiedOutputIsTheEmbedding) {
  WriteConfig({{"tie_word_embeddings", true}});
  TensorShapes tensors = SmallTensors();
  tensors.erase(tensors.begin());  // lm_head.weight.
  folder_.Write("model.safetensors", SafetensorsBytes(tensors));
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->output().data, (*model)->embedding().data);
  const uint64_t tied_bytes = (*model)->weight_bytes();

  // An lm_head that repeats the embedding changes nothing.
  std::string bytes = SafetensorsBytes(SmallTensors());
  const size_t data_begin = bytes.size() - 2 * (10 * 8 * 2 + 3 * 8 + 3 * 48 + 2 * 32 + 2 * 64);
  bytes.replace(data_begin, 160, bytes.substr(data_begin + 160, 160));
  folder_.Write("model.safetensors", bytes);
  const auto repeated = Load();
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  EXPECT_TRUE((*repeated)->config().tied_embeddings);
  EXPECT_EQ((*repeated)->output().data, (*repeated)->embedding().data);
  EXPECT_EQ((*repeated)->weight_bytes(), tied_bytes);
}

TEST_F(ModelFolderTest, AnOutputThatDiffersFromTheEmbeddingIsNotTied) {
  WriteConfig({{"tie_word_embeddings", true}});
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE((*model)->config().tied_embeddings);
  EXPECT_NE((*model)->output().data, (*model)->embedding().data);
}

TEST_F(ModelFolderTest, LoadsShards) {
  const auto [shards, map] = TwoShards();
  WriteShards(shards, map);
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->weight_bytes(), 2u * (10 * 8 * 2 + 3 * 8 + 3 * 48 + 2 * 32 + 2 * 64));
}

TEST_F(ModelFolderTest, AMissingShardIsNamed) {
  const auto [shards, map] = TwoShards();
  WriteShards(shards, map);
  folder_.Remove("s1.safetensors");
  ExpectError(kNotFound, "s1.safetensors", "a shard that " + folder_.PathOf("model.safetensors.index.json"));
}

TEST_F(ModelFolderTest, ATensorMustLieInItsShardAndNoOther) {
  auto [shards, map] = TwoShards();
  Json wrong = map;
  wrong["model.norm.weight"] = "s1.safetensors";
  WriteShards(shards, wrong);
  ExpectError(kUnusable, "s1.safetensors", "tensor \"model.norm.weight\" is missing, expected as ");

  std::vector<TensorShapes> twice = shards;
  twice[1].push_back({"model.norm.weight", {8}});
  WriteShards(twice, map);
  ExpectError(kUnusable, "s1.safetensors", "tensor \"model.norm.weight\": lies in a second shard too");

  map.erase("model.norm.weight");
  WriteShards(shards, map);
  ExpectError(kUnusable, "s0.safetensors", "tensor \"model.norm.weight\": not listed in ");
}

TEST_F(ModelFolderTest, AnIndexNamesFilesOfItsFolderOnly) {
  const auto [shards, map] = TwoShards();
  const std::string hostile[] = {
      "../../etc/passwd",    "/etc/passwd",        "..",          "",
      "a/../s0.safetensors", "..\\s0.safetensors", "config.json", std::string("s0\0.safetensors", 15)};
  for (const std::string& name : hostile) {
    Json spoilt = map;
    spoilt["model.norm.weight"] = name;
    WriteShards(shards, spoilt);
    ExpectError(kUnusable, "model.safetensors.index.json",
                "expected the name of a .safetensors file in the same folder");
  }
  Json number = map;
  number["model.norm.weight"] = 5;
  WriteShards(shards, number);
  ExpectError(kUnusable, "model.safetensors.index.json", "tensor \"model.norm.weight\": found 5");
}

TEST_F(ModelFolderTest, AnIndexMustHaveAMap) {
  folder_.Remove("model.safetensors");
  for (const char* text :
       {"{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":null})"}) {
    folder_.Write("model.safetensors.index.json", text);
    ExpectError(kUnusable, "model.safetensors.index.json", "expected a non-empty object \"weight_map\"");
  }
  folder_.Write("model.safetensors.index.json",
                R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})");
  ExpectError(kUnusable, "model.safetensors.index.json", "key \"a\" occurs twice");
}

ModelConfig RandomModelConfig() {
  ModelConfig config;
  config.architecture = "Qwen2ForCausalLM";
  config.hidden_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 80;
  config.vocab_size = 100;
  config.max_context = 64;
  config.attention_bias = true;
  return config;
}

// Memory of mapped files in this process, in bytes.
uint64_t MappedBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "RssFile: %" SCNu64 " kB", &kib) == 1) return kib * 1024;
  }
  ADD_FAILURE() << "/proc/self/status has no RssFile";
  return 0;
}

TEST(ModelTest, WhatWasReleasedTakesNoMemoryAndCanBeReadAgain) {
  const auto model = Model::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m"));
  ASSERT_TRUE(model.ok()) << model.status();
  const TensorView& embedding = (*model)->embedding();
  const auto bytes = [&] {
    return std::string(static_cast<const char*>(embedding.data), embedding.num_bytes());
  };
  const std::string before = bytes();
  const uint64_t mapped = MappedBytes();
  (*model)->Release(embedding);
  EXPECT_LT(MappedBytes() + embedding.num_bytes() * 9 / 10, mapped);
  EXPECT_EQ(bytes(), before);
}

TEST(RandomModelTest, WhatWasReleasedStays) {
  const auto model = Model::Random(RandomModelConfig(), 7);
  ASSERT_TRUE(model.ok()) << model.status();
  const TensorView& gate = (*model)->layers()[0].gate;
  const std::string before(static_cast<const char*>(gate.data), gate.num_bytes());
  (*model)->Release(gate);
  EXPECT_EQ(std::string(static_cast<const char*>(gate.data), gate.num_bytes()), before);
}

TEST(RandomModelTest, HoldsTheTensorsOfItsConfiguration) {
  ModelConfig config = RandomModelConfig();
  const auto model = Model::Random(config, /*seed=*/7);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::map<std::string, TensorView> tensors = ByName(**model);
  EXPECT_EQ(tensors.size(), 3u + 2 * 12);
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.k_proj.weight").shape, (std::vector<int64_t>{32, 48}));
  EXPECT_NE((*model)->output().data, (*model)->embedding().data);
  EXPECT_EQ((*model)->weight_bytes(), 2 * (*model)->num_parameters());

  config.tied_embeddings = true;
  const auto tied = Model::Random(config, /*seed=*/7);
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_EQ((*tied)->output().data, (*tied)->embedding().data);
  EXPECT_EQ((*tied)->num_parameters() + 100 * 48, (*model)->num_parameters());
}

TEST(RandomModelTest, ValuesAreNormalNumbersOfTheRightSize) {
  const auto model = Model::Random(RandomModelConfig(), /*seed=*/7);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const auto& [name, view] : ByName(**model)) {
    std::vector<float> values(static_cast<size_t>(view.num_elements()));
    ConvertToFloat(view, absl::MakeSpan(values));
    double squares = 0;
    for (const float value : values) {
      ASSERT_TRUE(std::isnormal(value)) << name;
      ASSERT_LE(std::fabs(value), 1.5f) << name;
      squares += static_cast<double>(value) * value;
    }
    if (view.shape.size() == 2 && name != "model.embed_tokens.weight") {
      EXPECT_NEAR(squares / static_cast<double>(values.size()) * static_cast<double>(view.shape[1]), 1.0, 0.1)
          << name;
    }
  }
}

TEST(RandomModelTest, TheSeedAndTheNameDecide) {
  const auto bytes = [](const TensorView& view) {
    return std::string(static_cast<const char*>(view.data), view.num_bytes());
  };
  const auto one = Model::Random(RandomModelConfig(), 1), again = Model::Random(RandomModelConfig(), 1),
             other = Model::Random(RandomModelConfig(), 2);
  ASSERT_TRUE(one.ok() && again.ok() && other.ok());
  EXPECT_EQ(bytes((*one)->layers()[0].gate), bytes((*again)->layers()[0].gate));
  EXPECT_NE(bytes((*one)->layers()[0].gate), bytes((*other)->layers()[0].gate));
  EXPECT_NE(bytes((*one)->layers()[0].gate), bytes((*one)->layers()[0].up));
  EXPECT_NE(bytes((*one)->layers()[0].gate), bytes((*one)->layers()[1].gate));
}

TEST(RandomModelTest, RefusesSizesThatMakeNoTensor) {
  ModelConfig config = RandomModelConfig();
  config.vocab_size = 0;
  EXPECT_EQ(Model::Random(config, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem

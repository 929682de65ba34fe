#include "common/model/gguf_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "common/gguf/testing/gguf_writer.h"
#include "common/model/gguf_dequantize.h"
#include "common/model/model.h"
#include "common/model/tensor_convert.h"
#include "common/model/testing/model_folder_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kFileF32 = 0;

// The numbers of tensor `name` of the small model: no two rows alike.
std::vector<float> NumbersOf(const std::string& name, int64_t count) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<float>(i) + static_cast<float>(name.size()) * 1000.0f);
  }
  return numbers;
}

absl::string_view BytesOf(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

// The small model as llama.cpp's converter writes it: of each head of queries and keys, the row in place 2j
// is the j-th, and that in place 2j + 1 the one half a head behind it.
GgufWriter SmallModel(const std::string& architecture, int64_t head_dim, bool is_dense = true) {
  GgufWriter writer;
  writer.AddString("general.architecture", architecture);
  writer.AddUint32(architecture + ".embedding_length", 8);
  writer.AddUint32(architecture + ".block_count", 1);
  writer.AddUint32(architecture + ".attention.head_count", 2);
  writer.AddUint32(architecture + ".attention.head_count_kv", 1);
  writer.AddUint32(architecture + ".feed_forward_length", 6);
  writer.AddUint32(architecture + ".context_length", 64);
  writer.AddFloat(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  writer.AddFloat(architecture + ".rope.freq_base", 10000);
  writer.AddUint32("tokenizer.ggml.eos_token_id", 2);
  for (const auto& [name, shape] : SmallTensors()) {
    if (!is_dense && name.find(".mlp.") != std::string::npos) continue;
    const std::string file_name = absl::StrReplaceAll(name, {{"lm_head", "output"},
                                                             {"model.embed_tokens", "token_embd"},
                                                             {"model.norm", "output_norm"},
                                                             {"model.layers.0", "blk.0"},
                                                             {"post_attention_layernorm", "ffn_norm"},
                                                             {"input_layernorm", "attn_norm"},
                                                             {"self_attn.q_proj", "attn_q"},
                                                             {"self_attn.k_proj", "attn_k"},
                                                             {"self_attn.v_proj", "attn_v"},
                                                             {"self_attn.o_proj", "attn_output"},
                                                             {"mlp.gate_proj", "ffn_gate"},
                                                             {"mlp.up_proj", "ffn_up"},
                                                             {"mlp.down_proj", "ffn_down"}});
    const int64_t columns = shape.size() > 1 ? shape[1] : 1;
    const std::vector<float> numbers = NumbersOf(name, shape[0] * columns);
    std::vector<float> written = numbers;
    if (head_dim > 0 &&
        (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos)) {
      for (int64_t head = 0; head < shape[0] / head_dim; ++head) {
        for (int64_t j = 0; j < head_dim / 2; ++j) {
          for (int64_t side = 0; side < 2; ++side) {
            const int64_t from = head * head_dim + side * head_dim / 2 + j;
            const int64_t to = head * head_dim + 2 * j + side;
            std::copy_n(numbers.begin() + from * columns, columns, written.begin() + to * columns);
          }
        }
      }
    }
    writer.AddTensor(file_name, shape, kFileF32, BytesOf(written));
  }
  return writer;
}

void ExpectNumbers(const TensorView& tensor, const std::string& name) {
  ASSERT_TRUE(tensor.exists()) << name;
  std::vector<float> found(static_cast<size_t>(tensor.num_elements()));
  ConvertToFloat(tensor, absl::MakeSpan(found));
  EXPECT_EQ(found, NumbersOf(name, tensor.num_elements())) << name;
}

TEST(GgufModelTest, ReadsWhatAFolderWouldHold) {
  const TemporaryFolder folder;
  folder.Write("model.gguf", SmallModel("llama", 4).Bytes());
  const auto model = Model::Load(absl::StrCat(folder.path(), "/model.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.vocab_size, 10);
  EXPECT_EQ(config.max_context, 64);
  EXPECT_FLOAT_EQ(config.rms_norm_epsilon, 1e-5f);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ((*model)->generation_defaults().eos_tokens, TokenIds{2});
  ExpectNumbers((*model)->embedding(), "model.embed_tokens.weight");
  ExpectNumbers((*model)->output(), "lm_head.weight");
  ExpectNumbers((*model)->final_norm(), "model.norm.weight");
  const LayerWeights& layer = (*model)->layers()[0];
  const std::string prefix = "model.layers.0.";
  ExpectNumbers(layer.query, prefix + "self_attn.q_proj.weight");
  ExpectNumbers(layer.key, prefix + "self_attn.k_proj.weight");
  ExpectNumbers(layer.value, prefix + "self_attn.v_proj.weight");
  ExpectNumbers(layer.attention_out, prefix + "self_attn.o_proj.weight");
  ExpectNumbers(layer.input_norm, prefix + "input_layernorm.weight");
  ExpectNumbers(layer.post_attention_norm, prefix + "post_attention_layernorm.weight");
  ExpectNumbers(layer.gate, prefix + "mlp.gate_proj.weight");
  ExpectNumbers(layer.up, prefix + "mlp.up_proj.weight");
  ExpectNumbers(layer.down, prefix + "mlp.down_proj.weight");
  // What a folder that holds such a file would be asked for.
  EXPECT_EQ(Model::IsHead(absl::StrCat(folder.path(), "/model.gguf")).value_or(true), false);
}

TEST(GgufModelTest, RefusesByKey) {
  const struct {
    const char* key;
    const char* message;
  } kCases[] = {
      {"llama.expert_group_count", "key llama.expert_group_count: found 8, supported: none"},
      {"llama.attention.sliding_window", "key llama.attention.sliding_window"},
      {"llama.rope.dimension_count",
       "key llama.rope.dimension_count: found 8, supported: all numbers of a head"},
      {"llama.logit_scale", "key llama.logit_scale: found 8, supported: none"},
      {"llama.attention.clamp_kqv", "key llama.attention.clamp_kqv: found 8, supported: none"},
      {"llama.rope.freq_base_swa",
       "key llama.rope.freq_base_swa: found 8, supported: that of rope.freq_base"},
  };
  const TemporaryFolder folder;
  const std::string path = absl::StrCat(folder.path(), "/model.gguf");
  for (const auto& test_case : kCases) {
    GgufWriter writer = SmallModel("llama", 4);
    writer.AddUint32(test_case.key, 8);
    folder.Write("model.gguf", writer.Bytes());
    const absl::Status status = Model::Load(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << test_case.key;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test_case.message));
  }
  folder.Write("model.gguf", SmallModel("mamba", 0).Bytes());
  EXPECT_THAT(std::string(Model::Load(path).status().message()),
              HasSubstr("key general.architecture: found mamba, supported: llama, mistral, qwen2, qwen3, "));
  GgufWriter dense = SmallModel("qwen3", 0);
  dense.AddUint32("qwen3.expert_count", 4);
  folder.Write("model.gguf", dense.Bytes());
  EXPECT_THAT(std::string(Model::Load(path).status().message()),
              HasSubstr("key qwen3.expert_count: found 4, supported: none"));
  folder.Write("model.gguf", SmallModel("qwen3moe", 0).Bytes());
  EXPECT_THAT(std::string(Model::Load(path).status().message()),
              HasSubstr("key qwen3moe.expert_count: found nothing, supported: a number from 1 on"));
}

// Three experts of which a token takes two, with 5 numbers inside, and a shared one with 4.
GgufWriter SmallMixture(int64_t num_experts) {
  GgufWriter writer = SmallModel("qwen2moe", 0, /*is_dense=*/false);
  writer.AddUint32("qwen2moe.expert_count", 3);
  writer.AddUint32("qwen2moe.expert_used_count", 2);
  writer.AddUint32("qwen2moe.expert_feed_forward_length", 5);
  writer.AddUint32("qwen2moe.expert_shared_feed_forward_length", 4);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
      {"ffn_gate_inp.weight", {3, 8}},
      {"ffn_gate_exps.weight", {num_experts, 5, 8}},
      {"ffn_up_exps.weight", {num_experts, 5, 8}},
      {"ffn_down_exps.weight", {num_experts, 8, 5}},
      {"ffn_gate_inp_shexp.weight", {8}},
      {"ffn_gate_shexp.weight", {4, 8}},
      {"ffn_up_shexp.weight", {4, 8}},
      {"ffn_down_shexp.weight", {8, 4}},
      {"attn_q.bias", {8}},
      {"attn_k.bias", {4}},
      {"attn_v.bias", {4}}};
  for (const auto& [name, shape] : tensors) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    writer.AddTensor("blk.0." + name, shape, kFileF32, BytesOf(NumbersOf(name, count)));
  }
  return writer;
}

TEST(GgufModelTest, ExpertsAreSlicesOfTheirTensors) {
  const TemporaryFolder folder;
  const std::string path = absl::StrCat(folder.path(), "/model.gguf");
  folder.Write("model.gguf", SmallMixture(3).Bytes());
  const auto model = Model::Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  const ExpertsDescription& experts = (*model)->config().block.experts;
  EXPECT_EQ(experts.num_experts, 3);
  EXPECT_EQ(experts.num_chosen, 2);
  EXPECT_FALSE(experts.scores_add_up_to_one);
  const LayerWeights& layer = (*model)->layers()[0];
  ExpectNumbers(layer.router, "ffn_gate_inp.weight");
  ExpectNumbers(layer.gate, "ffn_gate_shexp.weight");
  ExpectNumbers(layer.shared_gate, "ffn_gate_inp_shexp.weight");
  EXPECT_EQ(layer.shared_gate.shape, (std::vector<int64_t>{1, 8}));
  ASSERT_EQ(layer.experts.size(), 3u);
  const ExpertWeights& last = layer.experts[2];
  EXPECT_EQ(last.down.shape, (std::vector<int64_t>{8, 5}));
  for (const auto& [view, name] : {std::pair(last.gate, "ffn_gate_exps.weight"),
                                   {last.up, "ffn_up_exps.weight"},
                                   {last.down, "ffn_down_exps.weight"}}) {
    const std::vector<float> all = NumbersOf(name, 3 * 40);
    std::vector<float> found(40);
    ConvertToFloat(view, absl::MakeSpan(found));
    EXPECT_EQ(found, std::vector<float>(all.begin() + 80, all.end())) << name;
  }
  folder.Write("model.gguf", SmallMixture(4).Bytes());
  EXPECT_THAT(std::string(Model::Load(path).status().message()),
              HasSubstr("blk.0.ffn_gate_exps.weight\": shape [4, 5, 8], expected [3, 5, 8]"));
}

TEST(GgufModelTest, SpoiltFilesNeverCrash) {
  const TemporaryFolder folder;
  const std::string whole = SmallModel("llama", 4).Bytes();
  std::mt19937_64 random(9);
  int num_loaded = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = whole;
    for (uint64_t j = 1 + random() % 3; j > 0; --j)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    folder.Write("model.gguf", bytes);
    const auto model = Model::Load(absl::StrCat(folder.path(), "/model.gguf"));
    if (!model.ok()) {
      EXPECT_THAT(std::string(model.status().message()), HasSubstr(folder.path()));
      continue;
    }
    ++num_loaded;
    std::vector<float> numbers(static_cast<size_t>((*model)->layers()[0].query.num_elements()));
    ConvertToFloat((*model)->layers()[0].query, absl::MakeSpan(numbers));
  }
  EXPECT_GT(num_loaded, 100);
  EXPECT_LT(num_loaded, 1400);
}

std::string FamilyFile(const std::string& name) {
  return ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/gguf/", name, ".gguf"), 1 << 20)
      .value();
}

// A file with one of its keys' or tensors' names spelled otherwise, so that it is not there.
absl::Status WithoutName(std::string bytes, const std::string& name) {
  const size_t at = bytes.find(name);
  EXPECT_NE(at, std::string::npos) << name;
  bytes[at + name.size() - 1] = '~';
  const TemporaryFolder folder;
  folder.Write("model.gguf", bytes);
  return Model::Load(absl::StrCat(folder.path(), "/model.gguf")).status();
}

TEST(GgufModelTest, DeepSeekErrorsNameKeysAndTensors) {
  const struct {
    const char* name;
    const char* message;
  } kCases[] = {
      {"deepseek2.attention.kv_lora_rank",
       "key deepseek2.attention.kv_lora_rank: found nothing, expected a number"},
      {"deepseek2.attention.value_length_mla", "key deepseek2.attention.value_length_mla: found nothing"},
      {"deepseek2.rope.dimension_count", "key deepseek2.rope.dimension_count: found nothing"},
      {"blk.0.attn_v_b.weight",
       "tensor \"blk.0.attn_v_b.weight\" is missing, expected with shape [4, 10, 20]"},
      {"blk.0.attn_k_b.weight", "tensor \"blk.0.attn_kv_b.weight\" is missing, expected with shape [88, 20]"},
      {"blk.1.exp_probs_b.bias", "tensor \"blk.1.exp_probs_b.bias\" is missing, expected with shape [8]"},
  };
  const std::string bytes = FamilyFile("deepseek-v3");
  for (const auto& test_case : kCases) {
    EXPECT_THAT(std::string(WithoutName(bytes, test_case.name).message()), HasSubstr(test_case.message));
  }
  // The values of keys, behind names and types of four bytes.
  const auto with = [](std::string whole, const std::string& key, uint32_t value) {
    std::memcpy(&whole[whole.find(key) + key.size() + 4], &value, sizeof(value));
    const TemporaryFolder folder;
    folder.Write("model.gguf", whole);
    return std::string(Model::Load(absl::StrCat(folder.path(), "/model.gguf")).status().message());
  };
  EXPECT_THAT(with(bytes, "deepseek2.expert_gating_func", 3),
              HasSubstr("key deepseek2.expert_gating_func: found 3, supported: 1 (softmax), 2 (sigmoid)"));
  EXPECT_THAT(
      with(bytes, "deepseek2.attention.head_count_kv", 2),
      HasSubstr("key deepseek2.attention.head_count_kv: found 2, supported: 1, or attention.head_count"));
  EXPECT_THAT(with(bytes, "deepseek2.attention.key_length_mla", 0xffffffff),
              HasSubstr("found 4294967295, expected"));
  EXPECT_THAT(with(bytes, "deepseek2.attention.key_length_mla", 4), HasSubstr("qk_nope_head_dim"));
  EXPECT_THAT(with(bytes, "deepseek2.rope.scaling.yarn_log_multiplier", 0x7fc00000),
              HasSubstr("key deepseek2.rope.scaling.yarn_log_multiplier"));
}

TEST(GgufModelTest, NamesKeysThatAreMissing) {
  const std::string llama = SmallModel("llama", 4).Bytes();
  for (const char* key : {"embedding_length", "block_count", "attention.head_count", "feed_forward_length",
                          "context_length", "attention.layer_norm_rms_epsilon"}) {
    // The whole name, since others begin like it.
    const std::string name = absl::StrCat("llama.", key);
    EXPECT_THAT(std::string(WithoutName(llama, name).message()),
                HasSubstr(absl::StrCat("key ", name, ": found nothing, expected a number")));
  }
  const struct {
    const char* file;
    const char* key;
  } kCases[] = {{"granite", "granite.attention.scale"},
                {"granite", "granite.logit_scale"},
                {"glm4", "glm4.rope.dimension_count"},
                {"gpt-oss", "gpt-oss.attention.sliding_window"},
                {"gpt-oss", "gpt-oss.expert_used_count"},
                {"gpt2", "gpt2.attention.layer_norm_epsilon"},
                {"gpt-neox", "gptneox.use_parallel_residual"},
                {"phi4-mini", "phi3.rope.scaling.original_context_length"}};
  for (const auto& test_case : kCases) {
    EXPECT_THAT(std::string(WithoutName(FamilyFile(test_case.file), test_case.key).message()),
                HasSubstr(absl::StrCat("key ", test_case.key, ": found nothing, expected a number")));
  }
}

// A model of Llama whose frequencies are divided one by one: by what Llama 3's scaling makes of them, or by
// anything else.
TEST(GgufModelTest, ReadsFactorsOfFrequencies) {
  const TemporaryFolder folder;
  const auto scaling = [&](const std::vector<float>& factors) -> absl::StatusOr<RopeScaling> {
    GgufWriter writer = SmallModel("llama", 4);
    writer.AddTensor("rope_freqs.weight", {static_cast<int64_t>(factors.size())}, kFileF32, BytesOf(factors));
    folder.Write("model.gguf", writer.Bytes());
    const auto model = Model::Load(absl::StrCat(folder.path(), "/model.gguf"));
    if (!model.ok()) return model.status();
    return (*model)->config().rope_scaling;
  };
  // Wavelengths of 6.3 and 628 tokens, of which the second is below 8192 / 4 too.
  const auto llama3 = scaling({1, 1});
  ASSERT_TRUE(llama3.ok()) << llama3.status();
  EXPECT_EQ(llama3->kind, RopeScaling::Kind::kLlama3);
  const auto other = scaling({1, 2.5f});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->kind, RopeScaling::Kind::kLongRope);
  EXPECT_EQ(other->divisors, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(other->attention_factor, 1.0);
  EXPECT_THAT(std::string(scaling({1, 2, 3}).status().message()),
              HasSubstr("tensor \"rope_freqs.weight\": 3 factors, expected 2"));
  EXPECT_THAT(std::string(scaling({1, NAN}).status().message()),
              HasSubstr("tensor \"rope_freqs.weight\": expected factors of 0.001 to"));
}

// Only what is before the weights, which are most of the file.
TEST(GgufModelTest, SpoiltFamilyFilesNeverCrash) {
  const TemporaryFolder folder;
  std::mt19937_64 random(11);
  int num_loaded = 0;
  for (const char* name : {"deepseek-v2-lite", "deepseek-v3", "gemma3", "phi4-mini", "gpt-oss", "gpt-neox"}) {
    const std::string whole = FamilyFile(name);
    constexpr size_t kHeader = 3600;
    ASSERT_GT(whole.size(), kHeader);
    for (int i = 0; i < 400; ++i) {
      std::string bytes = whole;
      for (uint64_t j = 1 + random() % 3; j > 0; --j) bytes[random() % kHeader] = static_cast<char>(random());
      folder.Write("model.gguf", bytes);
      const auto model = Model::Load(absl::StrCat(folder.path(), "/model.gguf"));
      if (!model.ok()) {
        EXPECT_THAT(std::string(model.status().message()), HasSubstr(folder.path()));
        continue;
      }
      ++num_loaded;
      for (const TensorView& matrix : DenseMatrices((*model)->layers()[0])) {
        if (!matrix.exists()) continue;
        std::vector<float> numbers(static_cast<size_t>(matrix.num_elements()));
        ConvertToFloat(matrix, absl::MakeSpan(numbers));
      }
    }
  }
  EXPECT_GT(num_loaded, 20);
  EXPECT_LT(num_loaded, 2300);
}

// A layer of latent attention without the matrices that keys and values come from.
constexpr int64_t kHeads = 2, kRank = 32, kKeys = 32, kValues = 4;

GgufWriter SmallLatentModel() {
  constexpr int64_t kHidden = 8;
  GgufWriter writer;
  writer.AddString("general.architecture", "deepseek2");
  const std::vector<std::pair<std::string, uint32_t>> keys = {{"embedding_length", kHidden},
                                                              {"block_count", 1},
                                                              {"attention.head_count", kHeads},
                                                              {"attention.head_count_kv", 1},
                                                              {"feed_forward_length", 6},
                                                              {"context_length", 64},
                                                              {"attention.kv_lora_rank", kRank},
                                                              {"attention.key_length_mla", kKeys + 2},
                                                              {"attention.value_length_mla", kValues},
                                                              {"rope.dimension_count", 2},
                                                              {"leading_dense_block_count", 1},
                                                              {"expert_shared_count", 1},
                                                              {"expert_count", 2},
                                                              {"expert_used_count", 1},
                                                              {"expert_feed_forward_length", 6}};
  for (const auto& [key, value] : keys) writer.AddUint32("deepseek2." + key, value);
  writer.AddFloat("deepseek2.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.AddFloat("deepseek2.rope.freq_base", 10000);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
      {"token_embd.weight", {10, kHidden}},
      {"output_norm.weight", {kHidden}},
      {"blk.0.attn_norm.weight", {kHidden}},
      {"blk.0.attn_q.weight", {kHeads * (kKeys + 2), kHidden}},
      {"blk.0.attn_kv_a_mqa.weight", {kRank + 2, kHidden}},
      {"blk.0.attn_kv_a_norm.weight", {kRank}},
      {"blk.0.attn_output.weight", {kHidden, kHeads * kValues}},
      {"blk.0.ffn_norm.weight", {kHidden}},
      {"blk.0.ffn_gate.weight", {6, kHidden}},
      {"blk.0.ffn_up.weight", {6, kHidden}},
      {"blk.0.ffn_down.weight", {kHidden, 6}}};
  for (const auto& [name, shape] : tensors) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    writer.AddTensor(name, shape, kFileF32, BytesOf(NumbersOf(name, count)));
  }
  return writer;
}

// The parts of latents' matrices as they are quantised: what they stand for, in float32.
TEST(GgufModelTest, JoinsQuantisedPartsOfLatents) {
  GgufWriter writer = SmallLatentModel();
  // Number i of a part is i % 100 - 50, in blocks of a scale of one and 32 integers.
  const auto blocks = [](int64_t count) {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      if (i % 32 == 0) bytes += std::string("\x00\x3c", 2);
      bytes.push_back(static_cast<char>(i % 100 - 50));
    }
    return bytes;
  };
  const std::string keys = blocks(kHeads * kRank * kKeys), values = blocks(kHeads * kValues * kRank);
  writer.AddTensor("blk.0.attn_k_b.weight", {kHeads, kRank, kKeys}, 8, keys);
  writer.AddTensor("blk.0.attn_v_b.weight", {kHeads, kValues, kRank}, 8, values);
  const TemporaryFolder folder;
  folder.Write("model.gguf", writer.Bytes());
  const auto model = Model::Load(absl::StrCat(folder.path(), "/model.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  const TensorView& up = (*model)->layers()[0].kv_up;
  EXPECT_EQ(up.dtype, TensorView::DType::kF32);
  std::vector<float> found(static_cast<size_t>(up.num_elements()));
  ConvertToFloat(up, absl::MakeSpan(found));
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t row = 0; row < kKeys + kValues; ++row) {
      for (int64_t i = 0; i < kRank; ++i) {
        const int64_t at =
            row < kKeys ? (head * kRank + i) * kKeys + row : (head * kValues + row - kKeys) * kRank + i;
        ASSERT_EQ(found[static_cast<size_t>((head * (kKeys + kValues) + row) * kRank + i)],
                  static_cast<float>(at % 100 - 50))
            << head << " " << row << " " << i;
      }
    }
  }
}

TEST(GgufDequantizeTest, MakesTheNumbersOfTheFormatsAuthors) {
  const std::string path = absl::StrCat(TANDEM_SOURCE_DIR, "/common/model/testdata/gguf_blocks.json");
  const nlohmann::json cases = nlohmann::json::parse(ReadFile(path, 1 << 20).value());
  // All types but the plain ones.
  EXPECT_EQ(cases.size(), GgufTypes().size() - 3);
  for (const nlohmann::json& test_case : cases) {
    const auto type = static_cast<GgufType>(test_case.at("type").get<uint32_t>());
    const std::string bytes = absl::HexStringToBytes(test_case.at("bytes").get<std::string>());
    const std::vector<uint32_t> expected = test_case.at("bits");
    std::vector<float> found(expected.size());
    DequantizeBlocks(type, bytes, absl::MakeSpan(found));
    for (size_t i = 0; i < found.size(); ++i) {
      // Zeros may differ in sign.
      EXPECT_EQ(found[i], std::bit_cast<float>(expected[i])) << test_case.at("name") << ", number " << i;
    }
  }
}

}  // namespace
}  // namespace tandem

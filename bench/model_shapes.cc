#include "bench/model_shapes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

enum class Family { kLlama, kQwen2, kQwen3, kQwen3Moe, kDeepSeekV2Lite };

struct Shape {
  const char* name = nullptr;
  Family family = Family::kLlama;
  int hidden = 0;
  int intermediate = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  int context = 0;
  bool tied = false;
  double theta = 10000.0;
  double epsilon = 1e-5;
  // Of Llama 3's rotary scaling; 0 without.
  double rope_factor = 0.0;
  // Of a mixture.
  int experts = 0;
  int experts_per_token = 0;
  int expert_intermediate = 0;
};

// As in the config.json files that the models' authors publish.
constexpr Shape kShapes[] = {
    // JackFram/llama-68m and llama-160m.
    {"llama-68m", Family::kLlama, 768, 3072, 2, 12, 12, 64, 32000, 2048, false, 10000, 1e-6, 0},
    {"llama-160m", Family::kLlama, 768, 3072, 12, 12, 12, 64, 32000, 2048, false, 10000, 1e-6, 0},
    // HuggingFaceTB/SmolLM2-135M.
    {"smollm2-135m", Family::kLlama, 576, 1536, 30, 9, 3, 64, 49152, 8192, true, 100000, 1e-5, 0},
    // TinyLlama/TinyLlama-1.1B-Chat-v1.0.
    {"tinyllama-1.1b", Family::kLlama, 2048, 5632, 22, 32, 4, 64, 32000, 2048, false, 10000, 1e-5, 0},
    // meta-llama/Llama-3.2-1B, Llama-3.2-3B and Llama-3.1-8B, and one layer of 32 of the last.
    {"llama-1b", Family::kLlama, 2048, 8192, 16, 32, 8, 64, 128256, 131072, true, 500000, 1e-5, 32},
    {"llama-3b", Family::kLlama, 3072, 8192, 28, 24, 8, 128, 128256, 131072, true, 500000, 1e-5, 32},
    {"llama-8b", Family::kLlama, 4096, 14336, 32, 32, 8, 128, 128256, 131072, false, 500000, 1e-5, 8},
    {"llama-8b-1layer", Family::kLlama, 4096, 14336, 1, 32, 8, 128, 128256, 131072, false, 500000, 1e-5, 8},
    // Qwen/Qwen2.5-0.5B and Qwen2.5-1.5B.
    {"qwen2.5-0.5b", Family::kQwen2, 896, 4864, 24, 14, 2, 64, 151936, 32768, true, 1000000, 1e-6, 0},
    {"qwen2.5-1.5b", Family::kQwen2, 1536, 8960, 28, 12, 2, 128, 151936, 131072, true, 1000000, 1e-6, 0},
    // Qwen/Qwen3-0.6B.
    {"qwen3-0.6b", Family::kQwen3, 1024, 3072, 28, 16, 8, 128, 151936, 40960, true, 1000000, 1e-6, 0},
    // Qwen/Qwen3-30B-A3B, two layers of 48.
    {"qwen3-30b-a3b-2layers", Family::kQwen3Moe, 2048, 6144, 2, 32, 4, 128, 151936, 40960, false, 1000000,
     1e-6, 0, 128, 8, 768},
    // deepseek-ai/DeepSeek-V2-Lite, two layers of 27: the dense one and one with experts.
    {"deepseek-v2-lite-2layers", Family::kDeepSeekV2Lite, 2048, 10944, 2, 16, 16, 0, 102400, 163840, false,
     10000, 1e-6, 0, 64, 6, 1408},
};

nlohmann::json ConfigOf(const Shape& shape) {
  nlohmann::json config = {{"hidden_act", "silu"},
                           {"hidden_size", shape.hidden},
                           {"intermediate_size", shape.intermediate},
                           {"num_hidden_layers", shape.layers},
                           {"num_attention_heads", shape.heads},
                           {"num_key_value_heads", shape.kv_heads},
                           {"head_dim", shape.head_dim},
                           {"vocab_size", shape.vocab},
                           {"max_position_embeddings", shape.context},
                           {"rms_norm_eps", shape.epsilon},
                           {"rope_theta", shape.theta},
                           {"tie_word_embeddings", shape.tied},
                           {"torch_dtype", "bfloat16"}};
  switch (shape.family) {
    case Family::kLlama:
      config["architectures"] = {"LlamaForCausalLM"};
      config["model_type"] = "llama";
      break;
    case Family::kQwen2:
      config["architectures"] = {"Qwen2ForCausalLM"};
      config["model_type"] = "qwen2";
      break;
    case Family::kQwen3:
      config["architectures"] = {"Qwen3ForCausalLM"};
      config["model_type"] = "qwen3";
      break;
    case Family::kQwen3Moe:
      config["architectures"] = {"Qwen3MoeForCausalLM"};
      config["model_type"] = "qwen3_moe";
      config["num_experts"] = shape.experts;
      config["num_experts_per_tok"] = shape.experts_per_token;
      config["moe_intermediate_size"] = shape.expert_intermediate;
      config["norm_topk_prob"] = true;
      break;
    case Family::kDeepSeekV2Lite:
      config["architectures"] = {"DeepseekV2ForCausalLM"};
      config["model_type"] = "deepseek_v2";
      config.erase("head_dim");
      config["kv_lora_rank"] = 512;
      config["q_lora_rank"] = nullptr;
      config["qk_nope_head_dim"] = 128;
      config["qk_rope_head_dim"] = 64;
      config["v_head_dim"] = 128;
      config["n_routed_experts"] = shape.experts;
      config["num_experts_per_tok"] = shape.experts_per_token;
      config["moe_intermediate_size"] = shape.expert_intermediate;
      config["n_shared_experts"] = 2;
      config["first_k_dense_replace"] = 1;
      config["topk_method"] = "greedy";
      config["scoring_func"] = "softmax";
      config["rope_scaling"] = {{"type", "yarn"},
                                {"factor", 40},
                                {"mscale", 0.707},
                                {"mscale_all_dim", 0.707},
                                {"beta_fast", 32},
                                {"beta_slow", 1},
                                {"original_max_position_embeddings", 4096}};
      break;
  }
  if (shape.rope_factor > 0) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", shape.rope_factor},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  }
  return config;
}

}  // namespace

std::vector<std::string> ModelShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

absl::StatusOr<std::string> ModelShapeJson(absl::string_view name) {
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return ConfigOf(shape).dump(2);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("shape \"", name, "\", expected one of ", absl::StrJoin(ModelShapeNames(), ", ")));
}

absl::StatusOr<ModelConfig> ModelShape(absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const std::string json, ModelShapeJson(name));
  return ParseModelConfig(json, absl::StrCat("shape ", name));
}

}  // namespace tandem

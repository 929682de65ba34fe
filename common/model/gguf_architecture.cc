#include "common/model/gguf_architecture.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/config/architecture.h"

namespace tandem {
namespace {

constexpr GgufKeyField kGemma2Keys[] = {{"attn_logit_softcapping", "attn_logit_softcapping"},
                                        {"final_logit_softcapping", "final_logit_softcapping"}};
constexpr GgufKeyField kGemma3Keys[] = {{"final_logit_softcapping", "final_logit_softcapping"},
                                        {"rope.freq_base_swa", "rope_local_base_freq"}};
constexpr GgufKeyField kGraniteKeys[] = {{"attention.scale", "attention_multiplier"},
                                         {"embedding_scale", "embedding_multiplier"},
                                         {"residual_scale", "residual_multiplier"},
                                         {"logit_scale", "logits_scaling"}};
constexpr absl::string_view kGraniteRequired[] = {"attention.scale", "logit_scale"};
constexpr GgufKeyField kGptNeoXKeys[] = {{"use_parallel_residual", "use_parallel_residual"},
                                         {"rope.freq_base", "rotary_emb_base"}};
constexpr absl::string_view kGptNeoXRequired[] = {"use_parallel_residual", "rope.dimension_count"};
constexpr absl::string_view kTurnedRequired[] = {"rope.dimension_count"};
constexpr absl::string_view kGptOssRequired[] = {"attention.sliding_window", "expert_feed_forward_length"};
constexpr absl::string_view kDeepSeekRequired[] = {"leading_dense_block_count", "expert_feed_forward_length",
                                                   "expert_shared_count", "attention.kv_lora_rank",
                                                   "rope.dimension_count"};
constexpr GgufKeyField kGpt2Keys[] = {{"feed_forward_length", "n_inner"}};
constexpr GgufKeyField kBloomKeys[] = {{"context_length", "seq_length"}};

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama", .model = "LlamaForCausalLM", .model_type = "llama", .paired_rows = true},
    {.name = "mistral", .model = "MistralForCausalLM", .model_type = "mistral", .paired_rows = true},
    {.name = "qwen2", .model = "Qwen2ForCausalLM", .model_type = "qwen2"},
    {.name = "qwen3", .model = "Qwen3ForCausalLM", .model_type = "qwen3"},
    // Mixtral says that it is a Llama.
    {.name = "llama",
     .model = "MixtralForCausalLM",
     .model_type = "mixtral",
     .has_experts = true,
     .paired_rows = true},
    {.name = "qwen2moe", .model = "Qwen2MoeForCausalLM", .model_type = "qwen2_moe", .has_experts = true},
    {.name = "qwen3moe", .model = "Qwen3MoeForCausalLM", .model_type = "qwen3_moe", .has_experts = true},
    {.name = "deepseek2",
     .model = "DeepseekV2ForCausalLM",
     .model_type = "deepseek_v2",
     .has_experts = true,
     .required = kDeepSeekRequired},
    // DeepSeek-V3 says that it is a V2; how experts are chosen tells.
    {.name = "deepseek2",
     .model = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .has_experts = true,
     .required = kDeepSeekRequired},
    {.name = "gemma2",
     .model = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .window_every = 2,
     .layers_scaled_by_hidden = 46,
     .keys = kGemma2Keys},
    {.name = "gemma3",
     .model = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .window_every = 6,
     .windows_vary = true,
     .layers_scaled_by_hidden = 62,
     .keys = kGemma3Keys},
    {.name = "phi3",
     .model = "Phi3ForCausalLM",
     .model_type = "phi3",
     .rotary_share = "partial_rotary_factor",
     .window_every = 1,
     .windows_vary = true},
    {.name = "granite",
     .model = "GraniteForCausalLM",
     .model_type = "granite",
     .paired_rows = true,
     .keys = kGraniteKeys,
     .required = kGraniteRequired},
    {.name = "olmo2", .model = "Olmo2ForCausalLM", .model_type = "olmo2"},
    {.name = "glm4",
     .model = "Glm4ForCausalLM",
     .model_type = "glm4",
     .rotary_share = "partial_rotary_factor",
     .required = kTurnedRequired},
    {.name = "smollm3", .model = "SmolLM3ForCausalLM", .model_type = "smollm3", .paired_rows = true},
    {.name = "starcoder2",
     .model = "Starcoder2ForCausalLM",
     .model_type = "starcoder2",
     .epsilon = "norm_epsilon",
     .window_every = 1,
     .windows_vary = true},
    {.name = "gpt-oss",
     .model = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .has_experts = true,
     .window_every = 2,
     .required = kGptOssRequired,
     .mlp_norm = "post_attention_norm"},
    {.name = "gpt2",
     .model = "GPT2LMHeadModel",
     .model_type = "gpt2",
     .epsilon = "layer_norm_epsilon",
     .keys = kGpt2Keys},
    {.name = "gptneox",
     .model = "GPTNeoXForCausalLM",
     .model_type = "gpt_neox",
     .epsilon = "layer_norm_eps",
     .rotary_share = "rotary_pct",
     .keys = kGptNeoXKeys,
     .required = kGptNeoXRequired},
    {.name = "bloom",
     .model = "BloomForCausalLM",
     .model_type = "bloom",
     .epsilon = "layer_norm_epsilon",
     .keys = kBloomKeys},
};

// Names in a file; a layer's stand behind "blk.N.".
struct GgufName {
  std::string TensorNames::*member;
  const char* name;
};
constexpr GgufName kNames[] = {
    {&TensorNames::embedding, "token_embd"},
    {&TensorNames::positions, "position_embd"},
    {&TensorNames::embedding_norm, "token_embd_norm"},
    {&TensorNames::final_norm, "output_norm"},
    {&TensorNames::layers, "blk."},
    {&TensorNames::attention_norm, "attn_norm"},
    {&TensorNames::query, "attn_q"},
    {&TensorNames::key, "attn_k"},
    {&TensorNames::value, "attn_v"},
    {&TensorNames::query_key_value, "attn_qkv"},
    {&TensorNames::query_norm, "attn_q_norm"},
    {&TensorNames::key_norm, "attn_k_norm"},
    {&TensorNames::query_down, "attn_q_a"},
    {&TensorNames::query_latent_norm, "attn_q_a_norm"},
    {&TensorNames::query_up, "attn_q_b"},
    {&TensorNames::kv_down, "attn_kv_a_mqa"},
    {&TensorNames::kv_latent_norm, "attn_kv_a_norm"},
    {&TensorNames::kv_up, "attn_kv_b"},
    {&TensorNames::sinks, "attn_sinks.weight"},
    {&TensorNames::attention_out, "attn_output"},
    {&TensorNames::attention_output_norm, "post_attention_norm"},
    {&TensorNames::gate, "ffn_gate"},
    {&TensorNames::up, "ffn_up"},
    {&TensorNames::gate_up, "ffn_up"},
    {&TensorNames::down, "ffn_down"},
    {&TensorNames::mlp_output_norm, "post_ffw_norm"},
    {&TensorNames::router, "ffn_gate_inp"},
    {&TensorNames::selection_bias, "exp_probs_b.bias"},
    {&TensorNames::experts, "experts."},
    {&TensorNames::shared_expert, "shared."},
    {&TensorNames::shared_gate, "ffn_gate_inp_shexp"},
    {&TensorNames::expert_gate, "ffn_gate_exps"},
    {&TensorNames::expert_up, "ffn_up_exps"},
    {&TensorNames::expert_down, "ffn_down_exps"},
};

}  // namespace

absl::Span<const GgufArchitecture> GgufArchitectures() {
  return kArchitectures;
}

std::string GgufArchitectureNames() {
  std::vector<absl::string_view> names;
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (std::find(names.begin(), names.end(), architecture.name) == names.end()) {
      names.push_back(architecture.name);
    }
  }
  return absl::StrJoin(names, ", ");
}

const GgufArchitecture* FindGgufArchitecture(absl::string_view model) {
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (architecture.model == model) return &architecture;
  }
  return nullptr;
}

void UseGgufLayout(const GgufArchitecture& architecture, BlockDescription* block) {
  TensorNames& names = block->names;
  for (const GgufName& name : kNames) {
    if (std::string& member = names.*name.member; !member.empty()) member = name.name;
  }
  if (!names.mlp_norm.empty()) names.mlp_norm = std::string(architecture.mlp_norm);
  // Each expert's matrices are parts of a tensor for gates, one for ups and one for downs.
  names.experts_gate_up = names.experts_down = "";
  names.roots = {""};
  names.outputs = {"output"};
  names.buffers.clear();
  block->matrices_transposed = false;
  if (block->qkv == QkvLayout::kPerHead) block->qkv = QkvLayout::kStacked;
}

}  // namespace tandem

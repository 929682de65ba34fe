// Mixtures of experts that are a Mistral or a Qwen but for their feed-forward parts: Mixtral (Jiang et al.,
// 2024), Qwen1.5 and Qwen2 MoE, with a shared expert, and Qwen3 MoE.

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {
namespace {

// Attention's side of it, as a Llama.
absl::Status ReadAroundExperts(const JsonFields& fields, const SizeFields& sizes, double epsilon,
                               double theta, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, sizes, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", epsilon, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {.default_theta = theta}, config));
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

// Of a Qwen, every `decoder_sparse_step`-th layer has experts, but for those in `mlp_only_layers`.
absl::Status ReadSparseLayers(const JsonFields& fields, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const int32_t step, fields.IntOr("decoder_sparse_step", 1, 1024, 1));
  std::vector<bool> sparse;
  for (int32_t i = 0; i < config.num_layers; ++i) sparse.push_back((i + 1) % step == 0);
  if (const nlohmann::json* const dense = fields.Find("mlp_only_layers")) {
    bool valid = dense->is_array();
    for (size_t i = 0; valid && i < dense->size(); ++i) {
      const nlohmann::json& layer = (*dense)[i];
      valid = layer.is_number_unsigned() && layer.get<uint64_t>() < sparse.size();
      if (valid) sparse[layer.get<size_t>()] = false;
    }
    if (!valid) {
      return fields.Unexpected("mlp_only_layers",
                               absl::StrCat("a list of layers, 0 to ", config.num_layers - 1));
    }
  }
  SetSparseLayers(sparse, config);
  return absl::OkStatus();
}

// Whether a Qwen's layers slide by what `slides` says, where use_sliding_window is true.
absl::Status ReadQwenMoeWindow(const JsonFields& fields, std::vector<bool> slides, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", false));
  const bool some_slide = std::count(slides.begin(), slides.end(), true) > 0;
  if (!used && some_slide) {
    return fields.Unexpected("use_sliding_window", "true, for sliding_attention layers");
  }
  if (!used) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(std::optional<int32_t> window, fields.Int("sliding_window", 1, kMostContext));
  if (!window.has_value() && fields.Has("sliding_window")) {
    return fields.Unexpected("sliding_window", "a number, as use_sliding_window is true");
  }
  SetWindows(slides, window.value_or(4096), config);
  return absl::OkStatus();
}

absl::Status ReadQwenExperts(const JsonFields& fields, int32_t default_size, int32_t default_chosen,
                             int32_t default_experts, ModelConfig& config) {
  ExpertsDescription& experts = config.block.experts;
  TANDEM_RETURN_IF_ERROR(ReadExpertCounts(fields, AnyOf(fields, {"num_experts", "num_local_experts"}),
                                          default_experts, default_chosen, config));
  TANDEM_ASSIGN_OR_RETURN(experts.intermediate_size,
                          fields.IntOr("moe_intermediate_size", 1, kMostIntermediate, default_size));
  TANDEM_ASSIGN_OR_RETURN(experts.scores_add_up_to_one, fields.BoolOr("norm_topk_prob", false));
  return ReadSparseLayers(fields, config);
}

// All layers slide or none does; a list of layers may only repeat it.
absl::Status ReadQwen3MoeWindow(const JsonFields& fields, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", false));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<bool> listed, ReadLayerTypes(fields, config.num_layers));
  if (std::count(listed.begin(), listed.end(), !used) > 0) {
    return fields.Unsupported("layer_types", used ? "sliding_attention, as use_sliding_window is true"
                                                  : "full_attention, as use_sliding_window is false");
  }
  return ReadQwenMoeWindow(fields, std::vector<bool>(static_cast<size_t>(config.num_layers), used), config);
}

}  // namespace

absl::Status ReadMixtral(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(
      ReadAroundExperts(fields, {.default_kv_heads = 8, .default_context = 131072}, 1e-5, 1e6, config));
  TANDEM_ASSIGN_OR_RETURN(config.sliding_window, fields.Int("sliding_window", 1, kMostContext));
  TANDEM_RETURN_IF_ERROR(ReadExpertCounts(fields, "num_local_experts", 8, 2, config));
  config.block.experts.intermediate_size = config.intermediate_size;
  TensorNames& names = config.block.names;
  names.router = "block_sparse_moe.gate";
  names.experts = "block_sparse_moe.experts.";
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  return absl::OkStatus();
}

absl::Status ReadQwen2Moe(const JsonFields& fields, ModelConfig& config) {
  const SizeFields sizes = {.default_kv_heads = 16, .default_context = 32768, .head_dim_given = false};
  TANDEM_RETURN_IF_ERROR(ReadAroundExperts(fields, sizes, 1e-6, 10000.0, config));
  TANDEM_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  TANDEM_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", false));
  TANDEM_ASSIGN_OR_RETURN(const int32_t most,
                          fields.IntOr("max_window_layers", 0, std::numeric_limits<int32_t>::max(), 28));
  // Every other layer of the first ones, as transformers reads max_window_layers here.
  for (int32_t i = 0; used && fields.Find("layer_types") == nullptr && i < config.num_layers; ++i) {
    slides.push_back(i % 2 == 0 && i < most);
  }
  TANDEM_RETURN_IF_ERROR(ReadQwenMoeWindow(fields, std::move(slides), config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("qkv_bias", true));
  TANDEM_RETURN_IF_ERROR(ReadQwenExperts(fields, 1408, 4, 60, config));
  TANDEM_ASSIGN_OR_RETURN(config.block.experts.shared_size,
                          fields.IntOr("shared_expert_intermediate_size", 1, kMostIntermediate, 5632));
  return absl::OkStatus();
}

absl::Status ReadQwen3Moe(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(
      ReadAroundExperts(fields, {.default_kv_heads = 4, .default_context = 32768}, 1e-6, 10000.0, config));
  TANDEM_RETURN_IF_ERROR(ReadQwen3MoeWindow(fields, config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  config.attention_output_bias = config.attention_bias;
  config.qk_norm = true;
  return ReadQwenExperts(fields, 768, 8, 128, config);
}

}  // namespace tandem

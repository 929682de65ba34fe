// Gemma 2 (Google, 2024) and the text models of Gemma 3 (2025): norms on both sides of attention and
// feed-forward part, weights of norms around 0, a scaled embedding, layers with and without a window.

#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {
namespace {

absl::StatusOr<float> ReadCap(const JsonFields& fields, absl::string_view name, double absent) {
  // Null says that there is none.
  const double fallback = fields.Has(name) ? 0.0 : absent;
  TANDEM_ASSIGN_OR_RETURN(const double cap, fields.NumberOr(name, 1e-3, 1e9, fallback));
  return static_cast<float>(cap);
}

absl::Status ReadGemma(const JsonFields& fields, int32_t default_context, ModelConfig& config) {
  const SizeFields sizes = {
      .default_kv_heads = 4, .default_head_dim = 256, .default_context = default_context};
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, sizes, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-6, config));
  TANDEM_RETURN_IF_ERROR(ExpectFixed(fields, {{"use_bidirectional_attention", false}}));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  config.attention_output_bias = config.attention_bias;
  BlockDescription& block = config.block;
  block.norm_weight_offset = 1.0f;
  // The newer name wins, as it does in transformers.
  TANDEM_ASSIGN_OR_RETURN(
      block.activation,
      ReadActivation(fields, AnyOf(fields, {"hidden_activation", "hidden_act"}), "gelu_pytorch_tanh"));
  TANDEM_ASSIGN_OR_RETURN(const double scalar, fields.NumberOr("query_pre_attn_scalar", 1e-6, 1e9, 256.0));
  block.attention_scale = 1 / std::sqrt(scalar);
  block.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  block.names.attention_output_norm = "post_attention_layernorm";
  block.names.mlp_norm = "pre_feedforward_layernorm";
  block.names.mlp_output_norm = "post_feedforward_layernorm";
  return ReadEnds(fields, /*tied_when_absent=*/true, config);
}

// Where there is no `layer_types`, every layer slides but the last of each `pattern`.
absl::Status ReadWindows(const JsonFields& fields, int32_t pattern, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  if (slides.empty()) {
    for (int32_t i = 0; i < config.num_layers; ++i) slides.push_back((i + 1) % pattern != 0);
  }
  TANDEM_ASSIGN_OR_RETURN(const int32_t window, fields.IntOr("sliding_window", 1, kMostContext, 4096));
  SetWindows(slides, window, config);
  return absl::OkStatus();
}

// Layers that see everything turn by their own settings, the others by theta alone. transformers 4 spells it
// rope_theta, rope_scaling and rope_local_base_freq, 5 rope_parameters with an object for each kind of layer.
absl::Status ReadTwoRotations(const JsonFields& fields, ModelConfig& config) {
  constexpr double kMostTheta = 1e15;
  const nlohmann::json* const both = fields.Find("rope_parameters");
  if (both == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(config.block.local_rope_theta,
                            fields.NumberOr("rope_local_base_freq", 1.0, kMostTheta, 10000.0));
    return ReadRope(fields, {.default_theta = 1e6}, config);
  }
  if (!both->is_object()) return fields.Unexpected("rope_parameters", "an object");
  const JsonFields kinds = fields.Inner(*both, "rope_parameters");
  for (const absl::string_view kind : {"full_attention", "sliding_attention"}) {
    const nlohmann::json* const object = kinds.Find(kind);
    if (object == nullptr || !object->is_object()) return kinds.Unexpected(kind, "an object");
    const JsonFields rope = kinds.Inner(*object, kind);
    if (kind == "full_attention") {
      config.rope_theta = 1e6;
      TANDEM_RETURN_IF_ERROR(ReadRopeObject(fields, rope, {}, config));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(config.block.local_rope_theta,
                            rope.NumberOr("rope_theta", 1.0, kMostTheta, 10000.0));
    TANDEM_ASSIGN_OR_RETURN(const auto type, rope.String("rope_type"));
    if (type.value_or("default") != "default") return rope.Unsupported("rope_type", "default");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGemma2(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ReadGemma(fields, 8192, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {}, config));
  TANDEM_ASSIGN_OR_RETURN(config.block.score_cap, ReadCap(fields, "attn_logit_softcapping", 50.0));
  TANDEM_ASSIGN_OR_RETURN(config.block.logit_cap, ReadCap(fields, "final_logit_softcapping", 30.0));
  return ReadWindows(fields, 2, config);
}

absl::Status ReadGemma3(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ReadGemma(fields, 131072, config));
  TANDEM_RETURN_IF_ERROR(ReadTwoRotations(fields, config));
  TANDEM_ASSIGN_OR_RETURN(config.block.score_cap, ReadCap(fields, "attn_logit_softcapping", 0.0));
  TANDEM_ASSIGN_OR_RETURN(config.block.logit_cap, ReadCap(fields, "final_logit_softcapping", 0.0));
  config.qk_norm = true;
  TANDEM_ASSIGN_OR_RETURN(const int32_t pattern, fields.IntOr("sliding_window_pattern", 1, 1024, 6));
  TANDEM_RETURN_IF_ERROR(ReadWindows(fields, pattern, config));
  BlockDescription& block = config.block;
  block.layers.resize(static_cast<size_t>(config.num_layers));
  for (LayerVariant& layer : block.layers) {
    layer.is_local = config.sliding_window.has_value() && layer.has_window;
  }
  return absl::OkStatus();
}

}  // namespace tandem

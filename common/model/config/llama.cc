// Llama 2 and 3, and what differs from them in little: Mistral, Ministral, Qwen2 and 2.5, MiMo (a Qwen2 with
// a next-token module) and Qwen3.

#include <algorithm>
#include <limits>
#include <optional>

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {
namespace {

absl::Status ReadLlamaLike(const JsonFields& fields, const SizeFields& sizes, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  TANDEM_RETURN_IF_ERROR(ExpectAbsent(fields, {"attn_logit_softcapping", "final_logit_softcapping"}));
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, sizes, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-6, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {}, config));
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

// Of a Qwen, the first `max_window_layers` layers see everything where `layer_types` does not say which do.
absl::Status ReadQwenWindow(const JsonFields& fields, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", false));
  TANDEM_ASSIGN_OR_RETURN(const int32_t full_layers,
                          fields.IntOr("max_window_layers", 0, std::numeric_limits<int32_t>::max(), 28));
  std::optional<int32_t> window;
  if (used) {
    TANDEM_ASSIGN_OR_RETURN(window, fields.Int("sliding_window", 1, kMostContext));
    if (!window.has_value() && !fields.Has("sliding_window")) window = 4096;
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  const bool some_slide = std::count(slides.begin(), slides.end(), true) > 0;
  if (some_slide && !window.has_value()) {
    return fields.Unexpected("sliding_window",
                             "a number and use_sliding_window true, for sliding_attention layers");
  }
  if (!window.has_value()) return absl::OkStatus();
  if (slides.empty()) {
    for (int32_t i = 0; i < config.num_layers; ++i) slides.push_back(i >= full_layers);
  }
  SetWindows(slides, *window, config);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadLlama(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ReadLlamaLike(fields, {}, config));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  if (std::count(slides.begin(), slides.end(), true) > 0) {
    return fields.Unsupported("layer_types", "full_attention");
  }
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  TANDEM_ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
  config.attention_output_bias = config.attention_bias;
  return absl::OkStatus();
}

absl::Status ReadMistral(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ReadLlamaLike(fields, {.default_kv_heads = 8, .default_context = 131072}, config));
  TANDEM_ASSIGN_OR_RETURN(std::optional<int32_t> window, fields.Int("sliding_window", 1, kMostContext));
  // Only null says that none is there.
  if (!fields.Has("sliding_window")) window = 4096;
  TANDEM_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  const bool some_slide = std::count(slides.begin(), slides.end(), true) > 0;
  if (some_slide && !window.has_value()) {
    return fields.Unexpected("sliding_window", "a number, for sliding_attention layers");
  }
  if (!window.has_value()) return absl::OkStatus();
  if (slides.empty()) slides.assign(static_cast<size_t>(config.num_layers), true);
  SetWindows(slides, *window, config);
  return absl::OkStatus();
}

absl::Status ReadQwen2(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ReadLlamaLike(fields, {.default_kv_heads = 32, .default_context = 32768}, config));
  config.attention_bias = true;
  return ReadQwenWindow(fields, config);
}

absl::Status ReadQwen3(const JsonFields& fields, ModelConfig& config) {
  const SizeFields sizes = {.default_kv_heads = 32, .default_head_dim = 128, .default_context = 32768};
  TANDEM_RETURN_IF_ERROR(ReadLlamaLike(fields, sizes, config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  config.attention_output_bias = config.attention_bias;
  config.qk_norm = true;
  return ReadQwenWindow(fields, config);
}

}  // namespace tandem

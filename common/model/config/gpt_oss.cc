// gpt-oss (OpenAI, 2025): experts of which each has biases and limited gates, attention sinks, and windows in
// every other layer. The experts' matrices are in MXFP4 or, in files of other makers, in bfloat16.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {
namespace {

absl::Status CheckQuantization(const JsonFields& fields) {
  const nlohmann::json* const object = fields.Find("quantization_config");
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return fields.Unexpected("quantization_config", "an object or null");
  const JsonFields quantization = fields.Inner(*object, "quantization_config");
  TANDEM_ASSIGN_OR_RETURN(const auto method, quantization.String("quant_method"));
  return method == "mxfp4" ? absl::OkStatus() : quantization.Unsupported("quant_method", "mxfp4");
}

absl::Status ReadAlternateWindows(const JsonFields& fields, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const auto window, fields.Int("sliding_window", 1, kMostContext));
  TANDEM_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  if (slides.empty()) {
    for (int32_t i = 0; i < config.num_layers; ++i) slides.push_back(i % 2 == 0);
  }
  if (!window.has_value() && fields.Has("sliding_window")) {
    return fields.Unexpected("sliding_window", "a number, for sliding_attention layers");
  }
  SetWindows(slides, window.value_or(128), config);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGptOss(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(CheckQuantization(fields));
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  TANDEM_RETURN_IF_ERROR(
      ReadSizes(fields, {.default_kv_heads = 8, .default_head_dim = 64, .default_context = 131072}, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-5, config));
  if (fields.Find("rope_scaling") == nullptr && fields.Find("rope_parameters") == nullptr) {
    return fields.Unexpected("rope_scaling", "an object, or rope_parameters");
  }
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {.default_theta = 150000.0}, config));
  TANDEM_RETURN_IF_ERROR(ReadAlternateWindows(fields, config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", true));
  config.attention_output_bias = config.attention_bias;
  BlockDescription& block = config.block;
  block.sinks = true;
  TANDEM_ASSIGN_OR_RETURN(const double limit, fields.NumberOr("swiglu_limit", 1e-3, 1e6, 7.0));
  TANDEM_ASSIGN_OR_RETURN(const double alpha, fields.NumberOr("swiglu_alpha", 1e-3, 1e3, 1.702));
  block.gate = {.limit = static_cast<float>(limit), .alpha = static_cast<float>(alpha), .up_offset = 1.0f};
  TANDEM_RETURN_IF_ERROR(
      ReadExpertCounts(fields, AnyOf(fields, {"num_local_experts", "num_experts"}), 128, 4, config));
  block.experts.intermediate_size = config.intermediate_size;
  block.experts.router_bias = true;
  block.experts.biases = true;
  block.names.router = "mlp.router";
  block.names.experts_gate_up = "mlp.experts.gate_up_proj";
  block.names.experts_down = "mlp.experts.down_proj";
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

}  // namespace tandem

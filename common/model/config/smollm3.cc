// SmolLM3 (Hugging Face, 2025): a Llama of which every fourth layer knows no positions (Yang et al., RoPE to
// NoPE and back again, 2025).

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadSmolLm3(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, {.default_kv_heads = 4, .default_context = 32768}, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-6, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {.default_theta = 2e6}, config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  config.attention_output_bias = config.attention_bias;
  TANDEM_ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
  TANDEM_ASSIGN_OR_RETURN(const int32_t interval, fields.IntOr("no_rope_layer_interval", 1, 1024, 4));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  TANDEM_RETURN_IF_ERROR(ExpectFixed(fields, {{"use_sliding_window", false}}));
  for (const bool layer_slides : slides) {
    if (layer_slides) return fields.Unsupported("layer_types", "full_attention");
  }
  // 1 for a layer that turns.
  const nlohmann::json* const turns = fields.Find("no_rope_layers");
  std::vector<LayerVariant>& layers = config.block.layers;
  layers.resize(static_cast<size_t>(config.num_layers));
  if (turns != nullptr && (!turns->is_array() || turns->size() != layers.size())) {
    return fields.Unexpected("no_rope_layers", absl::StrCat("a list of ", config.num_layers));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].rotates = (i + 1) % static_cast<size_t>(interval) != 0;
    if (turns == nullptr) continue;
    const nlohmann::json& turn = (*turns)[i];
    if (turn != 0 && turn != 1) return fields.Unexpected("no_rope_layers", "a list of 0 and 1");
    layers[i].rotates = turn == 1;
  }
  return ReadEnds(fields, /*tied_when_absent=*/true, config);
}

}  // namespace tandem

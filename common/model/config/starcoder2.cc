// StarCoder2 (Lozhkov et al., 2024): a Llama with LayerNorm, biases and no gate; a window in all layers.

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadStarCoder2(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, {.default_kv_heads = 2, .default_context = 4096}, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "norm_epsilon", 1e-5, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {}, config));
  TANDEM_ASSIGN_OR_RETURN(config.sliding_window, fields.Int("sliding_window", 1, kMostContext));
  TANDEM_ASSIGN_OR_RETURN(const bool has_bias, fields.BoolOr("use_bias", true));
  config.attention_bias = config.attention_output_bias = config.mlp_bias = has_bias;
  BlockDescription& block = config.block;
  block.norm = NormKind::kLayer;
  TANDEM_ASSIGN_OR_RETURN(block.activation, ReadActivation(fields, "hidden_act", "gelu_pytorch_tanh"));
  block.gated = false;
  block.names.up = "mlp.c_fc";
  block.names.down = "mlp.c_proj";
  return ReadEnds(fields, /*tied_when_absent=*/true, config);
}

}  // namespace tandem

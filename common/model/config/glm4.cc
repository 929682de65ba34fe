// GLM-4 (GLM-4-0414; Team GLM, 2024): half of each head turned, in adjacent pairs; norms on both sides of
// attention and feed-forward part.

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadGlm4(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  const SizeFields sizes = {.default_kv_heads = 2, .default_head_dim = 128, .default_context = 131072};
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, sizes, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1.5625e-7, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {.share = "partial_rotary_factor", .default_share = 0.5}, config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", true));
  BlockDescription& block = config.block;
  block.rotary_pairs_adjacent = true;
  block.names.attention_output_norm = "post_self_attn_layernorm";
  block.names.gate_up = "mlp.gate_up_proj";
  block.names.mlp_output_norm = "post_mlp_layernorm";
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

}  // namespace tandem

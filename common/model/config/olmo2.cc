// OLMo 2 (Ai2, 2025): norms over what attention and feed-forward part add, none in front of them; queries and
// keys are normed over all heads at once.

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadOlmo2(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, {.head_dim_given = false}, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-5, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {}, config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  config.attention_output_bias = config.attention_bias;
  config.qk_norm = true;
  config.block.qk_norm = QkNorm::kAll;
  config.block.names.attention_norm = "";
  config.block.names.attention_output_norm = "post_attention_layernorm";
  config.block.names.mlp_norm = "";
  config.block.names.mlp_output_norm = "post_feedforward_layernorm";
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

}  // namespace tandem

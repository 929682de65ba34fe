// Granite 3 (IBM, 2024): a Llama with scales on embedding, scores, residuals and logits.

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadGranite(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, {.head_dim_given = false}, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-6, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {}, config));
  TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  config.attention_output_bias = config.attention_bias;
  TANDEM_ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
  constexpr double kLeast = 1e-6, kMost = 1e6;
  TANDEM_ASSIGN_OR_RETURN(const double embedding,
                          fields.NumberOr("embedding_multiplier", kLeast, kMost, 1.0));
  TANDEM_ASSIGN_OR_RETURN(const double residual, fields.NumberOr("residual_multiplier", kLeast, kMost, 1.0));
  TANDEM_ASSIGN_OR_RETURN(const double logits, fields.NumberOr("logits_scaling", kLeast, kMost, 1.0));
  TANDEM_ASSIGN_OR_RETURN(config.block.attention_scale,
                          fields.NumberOr("attention_multiplier", kLeast, kMost, 1.0));
  config.block.embedding_scale = static_cast<float>(embedding);
  config.block.residual_scale = static_cast<float>(residual);
  config.block.logit_scale = static_cast<float>(1.0 / logits);
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

}  // namespace tandem

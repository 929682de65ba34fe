// Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024): a Llama whose matrices are stored one on top of the other;
// longrope, and in Phi-4-mini only a part of each head turned.

#include <vector>

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadPhi3(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ExpectSilu(fields));
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, {.default_context = 4096, .head_dim_given = false}, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "rms_norm_eps", 1e-5, config));
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, {.share = "partial_rotary_factor"}, config));
  TANDEM_ASSIGN_OR_RETURN(config.sliding_window, fields.Int("sliding_window", 1, kMostContext));
  config.block.qkv = QkvLayout::kStacked;
  config.block.names.query_key_value = "self_attn.qkv_proj";
  config.block.names.gate_up = "mlp.gate_up_proj";
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

}  // namespace tandem

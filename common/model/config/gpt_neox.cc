// GPT-NeoX (Black et al., 2022), Pythia and Dolly: attention and feed-forward part side by side, a quarter of
// each head turned.

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadGptNeoX(const JsonFields& fields, ModelConfig& config) {
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, {.kv_heads = "", .head_dim_given = false}, config));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "layer_norm_eps", 1e-5, config));
  TANDEM_RETURN_IF_ERROR(
      ReadRope(fields, {.theta = "rotary_emb_base", .share = "rotary_pct", .default_share = 0.25}, config));
  TANDEM_ASSIGN_OR_RETURN(const bool has_bias, fields.BoolOr("attention_bias", true));
  config.attention_bias = config.attention_output_bias = has_bias;
  config.mlp_bias = true;
  BlockDescription& block = config.block;
  block.norm = NormKind::kLayer;
  TANDEM_ASSIGN_OR_RETURN(block.parallel, fields.BoolOr("use_parallel_residual", true));
  block.qkv = QkvLayout::kPerHead;
  TANDEM_ASSIGN_OR_RETURN(block.activation, ReadActivation(fields, "hidden_act", "gelu"));
  block.gated = false;

  block.names = {.roots = {"gpt_neox."},
                 .embedding = "embed_in",
                 .final_norm = "final_layer_norm",
                 .outputs = {"embed_out", "lm_head"},
                 .query_key_value = "attention.query_key_value",
                 .attention_out = "attention.dense",
                 .up = "mlp.dense_h_to_4h",
                 .down = "mlp.dense_4h_to_h",
                 .buffers = {"attention.bias", "attention.masked_bias"}};
  return ReadEnds(fields, /*tied_when_absent=*/false, config);
}

}  // namespace tandem

// GPT-2 (Radford et al., 2019): learned positions, matrices stored as [inputs, outputs].

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadGpt2(const JsonFields& fields, ModelConfig& config) {
  const SizeFields sizes = {.hidden = AnyOf(fields, {"n_embd", "hidden_size"}),
                            .layers = AnyOf(fields, {"n_layer", "num_hidden_layers"}),
                            .heads = AnyOf(fields, {"n_head", "num_attention_heads"}),
                            .kv_heads = "",
                            .intermediate = "",
                            .context = AnyOf(fields, {"n_positions", "max_position_embeddings"}),
                            .default_context = 1024,
                            .head_dim_given = false};
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, sizes, config));
  TANDEM_ASSIGN_OR_RETURN(config.intermediate_size,
                          fields.IntOr("n_inner", 1, kMostIntermediate, 4 * config.hidden_size));
  TANDEM_RETURN_IF_ERROR(ExpectFixed(fields, {{"scale_attn_weights", true},
                                              {"scale_attn_by_inverse_layer_idx", false},
                                              {"add_cross_attention", false}}));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "layer_norm_epsilon", 1e-5, config));
  config.attention_bias = config.attention_output_bias = config.mlp_bias = true;
  BlockDescription& block = config.block;
  block.norm = NormKind::kLayer;
  block.positions = PositionKind::kLearned;
  block.qkv = QkvLayout::kStacked;
  block.matrices_transposed = true;
  TANDEM_ASSIGN_OR_RETURN(block.activation, ReadActivation(fields, "activation_function", "gelu_new"));
  block.gated = false;

  block.names = {.roots = {"transformer.", ""},
                 .embedding = "wte",
                 .positions = "wpe",
                 .final_norm = "ln_f",
                 .layers = "h.",
                 .attention_norm = "ln_1",
                 .query_key_value = "attn.c_attn",
                 .attention_out = "attn.c_proj",
                 .mlp_norm = "ln_2",
                 .up = "mlp.c_fc",
                 .down = "mlp.c_proj",
                 .buffers = {"attn.bias", "attn.masked_bias"}};
  return ReadEnds(fields, /*tied_when_absent=*/true, config);
}

}  // namespace tandem

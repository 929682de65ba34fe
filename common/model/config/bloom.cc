// BLOOM (BigScience, 2022): ALiBi, a norm over the embedding, queries, keys and values of each head side by
// side.

#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadBloom(const JsonFields& fields, ModelConfig& config) {
  // ALiBi bounds no context: seq_length is what the model was trained on.
  const SizeFields sizes = {.hidden = AnyOf(fields, {"hidden_size", "n_embed"}),
                            .layers = AnyOf(fields, {"n_layer", "num_hidden_layers"}),
                            .heads = AnyOf(fields, {"n_head", "num_attention_heads"}),
                            .kv_heads = "",
                            .intermediate = "",
                            .context = "seq_length",
                            .head_dim_given = false};
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, sizes, config));
  TANDEM_RETURN_IF_ERROR(ExpectFixed(fields, {{"apply_residual_connection_post_layernorm", false}}));
  TANDEM_RETURN_IF_ERROR(ReadEpsilon(fields, "layer_norm_epsilon", 1e-5, config));
  config.intermediate_size = 4 * config.hidden_size;
  config.attention_bias = config.attention_output_bias = config.mlp_bias = true;
  BlockDescription& block = config.block;
  block.norm = NormKind::kLayer;
  block.positions = PositionKind::kAlibi;
  block.qkv = QkvLayout::kPerHead;
  block.activation = Activation::kGeluTanh;
  block.gated = false;

  block.names = {.roots = {"transformer.", ""},
                 .embedding = "word_embeddings",
                 .embedding_norm = "word_embeddings_layernorm",
                 .final_norm = "ln_f",
                 .layers = "h.",
                 .query_key_value = "self_attention.query_key_value",
                 .attention_out = "self_attention.dense",
                 .up = "mlp.dense_h_to_4h",
                 .down = "mlp.dense_4h_to_h"};
  return ReadEnds(fields, /*tied_when_absent=*/true, config);
}

}  // namespace tandem

// OPT (Zhang et al., 2022), Galactica included: LayerNorm, learned positions, no gate. The 350m model norms
// behind its sums and has a narrower embedding.

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"

namespace tandem {

absl::Status ReadOpt(const JsonFields& fields, ModelConfig& config) {
  const SizeFields sizes = {.kv_heads = "", .intermediate = "ffn_dim", .head_dim_given = false};
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, sizes, config));
  TANDEM_RETURN_IF_ERROR(ExpectFixed(fields, {{"layer_norm_elementwise_affine", true}}));
  TANDEM_ASSIGN_OR_RETURN(const bool has_bias, fields.BoolOr("enable_bias", true));
  config.attention_bias = config.attention_output_bias = config.mlp_bias = has_bias;
  BlockDescription& block = config.block;
  block.norm = NormKind::kLayer;
  TANDEM_ASSIGN_OR_RETURN(const bool norms_first, fields.BoolOr("do_layer_norm_before", true));
  block.norms_follow_sums = !norms_first;
  TANDEM_ASSIGN_OR_RETURN(const bool no_final_norm, fields.BoolOr("_remove_final_layer_norm", false));
  block.positions = PositionKind::kLearned;
  block.position_offset = 2;
  TANDEM_ASSIGN_OR_RETURN(block.activation, ReadActivation(fields, "activation_function", "relu"));
  block.gated = false;
  TANDEM_ASSIGN_OR_RETURN(const int32_t embedding,
                          fields.IntOr("word_embed_proj_dim", 1, kMostHidden, config.hidden_size));
  block.embedding_size = embedding == config.hidden_size ? 0 : embedding;

  block.names = {.roots = {"model.decoder.", "decoder."},
                 .positions = "embed_positions",
                 .project_in = "project_in",
                 .project_out = "project_out",
                 .final_norm = norms_first && !no_final_norm ? "final_layer_norm" : "",
                 .attention_norm = "self_attn_layer_norm",
                 .attention_out = "self_attn.out_proj",
                 .mlp_norm = "final_layer_norm",
                 .up = "fc1",
                 .down = "fc2"};
  return ReadEnds(fields, /*tied_when_absent=*/true, config);
}

}  // namespace tandem

#include "common/model/config/architecture.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tandem {

// With a power of two of heads, 2^(-8/n), 2^(-16/n), ...; heads beyond the last power of two take every
// other slope of twice as many.
std::vector<float> AlibiSlopes(int32_t num_heads) {
  int32_t power = 1;
  while (2 * power <= num_heads) power *= 2;
  std::vector<float> slopes;
  for (int32_t i = 1; i <= power; ++i) {
    slopes.push_back(static_cast<float>(std::exp2(-8.0 * i / power)));
  }
  for (int32_t i = 1; static_cast<int32_t>(slopes.size()) < num_heads; i += 2) {
    slopes.push_back(static_cast<float>(std::exp2(-4.0 * i / power)));
  }
  return slopes;
}

std::string OnlyOnProcessors(const BlockDescription& block) {
  if (block.latent.exists()) {
    return absl::StrCat("latent attention (kv_lora_rank ", block.latent.kv_rank, ")");
  }
  const ExpertsDescription& experts = block.experts;
  if (experts.exist() && (experts.score != ExpertScore::kSoftmax || experts.selection_bias ||
                          experts.num_groups > 1 || experts.scale != 1.0f || !experts.shared_gate)) {
    return "experts chosen or weighed as DeepSeek's";
  }
  if (block.norms_follow_sums) return "norms behind the sums (do_layer_norm_before false)";
  if (block.embedding_size > 0) return "an embedding of another width (word_embed_proj_dim)";
  if (block.experts.exist() && block.parallel) return "experts beside attention";
  return "";
}

std::string BeyondLlama(const BlockDescription& block) {
  if (std::string found = OnlyOnProcessors(block); !found.empty()) return found;
  if (block.sinks) return "attention sinks";
  if (!block.gate.is_plain()) return "limited gates (swiglu_limit)";
  if (block.experts.biases || block.experts.router_bias) return "experts with biases";
  if (block.norm == NormKind::kLayer) return "LayerNorm";
  if (block.norm_weight_offset != 0) return "norms with weights around 0";
  if (!block.names.attention_output_norm.empty() || !block.names.mlp_output_norm.empty()) {
    return "norms over what a layer adds";
  }
  if (block.parallel) return "a parallel residual";
  if (block.positions == PositionKind::kLearned) return "learned positions";
  if (block.positions == PositionKind::kAlibi) return "ALiBi";
  if (block.rotary_dim != 0) return "rotary positions in a part of each head (partial_rotary_factor)";
  if (block.rotary_pairs_adjacent) return "rotary positions in adjacent pairs";
  for (const LayerVariant& layer : block.layers) {
    if (!layer.has_window || !layer.rotates || layer.is_local) {
      return "layers that differ in window or positions (layer_types)";
    }
  }
  if (block.qk_norm == QkNorm::kAll) return "norms over all queries or keys at once";
  if (block.attention_scale.has_value()) return "a scale of scores of its own";
  if (block.score_cap != 0) return "capped scores (attn_logit_softcapping)";
  if (block.activation != Activation::kSilu) return "activations other than silu";
  if (!block.gated) return "a feed-forward part without a gate";
  if (!block.names.embedding_norm.empty()) return "a norm over the embedding";
  if (block.embedding_scale != 1 || block.residual_scale != 1 || block.logit_scale != 1) {
    return "scales of embedding, residuals or logits";
  }
  if (block.logit_cap != 0) return "capped logits (final_logit_softcapping)";
  return "";
}

}  // namespace tandem

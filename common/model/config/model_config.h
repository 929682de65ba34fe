#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"
#include "common/model/config/architecture.h"
#include "common/model/config/head_config.h"
#include "common/model/config/quantization.h"

namespace tandem {

// The decoder-only transformer that a Hugging Face config.json describes: its sizes and settings here, and
// its structure in `block`. family.h lists the supported ones.
struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", ...
  int32_t hidden_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // Of queries and keys, and without block.latent of values.
  int32_t intermediate_size = 0;
  int32_t vocab_size = 0;          // The logits width: rows of the embedding and of the output projection.
  int32_t max_context = 0;         // Tokens, prompt and output together.
  float rms_norm_epsilon = 1e-5f;  // Of norms of whichever kind.
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tied_embeddings = false;
  bool attention_bias = false;         // Biases on the query, key and value projections.
  bool attention_output_bias = false;  // Bias on the attention's output projection.
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over queries and keys (Qwen3).
  // A row sees its last `sliding_window` positions, itself included, in layers that have a window (all, where
  // block.layers says nothing).
  std::optional<int32_t> sliding_window;
  BlockDescription block;
  // `num_nextn_predict_layers`: modules in the model's files that guess one token further (MTP). The model
  // itself does not use them: Model::LoadHead does.
  int32_t num_next_token_modules = 0;
  std::optional<Quantization> quantization;  // Of its files; engines do not need it.
  TokenIds eos_tokens;  // `eos_token_id`; counts where generation_config.json names none.
  // Of a draft head, which has one layer, or of Medusa heads none, and computes nothing without the states of
  // its target.
  std::optional<HeadConfig> head;

  int32_t query_size() const { return num_heads * head_dim; }
  int32_t kv_size() const { return num_kv_heads * head_dim; }
  // Of a head's values as they are kept.
  int32_t value_dim() const { return block.latent.exists() ? block.latent.kv_rank : head_dim; }
  // What a layer's first product gives: queries, keys and values, or what latent attention makes them of.
  int32_t projected_size() const {
    const LatentDescription& latent = block.latent;
    if (!latent.exists()) return query_size() + 2 * kv_size();
    return (latent.query_rank > 0 ? latent.query_rank : num_heads * latent.query_dim()) + kv_size();
  }
  // What attention gives: inputs of its output matrix.
  int32_t attended_size() const {
    return block.latent.exists() ? num_heads * block.latent.value_dim : query_size();
  }
  int32_t embedding_size() const { return block.embedding_size > 0 ? block.embedding_size : hidden_size; }
  // Numbers of a head that rotary positions turn.
  int32_t rotary_dim() const { return block.rotary_dim > 0 ? block.rotary_dim : head_dim; }
  // The window of a layer; 0: it sees everything.
  int32_t window(size_t layer) const {
    return block.layer(layer).has_window ? sliding_window.value_or(0) : 0;
  }
  // Logits of a row: [vocab_size], or of Medusa heads [num_positions, vocab_size].
  size_t logits_size() const {
    const auto positions = static_cast<size_t>(head.has_value() ? head->num_positions : 1);
    return positions * static_cast<size_t>(vocab_size);
  }
};

// Reads and checks the text of a config.json, also of a draft head (head_format.h). Every size is bounded:
// InvalidArgument names the field, its value and what was expected. Unimplemented for an architecture or
// feature that would change the result and is not supported. `path` is only used in messages.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view path);

// generation_config.json: what the model's authors recommend. Absent fields are absent.
struct GenerationDefaults {
  TokenIds eos_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int32_t> top_k;
  std::optional<double> repetition_penalty;
};

// Errors as in ParseModelConfig; ids are not yet compared with a vocabulary.
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view json, absl::string_view path);

}  // namespace tandem

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/token.h"
#include "common/model/head_config.h"

namespace tandem {

// How rotary frequencies are stretched for long contexts (config.json `rope_scaling`).
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  // Llama 3 only: wavelengths between original_context / high and original_context / low are blended.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int32_t original_context = 8192;
};

// The decoder-only transformer that a Hugging Face config.json describes: RMSNorm, rotary positions,
// grouped-query attention and SwiGLU, in the variants Llama 2/3.x, Mistral, Qwen2/2.5 (query/key/value
// biases), MiMo (a Qwen2 with a next-token module) and Qwen3 (RMSNorm over each query and key head).
struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", ...
  int32_t hidden_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t intermediate_size = 0;
  int32_t vocab_size = 0;   // The logits width: rows of the embedding and of the output projection.
  int32_t max_context = 0;  // Tokens, prompt and output together.
  float rms_norm_epsilon = 1e-5f;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tied_embeddings = false;
  bool attention_bias = false;         // Biases on the query, key and value projections.
  bool attention_output_bias = false;  // Bias on the attention's output projection.
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3.
  // A row sees its last `sliding_window` positions, itself included (Mistral 7B v0.1, or Qwen with
  // `use_sliding_window` in every layer).
  std::optional<int32_t> sliding_window;
  // `num_nextn_predict_layers`: modules in the model's files that guess one token further (MTP). The model
  // itself does not use them: Model::LoadHead does.
  int32_t num_next_token_modules = 0;
  TokenIds eos_tokens;  // `eos_token_id`; counts where generation_config.json names none.
  // Of a draft head, which has one layer, or of Medusa heads none, and computes nothing without the states of
  // its target.
  std::optional<HeadConfig> head;

  int32_t query_size() const { return num_heads * head_dim; }
  int32_t kv_size() const { return num_kv_heads * head_dim; }
  // Logits of a row: [vocab_size], or of Medusa heads [num_positions, vocab_size].
  size_t logits_size() const {
    const auto positions = static_cast<size_t>(head.has_value() ? head->num_positions : 1);
    return positions * static_cast<size_t>(vocab_size);
  }
};

// Reads and checks the text of a config.json, a draft head's included (head_format.h). Every size is bounded
// (InvalidArgument names the field, its value and what was expected); an architecture or feature that would
// change the result and is not implemented is Unimplemented. `path` is used in messages only.
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

// Errors as ParseModelConfig's; ids are not yet compared with a vocabulary.
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view json, absl::string_view path);

}  // namespace tandem

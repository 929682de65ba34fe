#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

// How rotary frequencies are stretched for long contexts (config.json `rope_scaling`). With d numbers of a
// head turned, frequency i of d / 2 is theta^(-2 i / d) where nothing is stretched.
//
// All of this is fixed when a model is loaded, so that stored keys stay valid (law 1): kDynamic and
// kLongRope, which other engines choose for each length of text, are those of the longest context.
struct RopeScaling {
  enum class Kind {
    kNone,
    kLinear,    // Each divided by `factor`.
    kLlama3,    // Long wavelengths divided by `factor`, short ones kept, those between blended.
    kDynamic,   // theta * (factor * length / original_context - factor + 1)^(d / (d - 2)), of the longest.
    kYarn,      // Peng et al., YaRN, 2023, section 3.2: a ramp over i in place of llama3's over wavelengths.
    kLongRope,  // Ding et al., LongRoPE, 2024: frequency i divided by divisors[i].
  };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  // kLlama3: wavelengths between original_context / high and original_context / low are blended.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int32_t original_context = 8192;
  // kYarn: frequencies that turn more than `beta_fast` times in the original context are kept, those that
  // turn less than `beta_slow` times divided; the ends of the ramp between are whole numbers if `truncate`.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  std::vector<double> divisors;  // kLongRope, [d / 2].
  // Cosines and sines are multiplied by this (kYarn, kLongRope).
  double attention_factor = 1.0;
  // kYarn: 0.1 * mscale_all_dim * ln(factor) + 1. Who has such a field says what to do with it (DeepSeek).
  double all_dim_magnitude = 1.0;
};

enum class NormKind {
  kRms,    // weight * x / sqrt(mean of squares + epsilon)
  kLayer,  // weight * (x - mean) / sqrt(variance + epsilon) + bias; Ba et al., 2016
};

enum class Activation {
  kSilu,      // x / (1 + exp(-x))
  kGelu,      // x * Phi(x); Hendrycks and Gimpel, 2016
  kGeluTanh,  // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
  kRelu,      // max(x, 0)
};
inline constexpr int kNumActivations = 4;

// How a token's position enters the computation.
enum class PositionKind {
  kRotary,   // Queries and keys are turned.
  kLearned,  // A row of a matrix is added to the embedding.
  kAlibi,    // Scores fall with the distance; Press et al., 2021.
};

// How the weights of queries, keys and values lie in a layer's tensors.
enum class QkvLayout {
  kSeparate,  // A tensor each.
  kStacked,   // One: all queries, all keys, all values.
  kPerHead,   // One: of each head its query, key and value (BLOOM, GPT-NeoX).
};

// The extent of query and key norms.
enum class QkNorm {
  kHead,  // Each head (Qwen3, Gemma 3).
  kAll,   // All heads at once (OLMo 2).
};

// Where one layer differs from the others.
struct LayerVariant {
  bool has_window = true;  // It sees ModelConfig::sliding_window positions, where there is one.
  bool rotates = true;     // Rotary positions; without, it knows none (NoPE).
  bool is_local = false;   // It turns by BlockDescription::local_rope_theta, not stretched.
  bool is_sparse = true;   // Its feed-forward part is experts, where BlockDescription::experts has any.
};

// Attention over one short vector of each token, its latent, from which the keys and values of all heads are
// computed (multi-head latent attention; DeepSeek-AI, DeepSeek-V2, 2024, section 2.1). With [c, p] = kv_down
// * x, where c has kv_rank numbers and is normed, and p is turned, and [n, t] the query of head h, where t is
// turned,
//
//   key_h = [key_up_h * c, p]        value_h = value_up_h * c
//
// So a score is (transposed(key_up_h) * n) c + t p, and the output of attention is value_up_h * (the weighted
// sum of c). Engines store only the latent of each token: one KV head for all, with the key [c, p] and the
// value c. ModelConfig's num_kv_heads and head_dim describe that one; the sizes of the model's heads are
// here.
struct LatentDescription {
  int32_t kv_rank = 0;       // 0: attention has no latent, and is what ModelConfig says.
  int32_t query_rank = 0;    // Queries are query_up * norm(query_down * x); 0: query * x.
  int32_t unturned_dim = 0;  // Of a query: numbers of n,
  int32_t turned_dim = 0;    // and of t.
  int32_t value_dim = 0;
  float norm_epsilon = 1e-6f;  // Of the norms over latents.

  bool exists() const { return kv_rank > 0; }
  int32_t query_dim() const { return unturned_dim + turned_dim; }
};

// The score of an expert for a row, from the router's number r.
enum class ExpertScore {
  kSoftmax,  // exp(r) / the sum of exp(r) of all experts
  kSigmoid,  // 1 / (1 + exp(-r))
};

// A feed-forward part with experts (Shazeer et al., Outrageously large neural networks, 2017; Jiang et al.,
// Mixtral of experts, 2024). With r = router * x, a number for each expert, a row takes the `num_chosen`
// experts with the greatest scores (the lower number among equals), and adds up, in the order of their
// numbers,
//
//   sum over those chosen of scale * score[expert] * f_expert(x)  +  sigmoid(shared_gate * x) * f_shared(x)
//
// The second part exists if shared_size is not 0; without shared_gate its factor is 1. Each f is a gated
// feed-forward part like a dense layer's.
//
// If experts are in groups of neighbours, a row uses only experts of num_chosen_groups groups. These are the
// groups with the greatest sums of their group_places greatest scores (kSoftmax: one), and among equals those
// of lower numbers.
struct ExpertsDescription {
  int32_t num_experts = 0;  // 0: all layers are dense.
  int32_t num_chosen = 0;
  int32_t intermediate_size = 0;  // Of each.
  ExpertScore score = ExpertScore::kSoftmax;
  bool scores_add_up_to_one = true;  // Scores of those chosen are divided by their sum.
  // Each expert has a number that is added to its score where experts and groups are chosen, and only there
  // (kSigmoid; DeepSeek-AI, DeepSeek-V3, 2024, section 2.1.2).
  bool selection_bias = false;
  int32_t num_groups = 1;
  int32_t num_chosen_groups = 1;
  int32_t group_places = 1;
  float scale = 1.0f;
  int32_t shared_size = 0;  // The intermediate size of an expert that every row takes.
  bool shared_gate = true;
  bool router_bias = false;  // Biases on the router, and on every expert's matrices.
  bool biases = false;

  bool exist() const { return num_experts > 0; }
};

// The formula of gates in a gated feed-forward part with kSilu. With g = min(gate, limit),
//
//   g / (1 + exp(-alpha * g)) * (min(max(up, -limit), limit) + up_offset)
//
// This is gpt-oss; a Llama has no limit, and alpha is 1.
struct GateDescription {
  float limit = 0.0f;  // 0: none.
  float alpha = 1.0f;
  float up_offset = 0.0f;

  bool is_plain() const { return limit == 0 && alpha == 1 && up_offset == 0; }
};

// The names of a model's tensors. Those of a layer follow `layers`, its number and a dot; all except
// `outputs` follow one of `roots`. Names of matrices, biases and norms omit ".weight" and ".bias". An empty
// name: the family has no such tensor.
struct TensorNames {
  // Files have one of these before all names; the first is the default.
  std::vector<std::string> roots = {"model."};
  std::string embedding = "embed_tokens";
  std::string positions;       // kLearned
  std::string embedding_norm;  // Over the embedding (BLOOM).
  std::string project_in;      // From and to an embedding that is not as wide as the model (OPT-350m).
  std::string project_out;
  std::string final_norm = "norm";
  std::vector<std::string> outputs = {"lm_head"};  // One of these, behind no root.
  std::string layers = "layers.";
  std::string attention_norm = "input_layernorm";
  std::string query = "self_attn.q_proj";
  std::string key = "self_attn.k_proj";
  std::string value = "self_attn.v_proj";
  std::string query_key_value;  // In place of the three, as QkvLayout says.
  std::string query_norm = "self_attn.q_norm";
  std::string key_norm = "self_attn.k_norm";
  // Latent attention, beside `query` where queries have no latent. key_up_h and value_up_h of a head lie on
  // top of one another, and those of heads likewise.
  std::string query_down = "self_attn.q_a_proj";
  std::string query_latent_norm = "self_attn.q_a_layernorm";
  std::string query_up = "self_attn.q_b_proj";
  std::string kv_down = "self_attn.kv_a_proj_with_mqa";
  std::string kv_latent_norm = "self_attn.kv_a_layernorm";
  std::string kv_up = "self_attn.kv_b_proj";
  std::string attention_out = "self_attn.o_proj";
  std::string attention_output_norm;  // Over what attention adds to the stream (Gemma 2, OLMo 2).
  std::string mlp_norm = "post_attention_layernorm";
  std::string gate = "mlp.gate_proj";
  std::string up = "mlp.up_proj";
  std::string gate_up;  // In place of both: all gates, then all of `up`.
  std::string down = "mlp.down_proj";
  std::string mlp_output_norm;
  std::string router = "mlp.gate";
  std::string selection_bias = "mlp.gate.e_score_correction_bias";  // No ".weight".
  // Of an expert, behind `experts`, its number and a dot.
  std::string experts = "mlp.experts.";
  std::string expert_gate = "gate_proj";
  std::string expert_up = "up_proj";
  std::string expert_down = "down_proj";
  // In place of these, those of all experts in one tensor, which have no ".weight" behind them: [experts,
  // inputs, outputs], of which gates and ups alternate; biases in names with "_bias" behind them.
  std::string experts_gate_up;
  std::string experts_down;
  // Of the shared expert.
  std::string shared_expert = "mlp.shared_expert.";
  std::string shared_gate = "mlp.shared_expert_gate";
  std::string sinks = "self_attn.sinks";  // No ".weight".
  // Next-token modules have the names of layers behind the last one, not their own (MiMo).
  bool next_token_modules_are_layers = false;
  // In a layer: tensors of older files that follow from the configuration, such as masks.
  std::vector<std::string> buffers;
};

// The structure of a family's transformer, as data: engines execute it and know no families. Defaults are
// those of Llama. With x the stream, and f attention or the feed-forward part:
//
//   x = x + residual_scale * output_norm(f(norm(x)))      output_norm only if there are such norms
//   x = norm(x + f(x))                                    norms_follow_sums
//   x = x + attention(norm(x)) + mlp(norm'(x))            parallel
//
// Sizes, biases, window and rotary settings are in ModelConfig.
struct BlockDescription {
  NormKind norm = NormKind::kRms;
  // Added to every norm's weight (Gemma's are kept around 0).
  float norm_weight_offset = 0.0f;
  bool norms_follow_sums = false;  // OPT-350m.
  bool parallel = false;           // GPT-NeoX.

  PositionKind positions = PositionKind::kRotary;
  int32_t position_offset = 0;         // kLearned: position p has row p + offset (OPT).
  int32_t rotary_dim = 0;              // Of a head, the first so many numbers turn; 0: all.
  bool rotary_pairs_adjacent = false;  // Number 2i turns with 2i + 1, not i with i + rotary_dim / 2.
  std::optional<double> local_rope_theta;
  std::vector<LayerVariant> layers;  // One for each, or empty: all as by default.

  QkvLayout qkv = QkvLayout::kSeparate;
  bool matrices_transposed = false;  // In layers: [inputs, outputs] (GPT-2's Conv1D).
  QkNorm qk_norm = QkNorm::kHead;
  std::optional<double> attention_scale;  // Of scores; 1 / sqrt(head_dim) else.
  float score_cap = 0.0f;                 // score = cap * tanh(score / cap); 0: none (Gemma 2).
  // Each head has a score of its own beside those of positions, which takes its part of the softmax and adds
  // nothing (gpt-oss; Xiao et al., Efficient streaming language models with attention sinks, 2024).
  bool sinks = false;
  LatentDescription latent;

  Activation activation = Activation::kSilu;
  bool gated = true;  // down(activation(gate(x)) * up(x)), else down(activation(up(x))).
  GateDescription gate;
  ExpertsDescription experts;

  int32_t embedding_size = 0;  // Of a token, where not hidden_size.
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;
  float logit_scale = 1.0f;
  float logit_cap = 0.0f;  // As score_cap.

  TensorNames names;

  LayerVariant layer(size_t index) const { return layers.empty() ? LayerVariant() : layers[index]; }
  bool has_experts(size_t index) const { return experts.exist() && layer(index).is_sparse; }
};

// How much a score falls with each position between query and key, for every head.
std::vector<float> AlibiSlopes(int32_t num_heads);

// The first feature of a description that only CPUs support, in words, with its field in config.json; empty
// if there is none.
std::string OnlyOnProcessors(const BlockDescription& block);

// The first feature of a description that a Llama block, with a dense feed-forward part or experts, does not
// have, in words, with its field in config.json; empty if there is none. For engines that run only such
// blocks.
std::string BeyondLlama(const BlockDescription& block);

}  // namespace tandem

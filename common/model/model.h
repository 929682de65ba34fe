#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/config/model_config.h"
#include "common/model/tensor_source.h"
#include "common/model/tensor_view.h"

namespace tandem {

// The feed-forward part of one expert; `data == nullptr` where the configuration has none.
struct ExpertWeights {
  TensorView gate;       // [intermediate, hidden], of the expert, as the next one
  TensorView up;         // [intermediate, hidden]
  TensorView down;       // [hidden, intermediate]
  TensorView gate_bias;  // [intermediate]
  TensorView up_bias;    // [intermediate]
  TensorView down_bias;  // [hidden]
};

// Weights of one transformer layer; `data == nullptr` where the configuration has none. Norms of kind kLayer
// have biases.
struct LayerWeights {
  TensorView input_norm;             // [hidden], before attention; or, norms_follow_sums, behind its sum
  TensorView input_norm_bias;        // [hidden]
  TensorView query;                  // [query_size, hidden]; of latent attention [num_heads * query_dim, ..]
  TensorView key;                    // [kv_size, hidden]
  TensorView value;                  // [kv_size, hidden]
  TensorView query_bias;             // [query_size]
  TensorView key_bias;               // [kv_size]
  TensorView value_bias;             // [kv_size]
  TensorView query_norm;             // [head_dim], or of all heads [query_size]
  TensorView key_norm;               // [head_dim], or [kv_size]
  TensorView query_down;             // [query_rank, hidden], of latent attention, as these six
  TensorView query_latent_norm;      // [query_rank]
  TensorView query_up;               // [num_heads * query_dim, query_rank]
  TensorView kv_down;                // [kv_rank + turned_dim, hidden]
  TensorView kv_latent_norm;         // [kv_rank]
  TensorView kv_up;                  // [num_heads * (unturned_dim + value_dim), kv_rank]
  TensorView attention_out;          // [hidden, attended_size]
  TensorView attention_out_bias;     // [hidden]
  TensorView attention_output_norm;  // [hidden], over what attention adds
  TensorView attention_output_norm_bias;  // [hidden]
  TensorView post_attention_norm;         // [hidden], before the feed-forward part; or behind its sum
  TensorView post_attention_norm_bias;    // [hidden]
  TensorView sinks;                       // [num_heads]
  TensorView gate;                        // [intermediate, hidden]; with experts: the shared one's, as are
  TensorView up;                          // [intermediate, hidden]  these three
  TensorView down;                        // [hidden, intermediate]
  TensorView gate_bias;                   // [intermediate]
  TensorView up_bias;                     // [intermediate]
  TensorView down_bias;                   // [hidden]
  TensorView mlp_output_norm;             // [hidden], over what the feed-forward part adds
  TensorView mlp_output_norm_bias;        // [hidden]
  TensorView router;                      // [num_experts, hidden]
  TensorView router_bias;                 // [num_experts]
  TensorView selection_bias;              // [num_experts]
  TensorView shared_gate;                 // [1, hidden]
  std::vector<ExpertWeights> experts;     // [num_experts], or none in a dense layer
};

// The matrices of a layer that every row uses, except routers and gates of shared experts. Some may not
// exist.
std::vector<TensorView> DenseMatrices(const LayerWeights& layer);

// The weights before the first layer and after the last one, except embedding, final norm and output matrix;
// `data == nullptr` where the configuration has none.
struct OuterWeights {
  TensorView positions;            // [max_context + position_offset, hidden]
  TensorView embedding_norm;       // [hidden]
  TensorView embedding_norm_bias;  // [hidden]
  TensorView project_in;           // [hidden, embedding_size]
  TensorView project_out;          // [embedding_size, hidden]
  TensorView final_norm_bias;      // [hidden]
};

// The weights of a draft head outside of its layers; empty for other models. The first layer has `input_norm`
// only if it norms its own input. If its attention reads embedding and state side by side, query, key and
// value have [2 * hidden] inputs.
struct HeadWeights {
  // fc: EAGLE and MTP [hidden, 2 * hidden], EAGLE-3 and DFlash [hidden, state_size], or none
  TensorView projection;
  TensorView projection_bias;  // [hidden], where the file has one
  // EAGLE-3, of what the projection reads (HeadConfig::StateNorms): none, [state_size], or for each state
  // [target_hidden_size]
  std::vector<TensorView> input_norms;
  TensorView embedding_norm;  // EAGLE-3, MTP: [hidden], of the token's embedding
  TensorView state_norm;  // [hidden], EAGLE-3 and DFlash: of what the projection gave; MTP: of the state read
  // The token of each of draft_vocab_size outputs; empty if they are all tokens in order.
  TokenIds draft_tokens;
  // DSpark: W1 and W2 of the token before a guessed one.
  TensorView tokens_before;          // [vocab, markov_rank]
  TensorView tokens_before_outputs;  // [draft_vocab_size, markov_rank]
  // Medusa: one for each of num_positions, in order.
  struct Position {
    std::vector<TensorView> blocks;        // num_blocks, [hidden, hidden]
    std::vector<TensorView> block_biases;  // Likewise, [hidden]; one that is not there adds nothing.
    TensorView output;                     // [vocab, hidden]; of those that share one, the same
  };
  std::vector<Position> positions;
};

// What an operator knows of a draft head and its files do not say.
struct HeadOptions {
  // The head is plain EAGLE-3 although its config.json says `norm_output: true`. SpecForge from May to
  // September 2026 (sgl-project/SpecForge#568 to #879) wrote that and meant that logits are made from the
  // normed state, which they always are; the next level read the state before the norm.
  bool plain_eagle3 = false;
};

// A Hugging Face model folder, opened and checked: config.json, generation_config.json (optional) and the
// weights in model.safetensors or in the shards that model.safetensors.index.json names. Every tensor the
// configuration asks for is present with the right shape and a supported type; tensors it does not know are
// an error, except the ones known to be redundant (rotary inv_freq buffers, a tied lm_head).
//
// Owns the file mappings: views into it are valid as long as the Model lives. Immutable once made.
class Model {
 public:
  // Maps and checks the folder, or the GGUF file (gguf_model.h) if the name ends in .gguf. Does not read the
  // weights, except a GGUF file's quantised ones. Errors name the file, the tensor or field, and what was
  // expected: NotFound for a missing file, InvalidArgument for content that is wrong or does not fit the
  // configuration, Unimplemented for what is valid and not supported.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& folder);
  // Loads a draft head and connects it to its target. If the head's file has no embedding or output matrix,
  // those of the target are used. The target's own folder means the next-token module in its files.
  // InvalidArgument if the two do not fit, the folder has no head, or the options do not fit the head. With a
  // null target, as Load, which also reads heads whose files are complete.
  static absl::StatusOr<std::shared_ptr<const Model>> LoadHead(const std::string& folder,
                                                               std::shared_ptr<const Model> target,
                                                               const HeadOptions& options = {});

  // The settings of a model in a folder or GGUF file. The weights need not exist. Errors as in Load.
  struct Settings {
    ModelConfig config;
    GenerationDefaults generation_defaults;
  };
  static absl::StatusOr<Settings> ReadSettings(const std::string& folder);

  // Whether the folder holds a draft head, or is the target's folder and so means its next-token module.
  // Errors as in Load, as far as it reads.
  static absl::StatusOr<bool> IsHead(const std::string& folder, const std::string& target_folder = "");

  // A model of that shape in memory, without files: every weight is bfloat16 and follows from the seed and
  // the tensor's name. Matrices are uniform with variance 1 / inputs, embeddings in +-1, norms in 1 +- 0.5,
  // biases in +-0.5, so that activations stay near 1 in any depth: for measurements, where the values do not
  // matter but must be neither infinite nor denormal. ResourceExhausted without memory, InvalidArgument for
  // sizes that make no tensor.
  static absl::StatusOr<std::shared_ptr<const Model>> Random(const ModelConfig& config, uint64_t seed);

  // Empty for a model that has none.
  const std::string& folder() const { return folder_; }
  // As read, except that `tied_embeddings` is false where the file says tied but holds an lm_head.weight that
  // differs from the embedding.
  const ModelConfig& config() const { return config_; }
  // `eos_tokens` come from config.json if generation_config.json has none; all are below vocab_size.
  const GenerationDefaults& generation_defaults() const { return generation_defaults_; }
  // [vocab, embedding_size]; Medusa heads have none
  const TensorView& embedding() const { return embedding_; }
  // [vocab, embedding_size]; the embedding when tied. Of a draft head: [draft_vocab_size, hidden]. Of Medusa
  // heads the first one's.
  const TensorView& output() const { return output_; }
  // [hidden]; EAGLE and Medusa heads have none
  const TensorView& final_norm() const { return final_norm_; }
  absl::Span<const LayerWeights> layers() const { return layers_; }
  const OuterWeights& outer() const { return outer_; }
  const HeadWeights& head() const { return head_; }
  // Bytes of all tensors above in their files' types, with a tied embedding counted once; and their number of
  // elements.
  uint64_t weight_bytes() const { return weight_bytes_; }
  uint64_t num_parameters() const { return num_parameters_; }
  // Releases the memory of a tensor that has been copied, so that a model and its copy need not fit into
  // memory together. The view stays valid: later reads come from the file again.
  void Release(const TensorView& tensor) const { weights_->Release(tensor); }

 private:
  class Reader;

  static absl::StatusOr<std::shared_ptr<const Model>> LoadGguf(const std::string& path,
                                                               const std::shared_ptr<const Model>& target);

  Model(std::string folder, ModelConfig config, GenerationDefaults defaults,
        std::unique_ptr<TensorSource> weights)
      : folder_(std::move(folder)),
        config_(std::move(config)),
        generation_defaults_(std::move(defaults)),
        weights_(std::move(weights)) {}

  std::string folder_;
  ModelConfig config_;
  GenerationDefaults generation_defaults_;
  std::unique_ptr<TensorSource> weights_;
  std::shared_ptr<const Model> target_;  // Of a head that shares its tensors.
  TensorView embedding_;
  TensorView output_;
  TensorView final_norm_;
  std::vector<LayerWeights> layers_;
  OuterWeights outer_;
  HeadWeights head_;
  uint64_t weight_bytes_ = 0;
  uint64_t num_parameters_ = 0;
};

}  // namespace tandem

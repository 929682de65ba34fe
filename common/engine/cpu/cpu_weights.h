#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/packed_matrix.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/weight_type.h"
#include "common/model/load_progress.h"
#include "common/model/model.h"

namespace tandem {

// A norm's weight, [hidden], and its bias if it has one. Both are empty if there is no norm.
struct NormWeights {
  std::vector<float> weight;
  std::vector<float> bias;
  bool exists() const { return !weight.empty(); }
};

// A model's weights in the CPU engine's form. Independent of the files.
struct CpuWeights {
  // A feed-forward part: a dense layer's, or one expert's.
  struct Mlp {
    PackedMatrix gate;             // [intermediate, hidden]; empty without gates
    PackedMatrix up;               // [intermediate, hidden]
    PackedMatrix down;             // [hidden, intermediate]
    std::vector<float> gate_bias;  // Empty if there is none, as are all biases.
    std::vector<float> up_bias;
    std::vector<float> down_bias;
  };

  // The weights of a layer with experts.
  struct Experts {
    // [num_experts, hidden] in float32. If a shared expert has a gate, it is one more output.
    PackedMatrix router;
    std::vector<float> router_bias;     // [num_experts]
    std::vector<float> selection_bias;  // [num_experts]
    // [num_experts]. All gates and ups have one format, and so have all downs, because inputs are prepared
    // once for all.
    std::vector<Mlp> each;

    bool exist() const { return !each.empty(); }
  };

  // The weights of latent attention in addition to query_key_value, which then is query or query_down stacked
  // on kv_down.
  struct Latent {
    std::vector<float> query_norm;       // [query_rank]; empty if queries have no latent
    PackedMatrix query_up;               // [num_heads * query_dim, query_rank], the same
    std::vector<float> kv_norm;          // [kv_rank]
    std::vector<PackedMatrix> key_up;    // Of each head, transposed: [kv_rank, unturned_dim]
    std::vector<PackedMatrix> value_up;  // Of each head: [value_dim, kv_rank]
  };

  struct Layer {
    // Norms before attention and before the feed-forward part, over the output of each, and over the stream
    // after each sum. The first layer of a draft head has no input norm, except MTP's.
    NormWeights input_norm;
    NormWeights mlp_norm;
    NormWeights attention_output_norm;
    NormWeights mlp_output_norm;
    NormWeights attention_sum_norm;
    NormWeights mlp_sum_norm;
    PackedMatrix query_key_value;             // [projected_size, hidden]; EAGLE-3: [.., 2 * hidden]
    std::vector<float> query_key_value_bias;  // Likewise.
    // [head_dim], or [query_size] over all heads; empty without norms
    std::vector<float> query_norm;
    std::vector<float> key_norm;
    Latent latent;
    PackedMatrix attention_out;  // [hidden, attended_size]
    std::vector<float> attention_out_bias;
    std::vector<float> sinks;  // [num_heads]; empty without sinks
    Mlp mlp;                   // With experts: the shared expert, or empty.
    Experts experts;
  };

  // The weights of a draft head outside of its layers.
  struct Head {
    PackedMatrix projection;  // [hidden, inputs]; empty where a head reads its one state as it is.
    std::vector<std::vector<float>> input_norms;  // As in HeadWeights.
    std::vector<float> projection_bias;
    std::vector<float> embedding_norm;  // EAGLE-3, MTP: [hidden], as is the next one
    std::vector<float> state_norm;
    TokenIds draft_tokens;  // As in HeadWeights.
    // Rows are read from the mapped file, whose memory processes share.
    TensorView embedding;                // [vocab, hidden]
    TensorView tokens_before;            // DSpark: [vocab, markov_rank]
    PackedMatrix tokens_before_outputs;  // DSpark: [draft_vocab_size, markov_rank]
    // For Medusa heads, as in HeadWeights. If all share one output matrix, it is CpuWeights::output.
    struct Position {
      std::vector<PackedMatrix> blocks;
      std::vector<std::vector<float>> block_biases;
      PackedMatrix output;
    };
    std::vector<Position> positions;
  };

  std::vector<Layer> layers;
  std::vector<float> positions;  // [max_context + offset, hidden], if positions are learned
  NormWeights embedding_norm;
  PackedMatrix project_in;   // [hidden, embedding_size], if the embedding's width is not hidden_size.
  PackedMatrix project_out;  // [embedding_size, hidden], the same.
  NormWeights final_norm;    // None for EAGLE and Medusa heads.
  PackedMatrix output;       // [vocab, embedding_size]; of a draft head [draft_vocab_size, hidden], or none
  PackedMatrix separate_embedding;
  bool tied_embeddings = false;
  Head head;

  // Only for models that are not draft heads.
  const PackedMatrix& embedding() const { return tied_embeddings ? output : separate_embedding; }
};

// Packs everything for products of `kernels`, matrices in `type`. ResourceExhausted without memory.
// `progress` may be null; it gets model.weight_bytes() bytes in total, and can end the packing with
// Cancelled.
absl::StatusOr<CpuWeights> PackWeights(const Model& model, WeightType type, const KernelTable& kernels,
                                       ThreadTeam* team, LoadProgress* progress);

// The bytes of packed matrices that a forward pass of one row reads: all except a separate embedding and
// experts that the row does not use. More rows read more only if they use other experts.
uint64_t BytesReadPerStep(const Model& model, WeightType type);

}  // namespace tandem

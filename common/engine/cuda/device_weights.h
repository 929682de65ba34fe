#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/shard.h"
#include "common/engine/weight_type.h"
#include "common/model/load_progress.h"
#include "common/model/model.h"

namespace tandem {

// A norm's weight and bias, [hidden]; empty where the model has none.
struct DeviceNorm {
  DeviceSpan<const float> weight;
  DeviceSpan<const float> bias;
  bool exists() const { return weight.size > 0; }
};

// A rank's part of a model in device memory: matrices in one of the device's formats, norms and biases in
// float32; empty where the model has none.
struct DeviceWeights {
  // A layer with experts: matrices and biases of all experts, one after the other.
  struct Experts {
    // [experts, hidden] on every rank. With a shared expert there is one more output: its gate.
    DeviceSpan<const float> router;
    DeviceSpan<const float> router_bias;   // [experts]
    DeviceMatrix gate_up;                  // Each [2 * the rank's part of its intermediate size, hidden].
    DeviceSpan<const float> gate_up_bias;  // Likewise.
    DeviceMatrix down;                     // Each [hidden, the rank's part].
    DeviceSpan<const float> down_bias;     // Each [hidden].
    DeviceSpan<const float> shared_bias;   // [hidden], of the shared expert's output.

    bool exist() const { return router.size > 0; }
  };

  struct Layer {
    DeviceNorm input_norm;  // None for the first layer of an EAGLE head.
    // [heads + 2 * KV heads of the rank, head_dim; hidden, or of an EAGLE-3 head's first layer 2 * hidden]
    DeviceMatrix query_key_value;
    DeviceSpan<const float> query_key_value_bias;
    DeviceSpan<const float> query_norm;          // [head_dim], or of all heads
    DeviceSpan<const float> key_norm;            // [head_dim], or of all KV heads
    DeviceMatrix attention_out;                  // [hidden, heads of the rank]
    DeviceSpan<const float> attention_out_bias;  // [hidden]; part of down_bias in a parallel block.
    DeviceNorm attention_output_norm;
    DeviceSpan<const float> sinks;  // [heads of the rank]
    DeviceNorm mlp_norm;
    // The feed-forward part, or the shared expert.
    DeviceMatrix gate_up;  // [2 * the rank's intermediate, hidden]: gate, then up; or up alone
    DeviceSpan<const float> gate_up_bias;
    DeviceMatrix down;                  // [hidden, the rank's intermediate]
    DeviceSpan<const float> down_bias;  // [hidden]
    Experts experts;
    DeviceNorm mlp_output_norm;
  };

  // The weights of a draft head outside of its layers (HeadWeights).
  struct Head {
    DeviceMatrix projection;                  // [hidden, inputs], or none
    DeviceSpan<const float> projection_bias;  // [hidden]
    DeviceSpan<const float> input_norms;      // EAGLE-3, of all parts: [state_size], or none
    DeviceSpan<const float> embedding_norm;   // EAGLE-3, MTP: [hidden], as is the next one.
    DeviceSpan<const float> state_norm;
  };

  std::vector<Layer> layers;
  DeviceNorm final_norm;              // None for an EAGLE head.
  DeviceMatrix embedding;             // [vocab, hidden], on every rank.
  DeviceSpan<const float> positions;  // [max_context + offset, hidden], if positions are learned.
  DeviceNorm embedding_norm;
  // [the rank's tokens, hidden]; a part of the embedding if the two are tied. For a draft head
  // [draft_vocab_size, hidden].
  DeviceMatrix output;
  Head head;
};

// One of Medusa's heads in device memory (HeadWeights::Position).
struct DevicePosition {
  std::vector<DeviceMatrix> blocks;                   // [hidden, hidden]
  std::vector<DeviceSpan<const float>> block_biases;  // The same, [hidden], or empty.
  DeviceMatrix output;                                // [vocab, hidden]; the same matrix if heads share one.
};

// Copies the weights, rounded to `type`, and prepares the products. Unimplemented for matrices that must stay
// in bfloat16 and have another type, because nothing is rounded unless requested. ResourceExhausted without
// memory. `progress` may be null; it can end the loading with Cancelled.
absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, WeightType type, const Shard& shard,
                                            DeviceOps* ops, LoadProgress* progress);

// The same for Medusa heads: one for each of num_positions.
absl::StatusOr<std::vector<DevicePosition>> UploadMedusa(const Model& model, WeightType type, DeviceOps* ops,
                                                         LoadProgress* progress);

}  // namespace tandem

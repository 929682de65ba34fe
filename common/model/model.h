#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"

namespace tandem {

// One tensor as it lies in the mapped file: not converted, not copied.
struct TensorView {
  enum class DType { kF32, kF16, kBF16 };
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major, as in the file.
  const void* data = nullptr;  // May be unaligned.

  int64_t num_elements() const;
};

// Weights of one transformer layer; `data == nullptr` where the configuration has none.
struct LayerWeights {
  TensorView input_norm;           // [hidden]
  TensorView query;                // [query_size, hidden]
  TensorView key;                  // [kv_size, hidden]
  TensorView value;                // [kv_size, hidden]
  TensorView query_bias;           // [query_size]
  TensorView key_bias;             // [kv_size]
  TensorView value_bias;           // [kv_size]
  TensorView query_norm;           // [head_dim]
  TensorView key_norm;             // [head_dim]
  TensorView attention_out;        // [hidden, query_size]
  TensorView attention_out_bias;   // [hidden]
  TensorView post_attention_norm;  // [hidden]
  TensorView gate;                 // [intermediate, hidden]
  TensorView up;                   // [intermediate, hidden]
  TensorView down;                 // [hidden, intermediate]
  TensorView gate_bias, up_bias, down_bias;
};

// A Hugging Face model folder, opened and checked: config.json, generation_config.json (optional) and the
// weights in model.safetensors or in the shards that model.safetensors.index.json names. Every tensor the
// configuration asks for is present with the right shape and a supported type; tensors it does not know are
// an error, except the ones known to be redundant (rotary inv_freq buffers, a tied lm_head).
//
// Owns the file mappings: views into it are valid as long as the Model lives. Immutable after Load.
class Model {
 public:
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& folder);

  const std::string& folder() const;
  const ModelConfig& config() const;
  const GenerationDefaults& generation_defaults() const;
  const TensorView& embedding() const;   // [vocab, hidden]
  const TensorView& output() const;      // [vocab, hidden]; the embedding when tied
  const TensorView& final_norm() const;  // [hidden]
  absl::Span<const LayerWeights> layers() const;
  uint64_t weight_bytes() const;
};

}  // namespace tandem

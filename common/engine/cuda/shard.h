#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/engine/cuda/kernels/attention_kernels.h"
#include "common/model/config/model_config.h"

namespace tandem {

// Which of several GPUs this is. One process has one GPU.
struct TensorParallel {
  uint32_t rank = 0;
  uint32_t world_size = 1;  // Up to kMostRanks.
};
inline constexpr uint32_t kMostRanks = 8;

// Half-open.
struct ShardRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t size() const { return end - begin; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// The part of rank `rank` in `count` things, in whole units except for the last. Parts differ by one unit at
// most and cover everything in the order of ranks.
ShardRange ShardOf(uint32_t count, uint32_t unit, const TensorParallel& parallel);

// The part of a model that a rank holds: outputs of the query, key, value, gate, up and output matrices, and
// inputs of the other two. All ranks hold norms and embeddings.
struct Shard {
  ShardRange heads;  // Query heads.
  // The KV heads that `heads` read. With more ranks than KV heads, several ranks hold the same one.
  ShardRange kv_heads;
  ShardRange intermediate;         // In units of 16 or of a group of weights, as matrix products need.
  ShardRange expert_intermediate;  // The same, of each expert.
  ShardRange shared_intermediate;  // The shared expert's part. Every rank has a part of all experts.
  ShardRange vocab;                // In units of 16.
  HeadMap head_map;
};

// `input_group`: how many inputs of a product share a scale, 1 if weights have none. No group is divided
// among ranks. InvalidArgument if there are fewer heads (or units of the other dimensions) than ranks, more
// ranks than supported, or a group that contains parts of two ranks' heads.
absl::StatusOr<Shard> MakeShard(const ModelConfig& config, const TensorParallel& parallel,
                                uint32_t input_group = 1);

}  // namespace tandem

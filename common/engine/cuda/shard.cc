#include "common/engine/cuda/shard.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr uint32_t kUnit = 16;

// Checks all ranks: if one could not start, the others must not start either.
absl::Status CheckGroups(const ModelConfig& config, uint32_t world_size, uint32_t input_group) {
  const auto head_dim = static_cast<uint32_t>(config.head_dim);
  for (uint32_t rank = 1; rank < world_size; ++rank) {
    const uint32_t head = ShardOf(static_cast<uint32_t>(config.num_heads), 1, {rank, world_size}).begin;
    if (head * head_dim % input_group == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " of ", world_size, " would begin at head ", head, " of ", head_dim, ", input ",
        head * head_dim, " of the attention's output matrices, whose weights have a scale for every ",
        input_group, " inputs; expected a multiple of that: another number of ranks, or weights in bf16"));
  }
  return absl::OkStatus();
}

}  // namespace

ShardRange ShardOf(uint32_t count, uint32_t unit, const TensorParallel& parallel) {
  const uint64_t num_units = (uint64_t{count} + unit - 1) / unit;
  const auto boundary = [&](uint64_t rank) {
    return static_cast<uint32_t>(std::min<uint64_t>(num_units * rank / parallel.world_size * unit, count));
  };
  return {boundary(parallel.rank), boundary(parallel.rank + 1)};
}

absl::StatusOr<Shard> MakeShard(const ModelConfig& config, const TensorParallel& parallel,
                                uint32_t input_group) {
  if (parallel.world_size < 1 || parallel.world_size > kMostRanks || parallel.rank >= parallel.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", parallel.rank, " of ", parallel.world_size,
                                                   "; expected 1 to ", kMostRanks, " ranks, counted from 0"));
  }
  const auto num_heads = static_cast<uint32_t>(config.num_heads);
  const auto heads_per_kv = num_heads / static_cast<uint32_t>(config.num_kv_heads);
  Shard shard;
  const auto divide = [&](uint32_t rank) {
    const TensorParallel of_rank = {rank, parallel.world_size};
    shard.heads = ShardOf(num_heads, 1, of_rank);
    shard.intermediate =
        ShardOf(static_cast<uint32_t>(config.intermediate_size), std::max(kUnit, input_group), of_rank);
    const ExpertsDescription& experts = config.block.experts;
    shard.expert_intermediate =
        ShardOf(static_cast<uint32_t>(experts.intermediate_size), std::max(kUnit, input_group), of_rank);
    shard.shared_intermediate =
        ShardOf(static_cast<uint32_t>(experts.shared_size), std::max(kUnit, input_group), of_rank);
    shard.vocab = ShardOf(static_cast<uint32_t>(config.vocab_size), kUnit, of_rank);
  };
  // Rank 0 has the least of everything. If it would have nothing, all ranks fail, so that none waits for it.
  divide(0);
  if (shard.heads.size() == 0 || shard.intermediate.size() == 0 || shard.vocab.size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a model with ", num_heads, " heads, an intermediate size of ", config.intermediate_size, " and ",
        config.vocab_size, " tokens does not have a part for each of ", parallel.world_size, " ranks"));
  }
  const ExpertsDescription& experts = config.block.experts;
  if (experts.exist() && (shard.expert_intermediate.size() == 0 ||
                          (experts.shared_size > 0 && shard.shared_intermediate.size() == 0))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "experts of an intermediate size of ", experts.intermediate_size,
        experts.shared_size > 0 ? absl::StrCat(", and a shared one of ", experts.shared_size, ",") : "",
        " do not have a part for each of ", parallel.world_size, " ranks"));
  }
  TANDEM_RETURN_IF_ERROR(CheckGroups(config, parallel.world_size, input_group));
  divide(parallel.rank);
  shard.kv_heads = {shard.heads.begin / heads_per_kv, (shard.heads.end - 1) / heads_per_kv + 1};
  HeadMap& map = shard.head_map;
  map.first_head = shard.heads.begin;
  map.num_heads = shard.heads.size();
  map.heads_per_kv = heads_per_kv;
  map.first_kv_head = shard.kv_heads.begin;
  const uint32_t most_heads = std::min(heads_per_kv, shard.heads.size());
  map.parts_per_kv = (most_heads + kMaxQueriesPerItem - 1) / kMaxQueriesPerItem;
  map.heads_per_part = (most_heads + map.parts_per_kv - 1) / map.parts_per_kv;
  return shard;
}

}  // namespace tandem

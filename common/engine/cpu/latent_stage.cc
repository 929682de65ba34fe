#include "common/engine/cpu/latent_stage.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace tandem {

LatentStage::LatentStage(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team,
                         uint32_t max_rows)
    : latent_(config.block.latent),
      num_heads_(static_cast<uint32_t>(config.num_heads)),
      room_((max_rows + kRowAlignment - 1) / kRowAlignment * kRowAlignment),
      kernels_(kernels),
      team_(team) {}

absl::StatusOr<std::unique_ptr<LatentStage>> LatentStage::Create(const ModelConfig& config,
                                                                 const KernelTable& kernels, ThreadTeam* team,
                                                                 uint32_t max_rows,
                                                                 const RowBuffer& attended) {
  std::unique_ptr<LatentStage> stage(new LatentStage(config, kernels, team, max_rows));
  TANDEM_RETURN_IF_ERROR(stage->Allocate(max_rows, attended));
  return stage;
}

absl::Status LatentStage::Allocate(uint32_t max_rows, const RowBuffer& attended) {
  const auto kv_rank = static_cast<uint32_t>(latent_.kv_rank);
  const uint32_t num_places = num_heads_ * room_;
  if (latent_.query_rank > 0) {
    TANDEM_ASSIGN_OR_RETURN(
        query_latents_,
        ProductInputs::Allocate(kernels_, max_rows, static_cast<uint32_t>(latent_.query_rank)));
    TANDEM_ASSIGN_OR_RETURN(
        projected_queries_,
        RowBuffer::Allocate(max_rows, num_heads_ * static_cast<uint32_t>(latent_.query_dim())));
  }
  TANDEM_ASSIGN_OR_RETURN(
      unturned_, ProductInputs::Allocate(kernels_, num_places, static_cast<uint32_t>(latent_.unturned_dim)));
  TANDEM_ASSIGN_OR_RETURN(
      queries_, RowBuffer::Allocate(num_places, kv_rank + static_cast<uint32_t>(latent_.turned_dim)));
  TANDEM_ASSIGN_OR_RETURN(sums_, ProductInputs::Allocate(kernels_, num_places, kv_rank));
  value_outputs_.resize(num_places);
  for (uint32_t head = 0; head < num_heads_; ++head) {
    for (uint32_t row = 0; row < max_rows; ++row) {
      value_outputs_[At(head, row)] =
          attended.row(row) + size_t{head} * static_cast<size_t>(latent_.value_dim);
    }
  }
  return absl::OkStatus();
}

void LatentStage::ProjectQueries(int thread, const CpuWeights::Latent& weights, uint32_t num_rows,
                                 const RowBuffer& projected) {
  const auto rank = static_cast<uint32_t>(latent_.query_rank);
  const Share rows = MyShare(num_rows, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    kernels_.rms_norm(projected.row(i), weights.query_norm.data(), rank, latent_.norm_epsilon,
                      query_latents_.floats().row(i));
  }
  query_latents_.Prepare(weights.query_up.kernel(), rows, {0, rank});
  team_->Barrier();
  weights.query_up.Multiply(MyShare(weights.query_up.num_tiles(), thread), query_latents_, num_rows,
                            projected_queries_.rows());
  team_->Barrier();
}

void LatentStage::Prepare(int thread, uint32_t layer, const CpuWeights::Latent& weights,
                          absl::Span<const ActiveRow> rows, const RowBuffer& projected,
                          CpuAttention* attention) {
  const auto num_rows = static_cast<uint32_t>(rows.size());
  const auto kv_rank = static_cast<uint32_t>(latent_.kv_rank);
  const auto unturned = static_cast<uint32_t>(latent_.unturned_dim);
  const auto turned = static_cast<uint32_t>(latent_.turned_dim);
  const bool has_rank = latent_.query_rank > 0;
  attention->BeginLayer(thread);
  if (has_rank) ProjectQueries(thread, weights, num_rows, projected);
  const uint32_t key_at =
      has_rank ? static_cast<uint32_t>(latent_.query_rank) : num_heads_ * (unturned + turned);
  const ProductKernel& kernel = weights.key_up.front().kernel();
  const Share share = MyShare(num_rows, thread);
  for (uint32_t i = share.begin; i < share.end; ++i) {
    const float* query = has_rank ? projected_queries_.row(i) : projected.row(i);
    for (uint32_t head = 0; head < num_heads_; ++head, query += unturned + turned) {
      const uint32_t place = At(head, i);
      std::copy_n(query, unturned, unturned_.floats().row(place));
      unturned_.Prepare(kernel, {place, place + 1}, {0, unturned});
      float* const to = queries_.row(place) + kv_rank;
      std::copy_n(query + unturned, turned, to);
      attention->Turn(layer, rows[i].position, to);
    }
    float* const key = projected.row(i) + key_at;
    kernels_.rms_norm(key, weights.kv_norm.data(), kv_rank, latent_.norm_epsilon, key);
    attention->Turn(layer, rows[i].position, key + kv_rank);
    attention->Store(layer, rows[i].slot, key, key);
  }
  team_->Barrier();
  MultiplyHeads(thread, weights.key_up, unturned_, num_rows, queries_.rows());
}

void LatentStage::MultiplyHeads(int thread, const std::vector<PackedMatrix>& matrices,
                                const ProductInputs& inputs, uint32_t num_rows, float* const* outputs) const {
  const uint32_t num_tiles = matrices.front().num_tiles();
  const Share mine = MyShare(num_heads_ * num_tiles, thread);
  for (uint32_t begin = mine.begin; begin < mine.end;) {
    const uint32_t head = begin / num_tiles;
    const uint32_t end = std::min(mine.end, (head + 1) * num_tiles);
    matrices[head].Multiply({begin - head * num_tiles, end - head * num_tiles}, inputs,
                            {At(head, 0), At(head, num_rows)}, outputs);
    begin = end;
  }
}

void LatentStage::MoveQueries(uint32_t from, uint32_t to) {
  for (uint32_t head = 0; head < num_heads_; ++head) {
    std::copy_n(queries_.row(At(head, from)), queries_.width(), queries_.row(At(head, to)));
  }
}

void LatentStage::MultiplyValues(int thread, const CpuWeights::Latent& weights, uint32_t num_rows) {
  const ProductKernel& kernel = weights.value_up.front().kernel();
  if (kernel.prepare != nullptr) {
    const Share share = MyShare(num_rows, thread);
    for (uint32_t head = 0; head < num_heads_; ++head) {
      sums_.Prepare(kernel, {At(head, share.begin), At(head, share.end)},
                    {0, static_cast<uint32_t>(latent_.kv_rank)});
    }
    team_->Barrier();
  }
  MultiplyHeads(thread, weights.value_up, sums_, num_rows, value_outputs_.data());
}

}  // namespace tandem

#include "common/engine/cpu/head_stage.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/model/tensor_convert.h"

namespace tandem {

HeadStage::HeadStage(const ModelConfig& config, const CpuWeights& weights, const KernelTable& kernels,
                     ThreadTeam* team)
    : config_(config),
      weights_(weights.head),
      input_norm_(weights.layers.front().input_norm.weight),
      kernels_(kernels),
      team_(team) {}

absl::StatusOr<std::unique_ptr<HeadStage>> HeadStage::Create(const ModelConfig& config,
                                                             const CpuWeights& weights,
                                                             const KernelTable& kernels, ThreadTeam* team,
                                                             uint32_t max_rows) {
  std::unique_ptr<HeadStage> stage(new HeadStage(config, weights, kernels, team));
  if (config.head->projects) {
    TANDEM_ASSIGN_OR_RETURN(stage->fused_,
                            ProductInputs::Allocate(kernels, max_rows, weights.head.projection.depth()));
  }
  TANDEM_ASSIGN_OR_RETURN(
      stage->attention_inputs_,
      ProductInputs::Allocate(kernels, max_rows, weights.layers.front().query_key_value.depth()));
  stage->projected_.reserve(max_rows);
  stage->outputs_.reserve(max_rows);
  return stage;
}

void HeadStage::Plan(absl::Span<const ActiveRow> rows, const RowBuffer& hidden) {
  projected_.clear();
  outputs_.clear();
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (TakesStateAsItIs(*rows[i].row)) continue;
    projected_.push_back(&rows[i]);
    outputs_.push_back(hidden.row(i));
  }
}

// EAGLE-3 continues from its own state unchanged, and without a projection from the target's too.
bool HeadStage::TakesStateAsItIs(const StepRow& row) const {
  return is_eagle3() && (row.state->own || !config_.head->projects);
}

void HeadStage::CopyEmbedding(TokenId token, float* out) const {
  ConvertRowsToFloat(weights_.embedding, token, 1, {out, static_cast<size_t>(config_.hidden_size)});
}

void HeadStage::FillInputs(const StepRow& row, float* out) const {
  const auto size = static_cast<size_t>(config_.hidden_size);
  const absl::Span<const float> state = row.state->values;
  const float epsilon = config_.rms_norm_epsilon;
  switch (config_.head->kind) {
    case HeadConfig::Kind::kEagle:
      CopyEmbedding(row.token, out);
      std::ranges::copy(state, out + size);
      return;
    case HeadConfig::Kind::kMtp:
      kernels_.rms_norm(state.data(), weights_.state_norm.data(), size, epsilon, out);
      CopyEmbedding(row.token, out + size);
      kernels_.rms_norm(out + size, weights_.embedding_norm.data(), size, epsilon, out + size);
      return;
    case HeadConfig::Kind::kEagle3:
      FillNormed(state, out);
      return;
    case HeadConfig::Kind::kMedusa:  // Have their own.
    case HeadConfig::Kind::kDFlash:
      return;
  }
}

// As HeadConfig::StateNorms says.
void HeadStage::FillNormed(absl::Span<const float> states, float* out) const {
  if (weights_.input_norms.empty()) {
    std::ranges::copy(states, out);
    return;
  }
  const size_t size = states.size() / weights_.input_norms.size();
  for (size_t i = 0; i < weights_.input_norms.size(); ++i) {
    kernels_.rms_norm(states.data() + i * size, weights_.input_norms[i].data(), size,
                      config_.rms_norm_epsilon, out + i * size);
  }
}

void HeadStage::Begin(int thread, absl::Span<const ActiveRow> rows, const RowBuffer& hidden) {
  const auto num_projected = static_cast<uint32_t>(projected_.size());
  if (config_.head->projects) {
    const Share mine = ShareOf(num_projected, thread, team_->num_threads());
    for (uint32_t i = mine.begin; i < mine.end; ++i) {
      FillInputs(*projected_[i]->row, fused_.floats().row(i));
    }
    fused_.Prepare(weights_.projection.kernel(), mine, {0, weights_.projection.depth()});
  }
  if (is_eagle3()) {
    const Share all = ShareOf(static_cast<uint32_t>(rows.size()), thread, team_->num_threads());
    for (uint32_t i = all.begin; i < all.end; ++i) {
      const StepRow& row = *rows[i].row;
      if (TakesStateAsItIs(row)) std::ranges::copy(row.state->values, hidden.row(i));
    }
  }
  team_->Barrier();
  if (num_projected == 0) return;
  const Share tiles = ShareOf(weights_.projection.num_tiles(), thread, team_->num_threads());
  weights_.projection.Multiply(tiles, fused_, num_projected, outputs_.data());
  if (weights_.projection_bias.empty()) return;
  const uint32_t begin = std::min(tiles.begin * kTileOutputs, weights_.projection.num_outputs());
  const uint32_t end = std::min(tiles.end * kTileOutputs, weights_.projection.num_outputs());
  for (float* output : outputs_) {
    kernels_.add(weights_.projection_bias.data() + begin, end - begin, output + begin);
  }
}

void HeadStage::ReadForAttention(int thread, absl::Span<const ActiveRow> rows, const PackedMatrix& projection,
                                 const RowBuffer& hidden) {
  const Share mine = ShareOf(static_cast<uint32_t>(rows.size()), thread, team_->num_threads());
  const auto size = static_cast<size_t>(config_.hidden_size);
  for (uint32_t i = mine.begin; i < mine.end; ++i) {
    float* const inputs = attention_inputs_.floats().row(i);
    if (config_.head->kind == HeadConfig::Kind::kMtp) {
      kernels_.rms_norm(hidden.row(i), input_norm_.data(), size, config_.rms_norm_epsilon, inputs);
      continue;
    }
    if (!is_eagle3()) {
      std::copy_n(hidden.row(i), size, inputs);
      continue;
    }
    CopyEmbedding(rows[i].row->token, inputs);
    kernels_.rms_norm(inputs, weights_.embedding_norm.data(), size, config_.rms_norm_epsilon, inputs);
    kernels_.rms_norm(hidden.row(i), weights_.state_norm.data(), size, config_.rms_norm_epsilon,
                      inputs + size);
    if (config_.head->norm_before_residual) std::copy_n(inputs + size, size, hidden.row(i));
  }
  attention_inputs_.Prepare(projection.kernel(), mine, {0, projection.depth()});
}

}  // namespace tandem

#include "common/engine/cpu/cpu_forward.h"

#include <algorithm>
#include <vector>

namespace tandem {
namespace {

static_assert(kNumActivationKernels == kNumActivations);

}  // namespace

void CpuEngine::Reduce(int thread, uint32_t layer, LoraProduct product, const ProductInputs& inputs) {
  if (!adapts_) return;
  lora_->Reduce(thread, layer, product, inputs);
  team_->Barrier();
}

void CpuEngine::RunStep(int thread) {
  if (block_ != nullptr) {
    block_->Embed(thread, ActiveRows(), hidden_);
  } else if (head_ != nullptr) {
    head_->Begin(thread, ActiveRows(), hidden_);
  } else {
    Embed(thread);
  }
  for (uint32_t layer = 0; layer < weights_.layers.size(); ++layer) {
    // The embedding and the previous layer's output are complete.
    team_->Barrier();
    RunLayer(thread, layer);
  }
  if (num_last_ == 0) return;
  team_->Barrier();
  TakeFeatures(thread, static_cast<uint32_t>(weights_.layers.size()));
  if (num_wanted_ == 0) return;
  if (num_wanted_ < num_last_) {
    team_->Barrier();
    KeepRowsWithLogits(thread);
  }
  ComputeLogits(thread);
  if (draft_logits_ == nullptr) return;
  team_->Barrier();
  const Share rows = MyShare(num_wanted_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) draft_logits_->Spread(thread, logits_[i]);
}

void CpuEngine::Embed(int thread) {
  const bool is_narrow = config_.block.embedding_size > 0;
  const float scale = config_.block.embedding_scale;
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    float* const embedded = is_narrow ? narrow_.floats().row(i) : hidden_.row(i);
    weights_.embedding().CopyOutput(static_cast<uint32_t>(active_[i].row->token), embedded);
    if (scale != 1.0f) kernels_->scale(scale, weights_.embedding().depth(), embedded);
  }
  if (is_narrow) ProjectEmbedding(thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    float* const hidden = hidden_.row(i);
    if (!weights_.positions.empty()) {
      const uint32_t place = active_[i].position + static_cast<uint32_t>(config_.block.position_offset);
      kernels_->add(&weights_.positions[size_t{place} * hidden_.width()], hidden_.width(), hidden);
    }
    if (weights_.embedding_norm.exists()) NormaliseRow(weights_.embedding_norm, hidden, hidden);
  }
}

void CpuEngine::ProjectEmbedding(int thread) {
  const PackedMatrix& matrix = weights_.project_in;
  narrow_.Prepare(matrix.kernel(), MyShare(num_active_, thread), {0, matrix.depth()});
  team_->Barrier();
  matrix.Multiply(MyShare(matrix.num_tiles(), thread), narrow_, num_active_, hidden_.rows());
  team_->Barrier();
}

void CpuEngine::ComputeLogits(int thread) {
  const bool is_narrow = config_.block.embedding_size > 0;
  Normalise(thread, weights_.final_norm, is_narrow ? weights_.project_out : weights_.output);
  team_->Barrier();
  if (is_narrow) {
    const PackedMatrix& matrix = weights_.project_out;
    matrix.Multiply(MyShare(matrix.num_tiles(), thread), normed_, num_wanted_, narrow_.floats().rows());
    team_->Barrier();
    if (PrepareRows(thread, weights_.output, &narrow_)) team_->Barrier();
  }
  const PackedMatrix& output = weights_.output;
  const Share tiles = MyShare(output.num_tiles(), thread);
  output.Multiply(tiles, is_narrow ? narrow_ : normed_, num_wanted_, logits_.data());
  const uint32_t begin = tiles.begin * kTileOutputs;
  const uint32_t end = std::min(tiles.end * kTileOutputs, output.num_outputs());
  const BlockDescription& block = config_.block;
  for (uint32_t i = 0; i < num_wanted_ && begin < end; ++i) {
    if (block.logit_scale != 1.0f) kernels_->scale(block.logit_scale, end - begin, logits_[i] + begin);
    if (block.logit_cap != 0.0f) kernels_->cap(block.logit_cap, end - begin, logits_[i] + begin);
  }
}

void CpuEngine::RunLayer(int thread, uint32_t layer) {
  const CpuWeights::Layer& weights = weights_.layers[layer];
  const PackedMatrix& projection = weights.query_key_value;
  TakeFeatures(thread, layer);
  const bool begins_head = head_ != nullptr && layer == 0;
  if (begins_head) {
    head_->ReadForAttention(thread, ActiveRows(), projection, hidden_);
  } else {
    Normalise(thread, weights.input_norm, projection);
  }
  team_->Barrier();
  Reduce(thread, layer, LoraProduct::kQueryKeyValue, normed_);
  const Share tiles = MyShare(projection.num_tiles(), thread);
  projection.Multiply(tiles, begins_head ? head_->attention_inputs() : normed_, num_active_,
                      query_key_value_.rows());
  AddBias(weights.query_key_value_bias, *kernels_, projection.OutputsOf(tiles), {0, num_active_},
          query_key_value_.rows());
  Adapt(thread, layer, LoraProduct::kQueryKeyValue, tiles, query_key_value_.rows());
  team_->Barrier();
  if (latent_ == nullptr) {
    attention_->Prepare(thread, layer, ActiveRows(), weights.query_norm, weights.key_norm, query_key_value_);
  } else {
    latent_->Prepare(thread, layer, weights.latent, ActiveRows(), query_key_value_, attention_.get());
  }
  team_->Barrier();
  if (layer + 1 == weights_.layers.size()) {
    // The row's keys and values are written. The rest is needed only for its own logits and features.
    if (num_last_ == 0) return;
    if (num_last_ < num_rows_) DropFinishedRows(thread);
  }
  attention_->Attend(thread, layer, weights.sinks);
  team_->Barrier();
  if (latent_ != nullptr) {
    latent_->MultiplyValues(thread, weights.latent, num_active_);
    team_->Barrier();
  }
  if (PrepareRows(thread, weights.attention_out, &attended_)) team_->Barrier();
  if (config_.block.parallel) {
    RunParallel(thread, layer);
  } else {
    RunSequential(thread, layer);
  }
}

CpuEngine::Addition CpuEngine::AttentionOf(uint32_t layer) const {
  const CpuWeights::Layer& weights = weights_.layers[layer];
  return {weights.attention_out,      weights.attention_out_bias, weights.attention_output_norm,
          weights.attention_sum_norm, LoraProduct::kAttentionOut, layer};
}

void CpuEngine::RunSequential(int thread, uint32_t layer) {
  const CpuWeights::Layer& weights = weights_.layers[layer];
  AddToStream(thread, AttentionOf(layer), attended_);
  team_->Barrier();
  Normalise(thread, weights.mlp_norm, FirstOf(weights));
  team_->Barrier();
  FeedForward(thread, layer);
  team_->Barrier();
  AddFeedForward(thread, layer);
}

// Both additions write the same outputs, so no thread waits for another in between. Experts are the
// exception.
void CpuEngine::RunParallel(int thread, uint32_t layer) {
  const CpuWeights::Layer& weights = weights_.layers[layer];
  Normalise(thread, weights.mlp_norm, FirstOf(weights));
  team_->Barrier();
  FeedForward(thread, layer);
  team_->Barrier();
  AddToStream(thread, AttentionOf(layer), attended_);
  AddFeedForward(thread, layer);
}

void CpuEngine::Normalise(int thread, const NormWeights& norm, const PackedMatrix& next) {
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    NormaliseRow(norm, hidden_.row(i), normed_.floats().row(i));
  }
  normed_.Prepare(next.kernel(), rows, {0, next.depth()});
}

void CpuEngine::NormaliseRow(const NormWeights& norm, const float* row, float* out) const {
  const size_t width = hidden_.width();
  if (!norm.exists()) {
    std::copy_n(row, width, out);
  } else if (config_.block.norm == NormKind::kLayer) {
    kernels_->layer_norm(row, norm.weight.data(), norm.bias.data(), width, config_.rms_norm_epsilon, out);
  } else {
    kernels_->rms_norm(row, norm.weight.data(), width, config_.rms_norm_epsilon, out);
  }
}

bool CpuEngine::PrepareRows(int thread, const PackedMatrix& next, ProductInputs* inputs) {
  if (next.kernel().prepare == nullptr) return false;
  inputs->Prepare(next.kernel(), MyShare(num_active_, thread), {0, next.depth()});
  return true;
}

bool CpuEngine::IsComputedToTheEnd(const StepRow& row) const {
  if (row.logits != nullptr) return true;
  const FeatureRequest* const features = row.features;
  return features != nullptr &&
         (features->final_norm || features->layers.back() == static_cast<uint32_t>(config_.num_layers));
}

void CpuEngine::TakeFeatures(int thread, uint32_t num_layers) {
  if (!asks_for_features_) return;
  const Share rows = MyShare(num_active_, thread);
  const uint32_t width = hidden_.width();
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    const FeatureRequest* const request = active_[i].row->features;
    if (request == nullptr) continue;
    const auto found = std::lower_bound(request->layers.begin(), request->layers.end(), num_layers);
    if (found != request->layers.end() && *found == num_layers) {
      std::copy_n(hidden_.row(i), width, request->states + (found - request->layers.begin()) * size_t{width});
    }
    if (num_layers == weights_.layers.size() && request->final_norm) {
      NormaliseRow(weights_.final_norm, hidden_.row(i),
                   request->states + request->layers.size() * size_t{width});
    }
  }
}

void CpuEngine::PlanAttention() {
  if (latent_ == nullptr) {
    attention_->Plan(ActiveRows(), query_key_value_, attended_.floats());
  } else {
    attention_->Plan(ActiveRows(), latent_->queries(), latent_->sums());
  }
}

void CpuEngine::MoveQueries(uint32_t from, uint32_t to) {
  if (latent_ == nullptr) {
    std::copy_n(query_key_value_.row(from), config_.query_size(), query_key_value_.row(to));
  } else {
    latent_->MoveQueries(from, to);
  }
}

void CpuEngine::DropFinishedRows(int thread) {
  if (thread == 0) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < num_active_; ++i) {
      if (!IsComputedToTheEnd(*active_[i].row)) continue;
      if (kept != i) {
        active_[kept] = active_[i];
        std::copy_n(hidden_.row(i), hidden_.width(), hidden_.row(kept));
        MoveQueries(i, kept);
      }
      ++kept;
    }
    num_active_ = kept;
    PlanAttention();
    if (adapts_) lora_->Plan(ActiveRows());
  }
  team_->Barrier();
}

void CpuEngine::KeepRowsWithLogits(int thread) {
  if (thread == 0) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < num_active_; ++i) {
      if (active_[i].row->logits == nullptr) continue;
      if (kept != i) std::copy_n(hidden_.row(i), hidden_.width(), hidden_.row(kept));
      ++kept;
    }
    num_active_ = kept;
  }
  team_->Barrier();
}

// hidden = sum_norm(hidden + scale * output_norm(matrix * input + bias + what adapters add))
void CpuEngine::AddToStream(int thread, const Addition& addition, const ProductInputs& inputs) {
  const PackedMatrix& matrix = addition.matrix;
  const float scale = config_.block.residual_scale;
  Reduce(thread, addition.layer, addition.product, inputs);
  const Share tiles = MyShare(matrix.num_tiles(), thread);
  matrix.Multiply(tiles, inputs, num_active_, projected_.rows());
  const Share outputs = matrix.OutputsOf(tiles);
  AddBias(addition.bias, *kernels_, outputs, {0, num_active_}, projected_.rows());
  Adapt(thread, addition.layer, addition.product, tiles, projected_.rows());
  if (!addition.output_norm.exists()) {
    const uint32_t size = outputs.end - outputs.begin;
    for (uint32_t i = 0; i < num_active_ && size > 0; ++i) {
      float* const projected = projected_.row(i) + outputs.begin;
      if (scale != 1.0f) kernels_->scale(scale, size, projected);
      kernels_->add(projected, size, hidden_.row(i) + outputs.begin);
    }
    if (!addition.sum_norm.exists()) return;
  }
  team_->Barrier();
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    if (addition.output_norm.exists()) {
      AddRow(addition, i, projected_.row(i));
    } else {
      NormaliseRow(addition.sum_norm, hidden_.row(i), hidden_.row(i));
    }
  }
}

void CpuEngine::AddRow(const Addition& addition, uint32_t row, float* addend) const {
  const float scale = config_.block.residual_scale;
  const uint32_t width = hidden_.width();
  if (addition.output_norm.exists()) NormaliseRow(addition.output_norm, addend, addend);
  if (scale != 1.0f) kernels_->scale(scale, width, addend);
  kernels_->add(addend, width, hidden_.row(row));
  if (addition.sum_norm.exists()) NormaliseRow(addition.sum_norm, hidden_.row(row), hidden_.row(row));
}

// Each thread computes the same outputs of gate and of up, in whole groups, so that it can prepare them for
// the next product.
void CpuEngine::FeedForward(int thread, uint32_t layer) {
  const CpuWeights::Layer& weights = weights_.layers[layer];
  const LoraCall adapters = {.stage = adapts_ ? lora_.get() : nullptr, .thread = thread, .layer = layer};
  Reduce(thread, layer, LoraProduct::kUp, normed_);
  if (weights.mlp.up.num_outputs() > 0) {
    MultiplyGateAndUp(config_.block, *kernels_, weights.mlp,
                      GroupedTiles(weights.mlp, thread, team_->num_threads()), {0, num_active_}, normed_,
                      &ScratchOf(weights), adapters);
  }
  if (weights.experts.exist()) experts_->Run(thread, weights.experts, normed_, num_active_);
}

void CpuEngine::AddFeedForward(int thread, uint32_t layer) {
  const CpuWeights::Layer& weights = weights_.layers[layer];
  const PackedMatrix& down = weights.mlp.down;
  const Addition addition = {
      down, weights.mlp.down_bias, weights.mlp_output_norm, weights.mlp_sum_norm, LoraProduct::kDown, layer};
  if (!weights.experts.exist()) {
    AddToStream(thread, addition, middle_.gate);
    return;
  }
  const bool is_shared = down.num_outputs() > 0;
  if (is_shared) {
    const Share tiles = MyShare(down.num_tiles(), thread);
    down.Multiply(tiles, shared_.gate, num_active_, projected_.rows());
    AddBias(addition.bias, *kernels_, down.OutputsOf(tiles), {0, num_active_}, projected_.rows());
  }
  team_->Barrier();
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    float* const sum = experts_->sum(i);
    if (is_shared) {
      if (config_.block.experts.shared_gate) {
        kernels_->scale(experts_->SharedWeight(i), hidden_.width(), projected_.row(i));
      }
      kernels_->add(projected_.row(i), hidden_.width(), sum);
    }
    AddRow(addition, i, sum);
  }
}

}  // namespace tandem

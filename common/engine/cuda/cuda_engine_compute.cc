// The launches of one step. They are queued in the stream, or recorded once for all steps of a size.

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/base/status_macros.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/row_products.h"

namespace tandem {

absl::Status CudaEngine::Embed(DeviceSpan<float> to, const Bucket& bucket) {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  const LaunchShape shape = EmbedShape(bucket.rows, hidden);
  const DeviceMatrix& embedding = weights_.embedding;
  const EmbedEnding ending = {.scale = config_.block.embedding_scale,
                              .positions = weights_.positions,
                              .position_offset = static_cast<uint32_t>(config_.block.position_offset)};
  if (embedding.format == DeviceFormat::kBf16) {
    TANDEM_RETURN_IF_ERROR(ops_->Launch(EmbedKernel{step_, embedding.data, to, hidden, ending}, shape));
  } else {
    TANDEM_RETURN_IF_ERROR(ops_->Launch(EmbedInt8Kernel{step_, embedding.packed, to, hidden, ending}, shape));
  }
  if (!weights_.embedding_norm.exists()) return absl::OkStatus();
  return NormInPlace(to, {}, weights_.embedding_norm, bucket);
}

NormWeight CudaEngine::NormOf(const DeviceNorm& norm) const {
  return {.weight = norm.weight, .bias = norm.bias, .centers = config_.block.norm == NormKind::kLayer};
}

absl::Status CudaEngine::NormInPlace(DeviceSpan<float> values, DeviceSpan<const float> addend,
                                     const DeviceNorm& norm, const Bucket& bucket) {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  NormInPlaceKernel in_place;
  in_place.step = step_;
  in_place.values = values;
  in_place.addend = addend;
  in_place.norm = NormOf(norm);
  in_place.row_stride = hidden;
  in_place.size = hidden;
  in_place.epsilon = config_.rms_norm_epsilon;
  return ops_->Launch(in_place, NormShape(bucket.rows, hidden));
}

// Norms queries and keys over all heads at once. They have no biases (CudaEngine::Create refuses them).
absl::Status CudaEngine::NormAllHeads(const DeviceWeights::Layer& weights, const Bucket& bucket) {
  NormInPlaceKernel in_place;
  in_place.step = step_;
  in_place.values = projected_;
  in_place.row_stride = static_cast<uint64_t>(config_.query_size() + 2 * config_.kv_size());
  in_place.epsilon = config_.rms_norm_epsilon;
  in_place.norm.weight = weights.query_norm;
  in_place.size = static_cast<uint32_t>(config_.query_size());
  TANDEM_RETURN_IF_ERROR(ops_->Launch(in_place, NormShape(bucket.rows, in_place.size)));
  in_place.norm.weight = weights.key_norm;
  in_place.offset = in_place.size;
  in_place.size = static_cast<uint32_t>(config_.kv_size());
  return ops_->Launch(in_place, NormShape(bucket.rows, in_place.size));
}

absl::Status CudaEngine::Compute(const Bucket& bucket) {
  TANDEM_RETURN_IF_ERROR(is_head() ? BeginHead(bucket) : Embed(hidden_, bucket));
  for (uint32_t layer = 0; layer < weights_.layers.size(); ++layer) {
    TANDEM_RETURN_IF_ERROR(ComputeLayer(layer, bucket));
  }
  if (bucket.has_features && bucket.has_final_features) TANDEM_RETURN_IF_ERROR(TakeFinalFeatures(bucket));
  return bucket.wanted == 0 ? absl::OkStatus() : ComputeWanted(0, bucket.wanted, bucket);
}

absl::Status CudaEngine::JoinInputs(const Bucket& bucket) {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  if (is_head(HeadConfig::Kind::kMtp)) {
    JoinNormedStatesKernel join;
    join.step = step_;
    join.embedded = embedded_;
    join.state_norm = weights_.head.state_norm;
    join.embedding_norm = weights_.head.embedding_norm;
    join.inputs = joined_;
    join.hidden_size = hidden;
    join.epsilon = config_.rms_norm_epsilon;
    return ops_->Launch(join, NormShape(bucket.rows, hidden));
  }
  if (weights_.head.input_norms.size > 0) {
    JoinNormedPartsKernel join;
    join.step = step_;
    join.norms = weights_.head.input_norms;
    join.inputs = joined_;
    join.state_size = config_.head->state_size();
    const bool each = config_.head->state_norms == HeadConfig::StateNorms::kEach;
    join.num_parts = each ? config_.head->num_states() : 1;
    join.epsilon = config_.rms_norm_epsilon;
    return ops_->Launch(join, NormShape(bucket.rows, join.state_size / join.num_parts));
  }
  JoinStatesKernel join;
  join.step = step_;
  join.embedded = embedded_;
  join.inputs = joined_;
  join.embedding_size = is_head(HeadConfig::Kind::kEagle) ? hidden : 0;
  join.state_size = config_.head->state_size();
  return ops_->Launch(join, EmbedShape(bucket.rows, weights_.head.projection.depth));
}

absl::Status CudaEngine::BeginHead(const Bucket& bucket) {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  const DeviceWeights::Head& weights = weights_.head;
  TANDEM_RETURN_IF_ERROR(Embed(embedded_, bucket));
  BeginHeadKernel begin;
  begin.step = step_;
  if (config_.head->projects) {
    TANDEM_RETURN_IF_ERROR(JoinInputs(bucket));
    // This includes rows that have nothing to project, because a graph does not know which rows these are.
    TANDEM_RETURN_IF_ERROR(Multiply(weights.projection, joined_, addends_, bucket.rows));
    begin.projected = addends_;
  }
  begin.bias = weights.projection_bias;
  begin.embedded = embedded_;
  if (is_head(HeadConfig::Kind::kEagle3)) {
    begin.embedding_norm = weights.embedding_norm;
    begin.state_norm = weights.state_norm;
  } else {
    begin.state_norm = weights_.layers.front().input_norm.weight;
  }
  begin.own_states_go_on = is_head(HeadConfig::Kind::kEagle3);
  begin.hidden = hidden_;
  begin.inputs = attention_inputs_;
  begin.features = FeaturesOf(bucket);
  begin.hidden_size = hidden;
  begin.epsilon = config_.rms_norm_epsilon;
  begin.norm_before_residual = config_.head->norm_before_residual;
  return ops_->Launch(begin, NormShape(bucket.rows, hidden));
}

DeviceSpan<float> CudaEngine::FeaturesOf(const Bucket& bucket) const {
  return bucket.has_features ? features_ : DeviceSpan<float>();
}

Residual CudaEngine::Stream(DeviceSpan<const float> bias, bool adds, const Bucket& bucket) const {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  return {.hidden = hidden_,
          .addends = is_alone() ? addends_ : gathered_,
          .num_addends = adds ? parallel_.world_size : 0,
          .addend_stride = uint64_t{bucket.rows} * hidden,
          .bias = bias,
          .hidden_size = hidden,
          .scale = config_.block.residual_scale};
}

Residual CudaEngine::StreamAfter(const DeviceWeights::Layer& weights, const Bucket& bucket) const {
  // If a norm follows, it has already added the bias.
  const bool is_normed = weights.mlp_output_norm.exists();
  Residual stream = Stream(is_normed ? DeviceSpan<const float>() : weights.down_bias, true, bucket);
  if (config_.block.parallel) {
    stream.num_addends = 2;
    stream.addend_stride = uint64_t{padded_rows_} * stream.hidden_size;
  }
  return stream;
}

absl::Status CudaEngine::TakeFinalFeatures(const Bucket& bucket) {
  FinalFeaturesKernel take;
  take.step = step_;
  take.residual = StreamAfter(weights_.layers.back(), bucket);
  take.norm = NormOf(weights_.final_norm);
  take.features = features_;
  take.num_layers = num_layers();
  take.epsilon = config_.rms_norm_epsilon;
  return ops_->Launch(take, NormShape(bucket.rows, take.residual.hidden_size));
}

absl::Status CudaEngine::Norm(const DeviceNorm& weights, const Residual& stream,
                              std::optional<uint32_t> num_layers, const Bucket& bucket,
                              DeviceSpan<float> exact) {
  NormKernel norm;
  norm.step = step_;
  norm.residual = stream;
  norm.norm = NormOf(weights);
  norm.normed = normed_;
  norm.exact = exact;
  norm.epsilon = config_.rms_norm_epsilon;
  if (num_layers.has_value()) {
    norm.features = FeaturesOf(bucket);
    norm.num_layers = *num_layers;
  }
  return ops_->Launch(norm, NormShape(bucket.rows, stream.hidden_size));
}

absl::Status CudaEngine::Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                                  DeviceSpan<float> outputs, uint32_t num_rows) {
  return MultiplyRows(matrix, inputs, outputs, num_rows, rounded_, ops_.get());
}

absl::Status CudaEngine::MultiplyAdapted(const LayerProduct& product, const DeviceMatrix& matrix,
                                         DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                                         const Bucket& bucket) {
  TANDEM_RETURN_IF_ERROR(Multiply(matrix, inputs, outputs, bucket.rows));
  if (!bucket.has_adapters) return absl::OkStatus();
  const AdapterTable table = {step_, adapters_.table(), product.layer * kAdapterInputs + product.input};
  TANDEM_RETURN_IF_ERROR(ops_->Launch(ReduceKernel{table, inputs, reduced_, matrix.depth, adapter_width_},
                                      ReduceShape(bucket.rows)));
  return ops_->Launch(AddAdapterKernel{table, reduced_, outputs, adapter_width_, matrix.outputs},
                      GateShape(bucket.rows, matrix.outputs));
}

absl::Status CudaEngine::MultiplyAndGather(const LayerProduct& product, const DeviceMatrix& matrix,
                                           DeviceSpan<const Bf16> inputs, const Bucket& bucket) {
  TANDEM_RETURN_IF_ERROR(MultiplyAdapted(product, matrix, inputs, addends_, bucket));
  return GatherAddends(uint64_t{bucket.rows} * matrix.outputs);
}

absl::Status CudaEngine::GatherAddends(uint64_t size) {
  if (is_alone()) return absl::OkStatus();
  // The ranks' addends are gathered, not summed: the order of a sum would change with a row's place in the
  // message. The next norm adds them up.
  return ops_->AllGather(addends_.Part(0, size), gathered_.Part(0, parallel_.world_size * size));
}

absl::Status CudaEngine::ComputeLayer(uint32_t layer, const Bucket& bucket) {
  const DeviceWeights::Layer& weights = weights_.layers[layer];
  const bool begins_head = is_head() && layer == 0;
  if (!begins_head) {
    const Residual stream =
        layer == 0 ? Stream({}, false, bucket) : StreamAfter(weights_.layers[layer - 1], bucket);
    TANDEM_RETURN_IF_ERROR(Norm(weights.input_norm, stream, layer, bucket));
  }
  TANDEM_RETURN_IF_ERROR(MultiplyAdapted({layer, kQueryKeyValueInput}, weights.query_key_value,
                                         begins_head ? attention_inputs_ : normed_, projected_, bucket));
  TANDEM_RETURN_IF_ERROR(PrepareAttention(layer, bucket));
  // The row's keys and values are written. The rest is needed only for its own logits and features.
  if (!bucket.reaches_end() && layer + 1 == weights_.layers.size()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(ComputeAttention(layer, bucket));
  if (config_.block.parallel) return ComputeParallel(layer, bucket);
  TANDEM_RETURN_IF_ERROR(
      MultiplyAndGather({layer, kAttentionOutInput}, weights.attention_out, attended_, bucket));
  DeviceSpan<const float> bias = weights.attention_out_bias;
  if (weights.attention_output_norm.exists()) {
    TANDEM_RETURN_IF_ERROR(NormInPlace(addends_, bias, weights.attention_output_norm, bucket));
    bias = {};
  }
  const Residual stream = Stream(bias, true, bucket);
  if (weights.experts.exist()) {
    TANDEM_RETURN_IF_ERROR(Norm(weights.mlp_norm, stream, std::nullopt, bucket, experts_.inputs));
    TANDEM_RETURN_IF_ERROR(ComputeExperts(layer, bucket));
  } else {
    TANDEM_RETURN_IF_ERROR(Norm(weights.mlp_norm, stream, std::nullopt, bucket));
    TANDEM_RETURN_IF_ERROR(ComputeGate(layer, bucket));
    TANDEM_RETURN_IF_ERROR(MultiplyAndGather({layer, kDownInput}, weights.down, gated_, bucket));
  }
  if (!weights.mlp_output_norm.exists()) return absl::OkStatus();
  return NormInPlace(addends_, weights.down_bias, weights.mlp_output_norm, bucket);
}

// The outputs of attention and of the feed-forward part stay side by side until the next norm adds both.
absl::Status CudaEngine::ComputeParallel(uint32_t layer, const Bucket& bucket) {
  const DeviceWeights::Layer& weights = weights_.layers[layer];
  TANDEM_RETURN_IF_ERROR(Norm(weights.mlp_norm, Stream({}, false, bucket), std::nullopt, bucket));
  TANDEM_RETURN_IF_ERROR(ComputeGate(layer, bucket));
  const uint64_t size = uint64_t{padded_rows_} * static_cast<uint64_t>(config_.hidden_size);
  TANDEM_RETURN_IF_ERROR(MultiplyAdapted({layer, kAttentionOutInput}, weights.attention_out, attended_,
                                         addends_.Part(0, size), bucket));
  return MultiplyAdapted({layer, kDownInput}, weights.down, gated_, addends_.Part(size, size), bucket);
}

GateLimits CudaEngine::Limits() const {
  const GateDescription& gate = config_.block.gate;
  return {.limit = gate.limit, .alpha = gate.alpha, .up_offset = gate.up_offset};
}

// An adapter never has a part for a shared expert (CheckAdapterFits).
absl::Status CudaEngine::ComputeGate(uint32_t layer, const Bucket& bucket) {
  const DeviceWeights::Layer& weights = weights_.layers[layer];
  TANDEM_RETURN_IF_ERROR(MultiplyAdapted({layer, kGateUpInput}, weights.gate_up, normed_, gate_up_, bucket));
  const uint32_t width = weights.gate_up.outputs / (config_.block.gated ? 2 : 1);
  const GateKernel gate = {.step = step_,
                           .gate_up = gate_up_,
                           .bias = weights.gate_up_bias,
                           .output = gated_,
                           .width = width,
                           .activation = static_cast<uint32_t>(config_.block.activation),
                           .gated = config_.block.gated,
                           .limits = Limits()};
  return ops_->Launch(gate, GateShape(bucket.rows, width));
}

absl::Status CudaEngine::PrepareAttention(uint32_t layer, const Bucket& bucket) {
  const DeviceWeights::Layer& weights = weights_.layers[layer];
  const LayerVariant variant = config_.block.layer(layer);
  const auto head_dim = static_cast<uint32_t>(config_.head_dim);
  const bool norms_all = config_.qk_norm && config_.block.qk_norm == QkNorm::kAll;
  if (norms_all) TANDEM_RETURN_IF_ERROR(NormAllHeads(weights, bucket));
  PrepareKernel prepare;
  prepare.step = step_;
  prepare.projected = projected_;
  prepare.bias = weights.query_key_value_bias;
  if (!norms_all) {
    prepare.query_norm = weights.query_norm;
    prepare.key_norm = weights.key_norm;
  }
  const bool is_local = variant.is_local && config_.block.local_rope_theta.has_value();
  prepare.rotations = is_local ? local_rotations_ : rotations_;
  const bool turns = config_.block.positions == PositionKind::kRotary && variant.rotates;
  prepare.num_unturned = turns ? head_dim - static_cast<uint32_t>(config_.rotary_dim()) : head_dim;
  prepare.pairs_adjacent = config_.block.rotary_pairs_adjacent;
  prepare.keys = kv_.Part(2 * layer * LayerKvSize(), LayerKvSize());
  prepare.values = kv_.Part((2 * layer + 1) * LayerKvSize(), LayerKvSize());
  prepare.layout = Layout();
  prepare.num_heads = shard_.heads.size();
  prepare.epsilon = config_.rms_norm_epsilon;
  const uint32_t num_all_heads = shard_.heads.size() + 2 * shard_.kv_heads.size();
  return ops_->Launch(prepare, PrepareShape(bucket.rows, num_all_heads));
}

absl::Status CudaEngine::ComputeAttention(uint32_t layer, const Bucket& bucket) {
  switch (AttendWords(static_cast<uint32_t>(config_.head_dim))) {
    case 1:
      return Attend<Attend64Kernel>(layer, bucket);
    case 2:
      return Attend<Attend128Kernel>(layer, bucket);
    default:
      return Attend<Attend256Kernel>(layer, bucket);
  }
}

template <typename Kernel>
absl::Status CudaEngine::Attend(uint32_t layer, const Bucket& bucket) {
  const auto head_dim = static_cast<uint32_t>(config_.head_dim);
  Kernel attend;
  attend.step = step_;
  attend.projected = projected_;
  attend.keys = kv_.Part(2 * layer * LayerKvSize(), LayerKvSize());
  attend.values = kv_.Part((2 * layer + 1) * LayerKvSize(), LayerKvSize());
  attend.parts = parts_;
  attend.layout = Layout();
  attend.heads = shard_.head_map;
  attend.row_width = (shard_.heads.size() + 2 * shard_.kv_heads.size()) * head_dim;
  attend.num_part_rows = attend_rows_;
  attend.scale = static_cast<float>(
      config_.block.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim))));
  attend.score_cap = config_.block.score_cap;
  attend.slopes = slopes_;
  if (!config_.block.layers.empty()) attend.window = static_cast<uint32_t>(config_.window(layer));
  const uint32_t columns = shard_.kv_heads.size() * shard_.head_map.parts_per_kv;
  const LaunchShape shape = AttendShape(ops_->num_multiprocessors(), columns, head_dim);
  for (uint32_t first = 0; first < bucket.rows; first += attend_rows_) {
    attend.first_row = first;
    TANDEM_RETURN_IF_ERROR(ops_->Launch(attend, shape));
    const uint32_t count = std::min(bucket.rows - first, attend_rows_);
    TANDEM_RETURN_IF_ERROR(
        ops_->Launch(FoldKernel{step_, parts_, attended_, first, weights_.layers[layer].sinks},
                     FoldShape(count, shard_.heads.size(), head_dim)));
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::ComputeWanted(uint32_t first_wanted, uint32_t wanted_bucket, const Bucket& bucket) {
  TANDEM_RETURN_IF_ERROR(ComputeLogits(first_wanted, wanted_bucket, bucket));
  if (parallel_.rank != 0 || !chooses()) return absl::OkStatus();
  const auto vocab = static_cast<uint32_t>(config_.vocab_size);
  return ops_->Launch(ChoiceKernel{step_, logits_, chosen_, first_wanted, vocab},
                      ChoiceShape(wanted_bucket, vocab));
}

absl::Status CudaEngine::ComputeLogits(uint32_t first_wanted, uint32_t wanted_bucket, const Bucket& bucket) {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  NormKernel norm;
  norm.step = step_;
  norm.residual = StreamAfter(weights_.layers.back(), bucket);
  norm.norm = NormOf(weights_.final_norm);
  norm.normed = normed_wanted_;
  norm.epsilon = config_.rms_norm_epsilon;
  norm.only_wanted = true;
  norm.first_wanted = first_wanted;
  TANDEM_RETURN_IF_ERROR(ops_->Launch(norm, NormShape(wanted_bucket, hidden)));
  if (is_alone()) {
    TANDEM_RETURN_IF_ERROR(Multiply(weights_.output, normed_wanted_, logits_, wanted_bucket));
    const BlockDescription& block = config_.block;
    if (block.logit_scale == 1.0f && block.logit_cap == 0.0f) return absl::OkStatus();
    const auto width = static_cast<uint32_t>(logit_width());
    return ops_->Launch(ScaleKernel{logits_, width, block.logit_scale, block.logit_cap},
                        GateShape(wanted_bucket, width));
  }
  TANDEM_RETURN_IF_ERROR(Multiply(weights_.output, normed_wanted_, logit_part_, wanted_bucket));
  TANDEM_RETURN_IF_ERROR(ops_->AllGather(logit_part_, logit_parts_));
  const auto vocab = static_cast<uint32_t>(config_.vocab_size);
  return ops_->Launch(JoinLogitsKernel{logit_parts_, vocab_begins_, logits_, logit_part_.size, vocab},
                      JoinLogitsShape(wanted_bucket, parallel_.world_size));
}

}  // namespace tandem

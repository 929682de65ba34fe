#include "common/engine/cuda/device_weights.h"

#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/engine/cuda/packed_tiles.h"
#include "common/engine/cuda/weight_uploader.h"

namespace tandem {
namespace {

// A part of a matrix: some of its outputs, beginning at a whole tile.
DeviceMatrix OutputsOf(const DeviceMatrix& matrix, ShardRange outputs) {
  DeviceMatrix part = matrix;
  part.outputs = outputs.size();
  if (matrix.format == DeviceFormat::kBf16) {
    part.data =
        matrix.data.Part(uint64_t{outputs.begin} * matrix.depth, uint64_t{outputs.size()} * matrix.depth);
    return part;
  }
  const uint64_t first_group = uint64_t{outputs.begin / kPackedOutputs} * NumInputGroups(matrix.depth);
  const uint64_t num_groups = uint64_t{NumPackedTiles(outputs.size())} * NumInputGroups(matrix.depth);
  const uint32_t group_words = PackedGroupWords(matrix.format);
  part.packed.words = matrix.packed.words.Part(first_group * group_words, num_groups * group_words);
  part.packed.scales = matrix.packed.scales.Part(first_group * kPackedOutputs, num_groups * kPackedOutputs);
  return part;
}

ShardRange Times(ShardRange range, uint32_t factor) {
  return {range.begin * factor, range.end * factor};
}

absl::StatusOr<DeviceWeights::Experts> UploadExperts(const LayerWeights& from, DeviceFormat format,
                                                     const Shard& shard, WeightUploader* up) {
  const ShardRange middle = shard.expert_intermediate;
  const auto hidden = static_cast<uint32_t>(from.router.shape.at(1));
  DeviceWeights::Experts to;
  TANDEM_ASSIGN_OR_RETURN(to.router, up->Matrix({&from.router, &from.shared_gate}));
  TANDEM_ASSIGN_OR_RETURN(to.router_bias, up->Vector(from.router_bias));
  std::vector<std::vector<RowPart>> inner, outer;
  std::vector<RowPart> inner_biases, outer_biases;
  for (const ExpertWeights& expert : from.experts) {
    inner.push_back({{expert.gate, middle}, {expert.up, middle}});
    outer.push_back({{expert.down, {0, hidden}}});
    inner_biases.push_back({expert.gate_bias, middle});
    inner_biases.push_back({expert.up_bias, middle});
    outer_biases.push_back({expert.down_bias, {0, hidden}});
  }
  TANDEM_ASSIGN_OR_RETURN(to.gate_up, up->Stack(format, inner, {0, hidden}));
  TANDEM_ASSIGN_OR_RETURN(to.gate_up_bias, up->Vector(inner_biases));
  TANDEM_ASSIGN_OR_RETURN(to.down, up->Stack(format, outer, middle));
  TANDEM_ASSIGN_OR_RETURN(to.down_bias, up->Vector(outer_biases));
  return to;
}

absl::StatusOr<DeviceWeights::Layer> UploadLayer(const LayerWeights& from, const ModelConfig& config,
                                                 DeviceFormat format, const Shard& shard,
                                                 WeightUploader* up) {
  const auto head_dim = static_cast<uint32_t>(config.head_dim);
  const ShardRange queries = Times(shard.heads, head_dim);
  const ShardRange kv = Times(shard.kv_heads, head_dim);
  DeviceWeights::Layer to;
  TANDEM_ASSIGN_OR_RETURN(to.input_norm, up->Norm(from.input_norm, from.input_norm_bias));
  TANDEM_ASSIGN_OR_RETURN(to.query_key_value,
                          up->Rows(format, {{from.query, queries}, {from.key, kv}, {from.value, kv}}));
  TANDEM_ASSIGN_OR_RETURN(
      to.query_key_value_bias,
      up->Vector({{from.query_bias, queries}, {from.key_bias, kv}, {from.value_bias, kv}}));
  TANDEM_ASSIGN_OR_RETURN(to.query_norm, up->NormVector(from.query_norm));
  TANDEM_ASSIGN_OR_RETURN(to.key_norm, up->NormVector(from.key_norm));
  TANDEM_ASSIGN_OR_RETURN(to.attention_out, up->Columns(format, from.attention_out, queries));
  TANDEM_ASSIGN_OR_RETURN(to.attention_output_norm,
                          up->Norm(from.attention_output_norm, from.attention_output_norm_bias));
  TANDEM_ASSIGN_OR_RETURN(to.sinks, up->Vector({{from.sinks, shard.heads}}));
  TANDEM_ASSIGN_OR_RETURN(to.mlp_norm, up->Norm(from.post_attention_norm, from.post_attention_norm_bias));
  // The intermediate size of a dense layer, or of the shared expert.
  const ShardRange middle = from.experts.empty() ? shard.intermediate : shard.shared_intermediate;
  if (from.gate.exists()) {
    TANDEM_ASSIGN_OR_RETURN(to.gate_up, up->Rows(format, {{from.gate, middle}, {from.up, middle}}));
  } else if (from.up.exists()) {
    TANDEM_ASSIGN_OR_RETURN(to.gate_up, up->Rows(format, {{from.up, middle}}));
  }
  TANDEM_ASSIGN_OR_RETURN(to.gate_up_bias, up->Vector({{from.gate_bias, middle}, {from.up_bias, middle}}));
  if (from.down.exists()) {
    TANDEM_ASSIGN_OR_RETURN(to.down, up->Columns(format, from.down, middle));
  }
  if (config.block.parallel) {
    TANDEM_ASSIGN_OR_RETURN(to.down_bias, up->Sum(from.attention_out_bias, from.down_bias));
  } else {
    TANDEM_ASSIGN_OR_RETURN(to.attention_out_bias, up->Vector(from.attention_out_bias));
    TANDEM_ASSIGN_OR_RETURN(to.down_bias, up->Vector(from.down_bias));
  }
  if (!from.experts.empty()) {
    TANDEM_ASSIGN_OR_RETURN(to.experts, UploadExperts(from, format, shard, up));
    // This bias belongs to the shared expert alone, not to the layer's sum.
    to.experts.shared_bias = std::exchange(to.down_bias, {});
  }
  TANDEM_ASSIGN_OR_RETURN(to.mlp_output_norm, up->Norm(from.mlp_output_norm, from.mlp_output_norm_bias));
  return to;
}

absl::StatusOr<DeviceWeights::Head> UploadHead(const HeadWeights& from, DeviceFormat format,
                                               WeightUploader* up) {
  DeviceWeights::Head to;
  if (from.projection.exists()) {
    const auto outputs = static_cast<uint32_t>(from.projection.shape.at(0));
    TANDEM_ASSIGN_OR_RETURN(to.projection, up->Rows(format, {{from.projection, {0, outputs}}}));
  }
  std::vector<RowPart> norms;
  for (const TensorView& norm : from.input_norms) {
    norms.push_back({norm, {0, static_cast<uint32_t>(norm.num_elements())}});
  }
  TANDEM_ASSIGN_OR_RETURN(to.input_norms, up->Vector(norms));
  TANDEM_ASSIGN_OR_RETURN(to.projection_bias, up->Vector(from.projection_bias));
  TANDEM_ASSIGN_OR_RETURN(to.embedding_norm, up->Vector(from.embedding_norm));
  TANDEM_ASSIGN_OR_RETURN(to.state_norm, up->Vector(from.state_norm));
  return to;
}

}  // namespace

absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, WeightType type, const Shard& shard,
                                            DeviceOps* ops, LoadProgress* progress) {
  const DeviceFormat format = FormatFor(type);
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightUploader> up,
      WeightUploader::Create(type, model.config().block.norm_weight_offset, ops, progress));
  const DeviceFormat format_of_tokens = FormatOfTokens(type);
  DeviceWeights weights;
  // Checked first, because uploading the other matrices takes long.
  if (format_of_tokens == DeviceFormat::kBf16) {
    TANDEM_RETURN_IF_ERROR(CheckBf16(model.embedding()));
    TANDEM_RETURN_IF_ERROR(CheckBf16(model.output()));
  }
  for (const LayerWeights& layer : model.layers()) {
    TANDEM_ASSIGN_OR_RETURN(DeviceWeights::Layer uploaded,
                            UploadLayer(layer, model.config(), format, shard, up.get()));
    weights.layers.push_back(uploaded);
  }
  const OuterWeights& outer = model.outer();
  TANDEM_ASSIGN_OR_RETURN(weights.final_norm, up->Norm(model.final_norm(), outer.final_norm_bias));
  TANDEM_ASSIGN_OR_RETURN(weights.positions, up->Matrix({&outer.positions}));
  TANDEM_ASSIGN_OR_RETURN(weights.embedding_norm, up->Norm(outer.embedding_norm, outer.embedding_norm_bias));
  const auto vocab = static_cast<uint32_t>(model.config().vocab_size);
  TANDEM_ASSIGN_OR_RETURN(weights.embedding, up->Rows(format_of_tokens, {{model.embedding(), {0, vocab}}}));
  ShardRange outputs = shard.vocab;
  if (model.config().head.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(weights.head, UploadHead(model.head(), format, up.get()));
    outputs = {0, static_cast<uint32_t>(model.output().shape.at(0))};
  }
  // A draft head may share both matrices with its target, whose output matrix may be its embedding.
  if (model.output().data == model.embedding().data && model.output().shape == model.embedding().shape) {
    TANDEM_ASSIGN_OR_RETURN(weights.output, up->Prepared(OutputsOf(weights.embedding, outputs)));
  } else {
    TANDEM_ASSIGN_OR_RETURN(weights.output, up->Rows(format_of_tokens, {{model.output(), outputs}}));
  }
  TANDEM_RETURN_IF_ERROR(ops->Synchronize());
  return weights;
}

absl::StatusOr<std::vector<DevicePosition>> UploadMedusa(const Model& model, WeightType type, DeviceOps* ops,
                                                         LoadProgress* progress) {
  const DeviceFormat format = FormatFor(type);
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightUploader> up,
      WeightUploader::Create(type, model.config().block.norm_weight_offset, ops, progress));
  const auto hidden = static_cast<uint32_t>(model.config().hidden_size);
  const auto vocab = static_cast<uint32_t>(model.config().vocab_size);
  std::vector<DevicePosition> positions;
  for (const HeadWeights::Position& from : model.head().positions) {
    DevicePosition to;
    for (size_t i = 0; i < from.blocks.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(to.blocks.emplace_back(), up->Rows(format, {{from.blocks[i], {0, hidden}}}));
      TANDEM_ASSIGN_OR_RETURN(to.block_biases.emplace_back(), up->Vector(from.block_biases[i]));
    }
    if (model.config().head->shares_output && !positions.empty()) {
      to.output = positions.front().output;
    } else {
      TANDEM_ASSIGN_OR_RETURN(to.output, up->Rows(FormatOfTokens(type), {{from.output, {0, vocab}}}));
    }
    positions.push_back(std::move(to));
  }
  TANDEM_RETURN_IF_ERROR(ops->Synchronize());
  return positions;
}

}  // namespace tandem

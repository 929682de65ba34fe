#include "common/engine/cuda/device_weights.h"

#include <cstring>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

// Rows of a tensor [outputs, depth], or elements of a vector.
struct RowPart {
  const TensorView& tensor;
  ShardRange rows;
};

class Uploader {
 public:
  Uploader(DeviceOps* ops, LoadProgress* progress) : ops_(ops), progress_(progress) {}

  // On top of one another.
  absl::StatusOr<DeviceMatrix> Rows(std::initializer_list<RowPart> parts) {
    const auto depth = static_cast<uint32_t>(parts.begin()->tensor.shape.at(1));
    uint32_t outputs = 0;
    for (const RowPart& part : parts) outputs += part.rows.size();
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<Bf16> data,
                            ops_->Allocate<Bf16>(uint64_t{outputs} * depth, "weights"));
    uint64_t at = 0;
    for (const RowPart& part : parts) {
      TANDEM_RETURN_IF_ERROR(CheckType(part.tensor));
      const auto* from = static_cast<const char*>(part.tensor.data);
      const uint64_t count = uint64_t{part.rows.size()} * depth;
      TANDEM_RETURN_IF_ERROR(ops_->Upload(
          data.data + at, from + uint64_t{part.rows.begin} * depth * sizeof(Bf16), count * sizeof(Bf16)));
      at += count;
      TANDEM_RETURN_IF_ERROR(Report(count * sizeof(Bf16)));
    }
    return Prepared({data, outputs, depth});
  }

  // Inputs [begin, end) of every output.
  absl::StatusOr<DeviceMatrix> Columns(const TensorView& tensor, ShardRange columns) {
    TANDEM_RETURN_IF_ERROR(CheckType(tensor));
    const auto outputs = static_cast<uint32_t>(tensor.shape.at(0));
    const auto depth = static_cast<uint64_t>(tensor.shape.at(1));
    if (columns.size() == depth) return Rows({{tensor, {0, outputs}}});
    const uint64_t count = uint64_t{outputs} * columns.size();
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<Bf16> data, ops_->Allocate<Bf16>(count, "weights"));
    std::vector<Bf16> gathered(count);
    const auto* from = static_cast<const char*>(tensor.data);
    for (uint64_t output = 0; output < outputs; ++output) {
      std::memcpy(&gathered[output * columns.size()], from + (output * depth + columns.begin) * sizeof(Bf16),
                  columns.size() * sizeof(Bf16));
    }
    TANDEM_RETURN_IF_ERROR(ops_->Upload(data.data, gathered.data(), count * sizeof(Bf16)));
    TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    TANDEM_RETURN_IF_ERROR(Report(count * sizeof(Bf16)));
    return Prepared({data, outputs, columns.size()});
  }

  // End to end; empty when the model has none of them.
  absl::StatusOr<DeviceSpan<const float>> Vector(std::initializer_list<RowPart> parts) {
    std::vector<float> joined;
    for (const RowPart& part : parts) {
      if (!part.tensor.exists()) continue;
      std::vector<float> floats(part.rows.size());
      ConvertRowsToFloat(part.tensor, part.rows.begin, part.rows.size(), absl::MakeSpan(floats));
      joined.insert(joined.end(), floats.begin(), floats.end());
      TANDEM_RETURN_IF_ERROR(
          Report(part.rows.size() * (part.tensor.dtype == TensorView::DType::kF32 ? 4 : 2)));
    }
    if (joined.empty()) return DeviceSpan<const float>();
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<float> data, ops_->Allocate<float>(joined.size(), "weights"));
    TANDEM_RETURN_IF_ERROR(ops_->Upload(data.data, joined.data(), joined.size() * sizeof(float)));
    TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    return DeviceSpan<const float>(data);
  }
  absl::StatusOr<DeviceSpan<const float>> Vector(const TensorView& tensor) {
    if (!tensor.exists()) return DeviceSpan<const float>();
    return Vector({{tensor, {0, static_cast<uint32_t>(tensor.shape.at(0))}}});
  }

  absl::StatusOr<DeviceMatrix> Prepared(const DeviceMatrix& matrix) {
    TANDEM_RETURN_IF_ERROR(ops_->PrepareProduct(matrix.outputs, matrix.depth));
    return matrix;
  }

 private:
  static absl::Status CheckType(const TensorView& tensor) {
    if (tensor.dtype == TensorView::DType::kBF16) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("the model's files hold a matrix ", ShapeText(tensor.shape), " in ",
                     tensor.dtype == TensorView::DType::kF32 ? "float32" : "float16",
                     "; on a GPU matrices are kept in bfloat16, and nothing is rounded silently: convert the "
                     "model first"));
  }
  absl::Status Report(uint64_t num_bytes) {
    return progress_ == nullptr ? absl::OkStatus() : progress_->Add(num_bytes);
  }

  DeviceOps* const ops_;
  LoadProgress* const progress_;
};

ShardRange Times(ShardRange range, uint32_t factor) {
  return {range.begin * factor, range.end * factor};
}

absl::StatusOr<DeviceWeights::Layer> UploadLayer(const LayerWeights& from, const ModelConfig& config,
                                                 const Shard& shard, Uploader* up) {
  const auto head_dim = static_cast<uint32_t>(config.head_dim);
  const ShardRange queries = Times(shard.heads, head_dim);
  const ShardRange kv = Times(shard.kv_heads, head_dim);
  const ShardRange middle = shard.intermediate;
  DeviceWeights::Layer to;
  TANDEM_ASSIGN_OR_RETURN(to.input_norm, up->Vector(from.input_norm));
  TANDEM_ASSIGN_OR_RETURN(to.query_key_value,
                          up->Rows({{from.query, queries}, {from.key, kv}, {from.value, kv}}));
  TANDEM_ASSIGN_OR_RETURN(
      to.query_key_value_bias,
      up->Vector({{from.query_bias, queries}, {from.key_bias, kv}, {from.value_bias, kv}}));
  TANDEM_ASSIGN_OR_RETURN(to.query_norm, up->Vector(from.query_norm));
  TANDEM_ASSIGN_OR_RETURN(to.key_norm, up->Vector(from.key_norm));
  TANDEM_ASSIGN_OR_RETURN(to.attention_out, up->Columns(from.attention_out, queries));
  TANDEM_ASSIGN_OR_RETURN(to.attention_out_bias, up->Vector(from.attention_out_bias));
  TANDEM_ASSIGN_OR_RETURN(to.post_attention_norm, up->Vector(from.post_attention_norm));
  TANDEM_ASSIGN_OR_RETURN(to.gate_up, up->Rows({{from.gate, middle}, {from.up, middle}}));
  TANDEM_ASSIGN_OR_RETURN(to.gate_up_bias, up->Vector({{from.gate_bias, middle}, {from.up_bias, middle}}));
  TANDEM_ASSIGN_OR_RETURN(to.down, up->Columns(from.down, middle));
  TANDEM_ASSIGN_OR_RETURN(to.down_bias, up->Vector(from.down_bias));
  return to;
}

}  // namespace

absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, const Shard& shard, DeviceOps* ops,
                                            LoadProgress* progress) {
  Uploader up(ops, progress);
  DeviceWeights weights;
  for (const LayerWeights& layer : model.layers()) {
    TANDEM_ASSIGN_OR_RETURN(DeviceWeights::Layer uploaded, UploadLayer(layer, model.config(), shard, &up));
    weights.layers.push_back(uploaded);
  }
  TANDEM_ASSIGN_OR_RETURN(weights.final_norm, up.Vector(model.final_norm()));
  const auto vocab = static_cast<uint32_t>(model.config().vocab_size);
  TANDEM_ASSIGN_OR_RETURN(const DeviceMatrix embedding, up.Rows({{model.embedding(), {0, vocab}}}));
  weights.embedding = embedding.data;
  if (model.config().tied_embeddings) {
    const uint64_t depth = embedding.depth;
    TANDEM_ASSIGN_OR_RETURN(
        weights.output,
        up.Prepared({embedding.data.Part(shard.vocab.begin * depth, shard.vocab.size() * depth),
                     shard.vocab.size(), embedding.depth}));
  } else {
    TANDEM_ASSIGN_OR_RETURN(weights.output, up.Rows({{model.output(), shard.vocab}}));
  }
  TANDEM_RETURN_IF_ERROR(ops->Synchronize());
  return weights;
}

}  // namespace tandem

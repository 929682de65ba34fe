#include "common/engine/cpu/cpu_weights.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

// Empty for a tensor that the model does not have.
std::vector<float> ToFloats(const TensorView& tensor) {
  if (tensor.data == nullptr) return {};
  std::vector<float> floats(static_cast<size_t>(tensor.num_elements()));
  ConvertToFloat(tensor, absl::MakeSpan(floats));
  return floats;
}

// `parts` end to end, where those that the model does not have are `sizes[i]` zeros; empty when it has none.
std::vector<float> JoinBiases(std::initializer_list<const TensorView*> parts,
                              std::initializer_list<int32_t> sizes) {
  std::vector<float> joined;
  bool any = false;
  auto size = sizes.begin();
  for (const TensorView* part : parts) {
    any |= part->data != nullptr;
    std::vector<float> floats = ToFloats(*part);
    floats.resize(static_cast<size_t>(*size++));
    joined.insert(joined.end(), floats.begin(), floats.end());
  }
  if (!any) joined.clear();
  return joined;
}

uint64_t SizeOf(const TensorView& tensor) {
  return static_cast<uint64_t>(tensor.num_elements()) * (tensor.dtype == TensorView::DType::kF32 ? 4 : 2);
}

class Packer {
 public:
  Packer(ThreadTeam* team, const LoadProgress& progress, uint64_t total_bytes)
      : team_(team), progress_(progress), total_bytes_(total_bytes) {}

  absl::StatusOr<PackedMatrix> Pack(std::initializer_list<TensorView> parts) {
    TANDEM_ASSIGN_OR_RETURN(PackedMatrix matrix, PackedMatrix::Pack(parts, team_));
    for (const TensorView& part : parts) done_bytes_ += SizeOf(part);
    if (progress_) progress_(done_bytes_, total_bytes_);
    return matrix;
  }

 private:
  ThreadTeam* const team_;
  const LoadProgress& progress_;
  const uint64_t total_bytes_;
  uint64_t done_bytes_ = 0;
};

uint64_t MatrixBytes(const Model& model) {
  uint64_t total = SizeOf(model.output());
  if (!model.config().tied_embeddings) total += SizeOf(model.embedding());
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView* matrix : {&layer.query, &layer.key, &layer.value, &layer.attention_out, &layer.gate,
                                     &layer.up, &layer.down}) {
      total += SizeOf(*matrix);
    }
  }
  return total;
}

absl::StatusOr<CpuWeights::Layer> PackLayer(const ModelConfig& config, const LayerWeights& from, Packer* packer) {
  CpuWeights::Layer to;
  to.input_norm = ToFloats(from.input_norm);
  TANDEM_ASSIGN_OR_RETURN(to.query_key_value, packer->Pack({from.query, from.key, from.value}));
  to.query_key_value_bias = JoinBiases({&from.query_bias, &from.key_bias, &from.value_bias},
                                       {config.query_size(), config.kv_size(), config.kv_size()});
  to.query_norm = ToFloats(from.query_norm);
  to.key_norm = ToFloats(from.key_norm);
  TANDEM_ASSIGN_OR_RETURN(to.attention_out, packer->Pack({from.attention_out}));
  to.attention_out_bias = ToFloats(from.attention_out_bias);
  to.post_attention_norm = ToFloats(from.post_attention_norm);
  TANDEM_ASSIGN_OR_RETURN(to.gate, packer->Pack({from.gate}));
  TANDEM_ASSIGN_OR_RETURN(to.up, packer->Pack({from.up}));
  TANDEM_ASSIGN_OR_RETURN(to.down, packer->Pack({from.down}));
  to.gate_bias = ToFloats(from.gate_bias);
  to.up_bias = ToFloats(from.up_bias);
  to.down_bias = ToFloats(from.down_bias);
  return to;
}

}  // namespace

absl::StatusOr<CpuWeights> PackWeights(const Model& model, ThreadTeam* team, const LoadProgress& progress) {
  Packer packer(team, progress, MatrixBytes(model));
  CpuWeights weights;
  weights.layers.reserve(model.layers().size());
  for (const LayerWeights& layer : model.layers()) {
    TANDEM_ASSIGN_OR_RETURN(CpuWeights::Layer packed, PackLayer(model.config(), layer, &packer));
    weights.layers.push_back(std::move(packed));
  }
  weights.final_norm = ToFloats(model.final_norm());
  TANDEM_ASSIGN_OR_RETURN(weights.output, packer.Pack({model.output()}));
  weights.tied_embeddings = model.config().tied_embeddings;
  if (!weights.tied_embeddings) {
    TANDEM_ASSIGN_OR_RETURN(weights.separate_embedding, packer.Pack({model.embedding()}));
  }
  return weights;
}

}  // namespace tandem

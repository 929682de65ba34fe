#include "common/engine/cpu/cpu_weights.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

// Matrices over tokens have more bits than the others, because each of their rows belongs to one token.
WeightType OfTokens(WeightType type) {
  if (type == WeightType::kInt4) return WeightType::kInt8;
  return type == WeightType::kW4A8 ? WeightType::kW8A8 : type;
}

WeightFormat FormatFor(WeightType type, absl::Span<const TensorView> parts) {
  switch (type) {
    case WeightType::kInt8:
      return WeightFormat::kInt8;
    case WeightType::kInt4:
      return WeightFormat::kInt4;
    case WeightType::kW8A8:
      return WeightFormat::kW8A8;
    case WeightType::kW4A8:
      return WeightFormat::kW4A8;
    case WeightType::kAsInFile:
    case WeightType::kExact:
    case WeightType::kBf16:
    // CreateCpuEngine refuses these.
    case WeightType::kFp8:
    case WeightType::kFp8Tensor:
      break;
  }
  return PackedMatrix::FormatOf(parts, type != WeightType::kExact);
}

// The format of the transposed part of latent attention's kv_up. Quantised codes have no transposed form.
WeightFormat KeyFormat(WeightType type, const TensorView& kv_up) {
  TensorView numbers = kv_up;
  if (numbers.dtype == TensorView::DType::kQuantized) numbers.dtype = TensorView::DType::kF32;
  return FormatFor(type, {numbers});
}

// Turns views into packed matrices and vectors, and reports progress. When loading should stop, it packs no
// further matrix; vectors are negligible.
class Packer {
 public:
  Packer(const Model& model, WeightType type, const KernelTable& kernels, ThreadTeam* team,
         LoadProgress* progress)
      : model_(model), type_(type), kernels_(kernels), team_(team), progress_(progress) {}

  // `parts` on top of one another.
  absl::StatusOr<PackedMatrix> Matrix(std::initializer_list<TensorView> parts) {
    return Matrix(parts, FormatFor(type_, parts));
  }
  // Its results choose the experts, so it is not rounded.
  absl::StatusOr<PackedMatrix> Router(const LayerWeights& from) {
    if (from.shared_gate.exists()) return Matrix({from.router, from.shared_gate}, WeightFormat::kF32);
    return Matrix({from.router}, WeightFormat::kF32);
  }
  absl::StatusOr<CpuWeights::Latent> Latent(const LayerWeights& from) {
    const LatentDescription& latent = model_.config().block.latent;
    CpuWeights::Latent to;
    if (latent.query_rank > 0) {
      to.query_norm = Vector(from.query_latent_norm);
      TANDEM_ASSIGN_OR_RETURN(to.query_up, Matrix({from.query_up}));
    }
    to.kv_norm = Vector(from.kv_latent_norm);
    TANDEM_RETURN_IF_ERROR(status_);
    int64_t row = 0;
    const auto pack = [&](const TensorView& matrix, WeightFormat format) {
      return PackedMatrix::Pack({matrix}, format, kernels_, team_);
    };
    const int32_t num_heads = model_.config().num_heads;
    for (int32_t head = 0; head < num_heads; ++head, row += latent.unturned_dim + latent.value_dim) {
      TANDEM_ASSIGN_OR_RETURN(to.value_up.emplace_back(),
                              pack(RowsOf(from.kv_up, row + latent.unturned_dim, latent.value_dim),
                                   FormatFor(type_, {from.kv_up})));
    }
    const std::vector<float> numbers = Vector(from.kv_up);
    const TensorView up = {
        .dtype = TensorView::DType::kF32, .shape = from.kv_up.shape, .data = numbers.data()};
    row = 0;
    for (int32_t head = 0; head < num_heads; ++head, row += latent.unturned_dim + latent.value_dim) {
      TANDEM_ASSIGN_OR_RETURN(
          to.key_up.emplace_back(),
          pack(TransposeOf(RowsOf(up, row, latent.unturned_dim)), KeyFormat(type_, from.kv_up)));
    }
    return to;
  }
  // A dense layer's feed-forward part, or a shared expert.
  absl::StatusOr<CpuWeights::Mlp> Mlp(const LayerWeights& from) {
    const ExpertWeights mlp = {.gate = from.gate,
                               .up = from.up,
                               .down = from.down,
                               .gate_bias = from.gate_bias,
                               .up_bias = from.up_bias,
                               .down_bias = from.down_bias};
    if (!mlp.up.exists()) return CpuWeights::Mlp();
    const WeightFormat format =
        mlp.gate.exists() ? FormatFor(type_, {mlp.gate, mlp.up}) : FormatFor(type_, {mlp.up});
    return Mlp(mlp, format, FormatFor(type_, {mlp.down}));
  }
  absl::StatusOr<std::vector<CpuWeights::Mlp>> Experts(const std::vector<ExpertWeights>& experts) {
    std::vector<TensorView> inner, outer;
    for (const ExpertWeights& expert : experts) {
      inner.push_back(expert.gate);
      inner.push_back(expert.up);
      outer.push_back(expert.down);
    }
    std::vector<CpuWeights::Mlp> packed;
    for (const ExpertWeights& expert : experts) {
      TANDEM_ASSIGN_OR_RETURN(packed.emplace_back(),
                              Mlp(expert, FormatFor(type_, inner), FormatFor(type_, outer)));
    }
    return packed;
  }
  // For matrices over tokens: the embedding or the output head.
  absl::StatusOr<PackedMatrix> TokenMatrix(const TensorView& tensor) {
    return Matrix({tensor}, FormatFor(OfTokens(type_), {tensor}));
  }
  // Empty if the model does not have the tensor.
  std::vector<float> Vector(const TensorView& tensor) {
    if (!tensor.exists()) return {};
    std::vector<float> floats(static_cast<size_t>(tensor.num_elements()));
    ConvertToFloat(tensor, absl::MakeSpan(floats));
    Report(tensor);
    return floats;
  }

  // Norms' weights are stored with their offset added, as the factors that norms multiply by.
  NormWeights Norm(const TensorView& weight, const TensorView& bias) {
    return {.weight = NormVector(weight), .bias = Vector(bias)};
  }
  std::vector<float> NormVector(const TensorView& weight) {
    std::vector<float> floats = Vector(weight);
    const float offset = model_.config().block.norm_weight_offset;
    if (offset != 0) {
      for (float& number : floats) number += offset;
    }
    return floats;
  }

  // Whether to continue loading.
  const absl::Status& status() const { return status_; }

  // Concatenates tensors; the model has all of them or none.
  std::vector<float> Vectors(std::initializer_list<TensorView> parts) {
    std::vector<float> joined;
    for (const TensorView& part : parts) {
      const std::vector<float> floats = Vector(part);
      joined.insert(joined.end(), floats.begin(), floats.end());
    }
    return joined;
  }

 private:
  // Gate and up have one format, because their common inputs are prepared once for both.
  absl::StatusOr<CpuWeights::Mlp> Mlp(const ExpertWeights& from, WeightFormat inner, WeightFormat outer) {
    CpuWeights::Mlp to;
    if (from.gate.exists()) {
      TANDEM_ASSIGN_OR_RETURN(to.gate, Matrix({from.gate}, inner));
    }
    TANDEM_ASSIGN_OR_RETURN(to.up, Matrix({from.up}, inner));
    TANDEM_ASSIGN_OR_RETURN(to.down, Matrix({from.down}, outer));
    to.gate_bias = Vector(from.gate_bias);
    to.up_bias = Vector(from.up_bias);
    to.down_bias = Vector(from.down_bias);
    return to;
  }
  absl::StatusOr<PackedMatrix> Matrix(std::initializer_list<TensorView> parts, WeightFormat format) {
    TANDEM_RETURN_IF_ERROR(status_);
    TANDEM_ASSIGN_OR_RETURN(PackedMatrix matrix, PackedMatrix::Pack(parts, format, kernels_, team_));
    for (const TensorView& part : parts) Report(part);
    return matrix;
  }
  // The tensor has been copied.
  void Report(const TensorView& tensor) {
    model_.Release(tensor);
    if (progress_ != nullptr) status_.Update(progress_->Add(tensor.num_bytes()));
  }

  const Model& model_;
  const WeightType type_;
  const KernelTable& kernels_;
  ThreadTeam* const team_;
  LoadProgress* const progress_;
  absl::Status status_;
};

absl::StatusOr<CpuWeights::Layer> PackLayer(const LayerWeights& from, const BlockDescription& block,
                                            Packer* packer) {
  CpuWeights::Layer to;
  NormWeights& first_norm = block.norms_follow_sums ? to.attention_sum_norm : to.input_norm;
  NormWeights& second_norm = block.norms_follow_sums ? to.mlp_sum_norm : to.mlp_norm;
  first_norm = packer->Norm(from.input_norm, from.input_norm_bias);
  if (block.latent.exists()) {
    const TensorView& query = block.latent.query_rank > 0 ? from.query_down : from.query;
    TANDEM_ASSIGN_OR_RETURN(to.query_key_value, packer->Matrix({query, from.kv_down}));
    TANDEM_ASSIGN_OR_RETURN(to.latent, packer->Latent(from));
  } else {
    TANDEM_ASSIGN_OR_RETURN(to.query_key_value, packer->Matrix({from.query, from.key, from.value}));
  }
  to.query_key_value_bias = packer->Vectors({from.query_bias, from.key_bias, from.value_bias});
  to.query_norm = packer->NormVector(from.query_norm);
  to.key_norm = packer->NormVector(from.key_norm);
  TANDEM_ASSIGN_OR_RETURN(to.attention_out, packer->Matrix({from.attention_out}));
  to.attention_out_bias = packer->Vector(from.attention_out_bias);
  to.attention_output_norm = packer->Norm(from.attention_output_norm, from.attention_output_norm_bias);
  second_norm = packer->Norm(from.post_attention_norm, from.post_attention_norm_bias);
  to.sinks = packer->Vector(from.sinks);
  TANDEM_ASSIGN_OR_RETURN(to.mlp, packer->Mlp(from));
  if (!from.experts.empty()) {
    TANDEM_ASSIGN_OR_RETURN(to.experts.router, packer->Router(from));
    to.experts.router_bias = packer->Vector(from.router_bias);
    to.experts.selection_bias = packer->Vector(from.selection_bias);
    TANDEM_ASSIGN_OR_RETURN(to.experts.each, packer->Experts(from.experts));
  }
  to.mlp_output_norm = packer->Norm(from.mlp_output_norm, from.mlp_output_norm_bias);
  return to;
}

absl::Status PackOuter(const OuterWeights& from, Packer* packer, CpuWeights* to) {
  to->positions = packer->Vector(from.positions);
  to->embedding_norm = packer->Norm(from.embedding_norm, from.embedding_norm_bias);
  if (!from.project_in.exists()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(to->project_in, packer->Matrix({from.project_in}));
  TANDEM_ASSIGN_OR_RETURN(to->project_out, packer->Matrix({from.project_out}));
  return absl::OkStatus();
}

absl::StatusOr<CpuWeights> PackMedusa(const Model& model, Packer* packer) {
  CpuWeights weights;
  const bool shares_output = model.config().head->shares_output;
  if (shares_output) {
    TANDEM_ASSIGN_OR_RETURN(weights.output, packer->TokenMatrix(model.output()));
  }
  for (const HeadWeights::Position& from : model.head().positions) {
    CpuWeights::Head::Position& to = weights.head.positions.emplace_back();
    for (size_t i = 0; i < from.blocks.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(to.blocks.emplace_back(), packer->Matrix({from.blocks[i]}));
      to.block_biases.push_back(packer->Vector(from.block_biases[i]));
    }
    if (shares_output) continue;
    TANDEM_ASSIGN_OR_RETURN(to.output, packer->TokenMatrix(from.output));
  }
  TANDEM_RETURN_IF_ERROR(packer->status());
  return weights;
}

}  // namespace

absl::StatusOr<CpuWeights> PackWeights(const Model& model, WeightType type, const KernelTable& kernels,
                                       ThreadTeam* team, LoadProgress* progress) {
  Packer packer(model, type, kernels, team, progress);
  if (!model.head().positions.empty()) return PackMedusa(model, &packer);
  CpuWeights weights;
  weights.layers.reserve(model.layers().size());
  for (const LayerWeights& layer : model.layers()) {
    TANDEM_ASSIGN_OR_RETURN(CpuWeights::Layer packed, PackLayer(layer, model.config().block, &packer));
    weights.layers.push_back(std::move(packed));
  }
  TANDEM_RETURN_IF_ERROR(PackOuter(model.outer(), &packer, &weights));
  weights.final_norm = packer.Norm(model.final_norm(), model.outer().final_norm_bias);
  TANDEM_ASSIGN_OR_RETURN(weights.output, packer.TokenMatrix(model.output()));
  if (model.config().head.has_value()) {
    const HeadWeights& from = model.head();
    if (from.projection.exists()) {
      TANDEM_ASSIGN_OR_RETURN(weights.head.projection, packer.Matrix({from.projection}));
    }
    for (const TensorView& norm : from.input_norms) {
      weights.head.input_norms.push_back(packer.Vector(norm));
    }
    weights.head.projection_bias = packer.Vector(from.projection_bias);
    weights.head.embedding_norm = packer.Vector(from.embedding_norm);
    weights.head.state_norm = packer.Vector(from.state_norm);
    weights.head.draft_tokens = from.draft_tokens;
    weights.head.embedding = model.embedding();
    weights.head.tokens_before = from.tokens_before;
    if (from.tokens_before_outputs.exists()) {
      TANDEM_ASSIGN_OR_RETURN(weights.head.tokens_before_outputs,
                              packer.TokenMatrix(from.tokens_before_outputs));
    }
    TANDEM_RETURN_IF_ERROR(packer.status());
    return weights;
  }
  weights.tied_embeddings = model.config().tied_embeddings;
  if (!weights.tied_embeddings) {
    TANDEM_ASSIGN_OR_RETURN(weights.separate_embedding, packer.TokenMatrix(model.embedding()));
  }
  TANDEM_RETURN_IF_ERROR(packer.status());
  return weights;
}

uint64_t BytesReadPerStep(const Model& model, WeightType type) {
  const auto bytes_in = [](WeightFormat format, int64_t outputs, int64_t depth) -> uint64_t {
    const WeightLayout& layout = PortableKernels().products[static_cast<size_t>(format)].layout;
    return layout.tile_bytes(static_cast<uint32_t>(depth)) * static_cast<uint64_t>(outputs) / kTileOutputs;
  };
  const auto bytes = [&](const TensorView& matrix, WeightType matrix_type) -> uint64_t {
    if (!matrix.exists()) return 0;
    return PackedMatrix::BytesOf(matrix, FormatFor(matrix_type, {matrix}), PortableKernels());
  };
  uint64_t sum = 0;
  for (const HeadWeights::Position& position : model.head().positions) {
    for (const TensorView& block : position.blocks) sum += bytes(block, type);
    const bool counted = position.output.data == model.output().data;
    if (!counted) sum += bytes(position.output, OfTokens(type));
  }
  sum += bytes(model.output(), OfTokens(type));
  for (const TensorView& matrix :
       {model.head().projection, model.outer().project_in, model.outer().project_out}) {
    sum += bytes(matrix, type);
  }
  const auto num_chosen = static_cast<uint64_t>(model.config().block.experts.num_chosen);
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView& matrix : DenseMatrices(layer)) sum += bytes(matrix, type);
    if (layer.kv_up.exists()) {
      // The transposed part may have another format.
      const LatentDescription& latent = model.config().block.latent;
      const int64_t rows = int64_t{model.config().num_heads} * latent.unturned_dim;
      sum += bytes_in(KeyFormat(type, layer.kv_up), int64_t{model.config().num_heads} * latent.kv_rank,
                      latent.unturned_dim);
      sum -= bytes(layer.kv_up, type) * static_cast<uint64_t>(rows) /
             static_cast<uint64_t>(layer.kv_up.shape.at(0));
    }
    for (const TensorView& matrix : {layer.router, layer.shared_gate}) {
      if (matrix.exists()) sum += sizeof(float) * static_cast<uint64_t>(matrix.num_elements());
    }
    if (layer.experts.empty()) continue;
    const ExpertWeights& expert = layer.experts.front();
    for (const TensorView& matrix : {expert.gate, expert.up, expert.down}) {
      sum += num_chosen * bytes(matrix, type);
    }
  }
  return sum;
}

}  // namespace tandem

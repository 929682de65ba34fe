#include "common/model/block_tensors.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

absl::Status TensorTaker::Take(const std::string& name, const std::vector<int64_t>& shape, TensorView& out) {
  TANDEM_ASSIGN_OR_RETURN(out, source_->Take(name, shape));
  num_bytes_ += out.num_bytes();
  num_parameters_ += static_cast<uint64_t>(out.num_elements());
  return absl::OkStatus();
}

absl::Status TensorTaker::TakeMxFp4(const std::string& name, const std::vector<int64_t>& shape,
                                    TensorView& out) {
  TANDEM_ASSIGN_OR_RETURN(out, source_->TakeMxFp4(name, shape));
  num_bytes_ += out.num_bytes();
  num_parameters_ += static_cast<uint64_t>(out.num_elements());
  return absl::OkStatus();
}

absl::Status TensorTaker::TakeIf(bool wanted, const std::string& name, const std::vector<int64_t>& shape,
                                 TensorView& out) {
  return wanted ? Take(name, shape, out) : absl::OkStatus();
}

void TensorTaker::Uncount(const TensorView& tensor) {
  num_bytes_ -= tensor.num_bytes();
  num_parameters_ -= static_cast<uint64_t>(tensor.num_elements());
}

std::string BlockTensors::FindRoot() const {
  const TensorNames& names = block_.names;
  for (const std::string& root : names.roots) {
    if (taker_->source().Contains(absl::StrCat(root, names.embedding, ".weight"))) return root;
  }
  return names.roots.front();
}

absl::Status BlockTensors::ReadNorm(const std::string& name, TensorView& weight, TensorView* bias) {
  const std::vector<int64_t> shape = {config_.hidden_size};
  TANDEM_RETURN_IF_ERROR(taker_->Take(absl::StrCat(name, ".weight"), shape, weight));
  const bool has_bias = block_.norm == NormKind::kLayer;
  return taker_->TakeIf(has_bias, absl::StrCat(name, ".bias"), shape, *bias);
}

absl::Status BlockTensors::ReadMatrix(const std::string& name, int64_t outputs, int64_t inputs,
                                      TensorView& out) {
  const std::string weight = absl::StrCat(name, ".weight");
  if (!block_.matrices_transposed) return taker_->Take(weight, {outputs, inputs}, out);
  TANDEM_RETURN_IF_ERROR(taker_->Take(weight, {inputs, outputs}, out));
  out = TransposeOf(out);
  return absl::OkStatus();
}

absl::Status BlockTensors::ReadSeparate(const std::string& prefix, int64_t inputs, LayerWeights& weights) {
  const TensorNames& names = block_.names;
  const int64_t query = config_.query_size(), kv = config_.kv_size();
  TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.query, query, inputs, weights.query));
  TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.key, kv, inputs, weights.key));
  TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.value, kv, inputs, weights.value));
  const bool bias = config_.attention_bias;
  TANDEM_RETURN_IF_ERROR(
      taker_->TakeIf(bias, absl::StrCat(prefix, names.query, ".bias"), {query}, weights.query_bias));
  TANDEM_RETURN_IF_ERROR(
      taker_->TakeIf(bias, absl::StrCat(prefix, names.key, ".bias"), {kv}, weights.key_bias));
  return taker_->TakeIf(bias, absl::StrCat(prefix, names.value, ".bias"), {kv}, weights.value_bias);
}

absl::Status BlockTensors::ReadFused(const std::string& prefix, int64_t inputs, LayerWeights& weights) {
  const std::string name = prefix + block_.names.query_key_value;
  const int64_t query = config_.query_size(), kv = config_.kv_size(), head = config_.head_dim;
  TensorView matrix, bias;
  TANDEM_RETURN_IF_ERROR(ReadMatrix(name, query + 2 * kv, inputs, matrix));
  TANDEM_RETURN_IF_ERROR(
      taker_->TakeIf(config_.attention_bias, absl::StrCat(name, ".bias"), {query + 2 * kv}, bias));
  const auto split = [&](const TensorView& fused, TensorView& queries, TensorView& keys, TensorView& values) {
    if (!fused.exists()) return;
    if (block_.qkv == QkvLayout::kPerHead) {
      queries = RowsOfGroups(fused, 3 * head, 0, head);
      keys = RowsOfGroups(fused, 3 * head, head, head);
      values = RowsOfGroups(fused, 3 * head, 2 * head, head);
    } else {
      queries = RowsOf(fused, 0, query);
      keys = RowsOf(fused, query, kv);
      values = RowsOf(fused, query + kv, kv);
    }
  };
  split(matrix, weights.query, weights.key, weights.value);
  split(bias, weights.query_bias, weights.key_bias, weights.value_bias);
  return absl::OkStatus();
}

absl::Status BlockTensors::ReadLatent(const std::string& prefix, int64_t inputs, LayerWeights& weights) {
  const LatentDescription& latent = block_.latent;
  const TensorNames& names = block_.names;
  const int64_t heads = config_.num_heads, kv_rank = latent.kv_rank, query_rank = latent.query_rank;
  const int64_t query = heads * latent.query_dim();
  const auto take_norm = [&](const std::string& name, int64_t size, TensorView& norm) {
    return taker_->Take(absl::StrCat(prefix, name, ".weight"), {size}, norm);
  };
  if (query_rank == 0) {
    TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.query, query, inputs, weights.query));
  } else {
    TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.query_down, query_rank, inputs, weights.query_down));
    TANDEM_RETURN_IF_ERROR(take_norm(names.query_latent_norm, query_rank, weights.query_latent_norm));
    TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.query_up, query, query_rank, weights.query_up));
  }
  TANDEM_RETURN_IF_ERROR(
      ReadMatrix(prefix + names.kv_down, kv_rank + latent.turned_dim, inputs, weights.kv_down));
  TANDEM_RETURN_IF_ERROR(take_norm(names.kv_latent_norm, kv_rank, weights.kv_latent_norm));
  return ReadMatrix(prefix + names.kv_up, heads * (latent.unturned_dim + latent.value_dim), kv_rank,
                    weights.kv_up);
}

absl::Status BlockTensors::ReadAttention(const std::string& prefix, int64_t inputs, LayerWeights& weights) {
  const TensorNames& names = block_.names;
  const int64_t hidden = config_.hidden_size, query = config_.query_size();
  if (block_.latent.exists()) {
    TANDEM_RETURN_IF_ERROR(ReadLatent(prefix, inputs, weights));
  } else {
    TANDEM_RETURN_IF_ERROR(block_.qkv == QkvLayout::kSeparate ? ReadSeparate(prefix, inputs, weights)
                                                              : ReadFused(prefix, inputs, weights));
  }
  TANDEM_RETURN_IF_ERROR(
      ReadMatrix(prefix + names.attention_out, hidden, config_.attended_size(), weights.attention_out));
  TANDEM_RETURN_IF_ERROR(taker_->TakeIf(config_.attention_output_bias,
                                        absl::StrCat(prefix, names.attention_out, ".bias"), {hidden},
                                        weights.attention_out_bias));
  TANDEM_RETURN_IF_ERROR(
      taker_->TakeIf(block_.sinks, prefix + names.sinks, {config_.num_heads}, weights.sinks));
  if (!config_.qk_norm) return absl::OkStatus();
  const bool of_all = block_.qk_norm == QkNorm::kAll;
  const int64_t query_norm = of_all ? query : config_.head_dim;
  const int64_t key_norm = of_all ? config_.kv_size() : config_.head_dim;
  TANDEM_RETURN_IF_ERROR(
      taker_->Take(absl::StrCat(prefix, names.query_norm, ".weight"), {query_norm}, weights.query_norm));
  return taker_->Take(absl::StrCat(prefix, names.key_norm, ".weight"), {key_norm}, weights.key_norm);
}

absl::Status BlockTensors::ReadFeedForward(const std::string& prefix, bool has_experts,
                                           LayerWeights& weights) {
  const TensorNames& names = block_.names;
  const int64_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
  if (!names.mlp_norm.empty()) {
    TANDEM_RETURN_IF_ERROR(
        ReadNorm(prefix + names.mlp_norm, weights.post_attention_norm, &weights.post_attention_norm_bias));
  }
  if (has_experts) return ReadExperts(prefix, weights);
  if (names.gate_up.empty()) {
    return ReadMlp({prefix + names.gate, prefix + names.up, prefix + names.down}, intermediate,
                   config_.mlp_bias, weights);
  }
  TensorView both;
  TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.gate_up, 2 * intermediate, hidden, both));
  weights.gate = RowsOf(both, 0, intermediate);
  weights.up = RowsOf(both, intermediate, intermediate);
  TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.down, hidden, intermediate, weights.down));
  return taker_->TakeIf(config_.mlp_bias, absl::StrCat(prefix, names.down, ".bias"), {hidden},
                        weights.down_bias);
}

template <typename Weights>
absl::Status BlockTensors::ReadMlp(const MlpNames& names, int64_t intermediate, bool bias, Weights& weights) {
  const int64_t hidden = config_.hidden_size;
  if (block_.gated) {
    TANDEM_RETURN_IF_ERROR(ReadMatrix(names.gate, intermediate, hidden, weights.gate));
    TANDEM_RETURN_IF_ERROR(
        taker_->TakeIf(bias, absl::StrCat(names.gate, ".bias"), {intermediate}, weights.gate_bias));
  }
  TANDEM_RETURN_IF_ERROR(ReadMatrix(names.up, intermediate, hidden, weights.up));
  TANDEM_RETURN_IF_ERROR(
      taker_->TakeIf(bias, absl::StrCat(names.up, ".bias"), {intermediate}, weights.up_bias));
  TANDEM_RETURN_IF_ERROR(ReadMatrix(names.down, hidden, intermediate, weights.down));
  return taker_->TakeIf(bias, absl::StrCat(names.down, ".bias"), {hidden}, weights.down_bias);
}

absl::Status BlockTensors::ReadExperts(const std::string& prefix, LayerWeights& weights) {
  const ExpertsDescription& experts = block_.experts;
  const TensorNames& names = block_.names;
  const int64_t hidden = config_.hidden_size, count = experts.num_experts;
  TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.router, count, hidden, weights.router));
  TANDEM_RETURN_IF_ERROR(taker_->TakeIf(experts.router_bias, absl::StrCat(prefix, names.router, ".bias"),
                                        {count}, weights.router_bias));
  TANDEM_RETURN_IF_ERROR(
      taker_->TakeIf(experts.selection_bias, prefix + names.selection_bias, {count}, weights.selection_bias));
  if (experts.shared_size > 0) {
    const std::string shared = prefix + names.shared_expert;
    TANDEM_RETURN_IF_ERROR(
        ReadMlp({shared + names.expert_gate, shared + names.expert_up, shared + names.expert_down},
                experts.shared_size, experts.biases, weights));
    if (experts.shared_gate) {
      TANDEM_RETURN_IF_ERROR(ReadMatrix(prefix + names.shared_gate, 1, hidden, weights.shared_gate));
    }
  }
  if (!names.experts_gate_up.empty()) return ReadFusedExperts(prefix, weights);
  for (int64_t i = 0; i < count; ++i) {
    const std::string expert = absl::StrCat(prefix, names.experts, i, ".");
    TANDEM_RETURN_IF_ERROR(
        ReadMlp({expert + names.expert_gate, expert + names.expert_up, expert + names.expert_down},
                experts.intermediate_size, experts.biases, weights.experts.emplace_back()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorView>> BlockTensors::ReadFusedMatrices(const std::string& name,
                                                                        int64_t outputs, int64_t inputs) {
  const int64_t count = block_.experts.num_experts;
  const bool is_mxfp4 = taker_->source().Contains(name + "_blocks");
  TensorView all;
  TANDEM_RETURN_IF_ERROR(is_mxfp4 ? taker_->TakeMxFp4(name, {count, outputs, inputs}, all)
                                  : taker_->Take(name, {count, inputs, outputs}, all));
  std::vector<TensorView> matrices;
  for (int64_t i = 0; i < count; ++i) {
    const TensorView matrix = MatrixOf(all, i);
    matrices.push_back(is_mxfp4 ? matrix : TransposeOf(matrix));
  }
  return matrices;
}

absl::Status BlockTensors::ReadFusedExperts(const std::string& prefix, LayerWeights& weights) {
  const ExpertsDescription& experts = block_.experts;
  const TensorNames& names = block_.names;
  const int64_t hidden = config_.hidden_size, count = experts.num_experts;
  const int64_t intermediate = experts.intermediate_size;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorView> inner,
                          ReadFusedMatrices(prefix + names.experts_gate_up, 2 * intermediate, hidden));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<TensorView> outer,
                          ReadFusedMatrices(prefix + names.experts_down, hidden, intermediate));
  TensorView inner_bias, outer_bias;
  TANDEM_RETURN_IF_ERROR(taker_->TakeIf(experts.biases, prefix + names.experts_gate_up + "_bias",
                                        {count, 2 * intermediate}, inner_bias));
  TANDEM_RETURN_IF_ERROR(
      taker_->TakeIf(experts.biases, prefix + names.experts_down + "_bias", {count, hidden}, outer_bias));
  for (int64_t i = 0; i < count; ++i) {
    ExpertWeights& expert = weights.experts.emplace_back();
    const auto index = static_cast<size_t>(i);
    // Gates and ups alternate.
    expert.gate = RowsOfGroups(inner[index], 2, 0, 1);
    expert.up = RowsOfGroups(inner[index], 2, 1, 1);
    expert.down = outer[index];
    if (!experts.biases) continue;
    expert.gate_bias = RowsOfGroups(MatrixOf(inner_bias, i), 2, 0, 1);
    expert.up_bias = RowsOfGroups(MatrixOf(inner_bias, i), 2, 1, 1);
    expert.down_bias = MatrixOf(outer_bias, i);
  }
  return absl::OkStatus();
}

absl::Status BlockTensors::ReadLayer(const std::string& prefix, bool has_experts, LayerWeights& weights) {
  const TensorNames& names = block_.names;
  if (!names.attention_norm.empty()) {
    TANDEM_RETURN_IF_ERROR(
        ReadNorm(prefix + names.attention_norm, weights.input_norm, &weights.input_norm_bias));
  }
  TANDEM_RETURN_IF_ERROR(ReadAttention(prefix, config_.hidden_size, weights));
  TANDEM_RETURN_IF_ERROR(ReadFeedForward(prefix, has_experts, weights));
  if (!names.attention_output_norm.empty()) {
    TANDEM_RETURN_IF_ERROR(ReadNorm(prefix + names.attention_output_norm, weights.attention_output_norm,
                                    &weights.attention_output_norm_bias));
  }
  if (!names.mlp_output_norm.empty()) {
    TANDEM_RETURN_IF_ERROR(
        ReadNorm(prefix + names.mlp_output_norm, weights.mlp_output_norm, &weights.mlp_output_norm_bias));
  }
  for (const std::string& buffer : names.buffers) taker_->source().Ignore(prefix + buffer);
  return absl::OkStatus();
}

absl::Status BlockTensors::ReadOuter(const std::string& root, OuterWeights& weights, TensorView& final_norm) {
  const TensorNames& names = block_.names;
  const int64_t hidden = config_.hidden_size;
  if (!names.positions.empty()) {
    TANDEM_RETURN_IF_ERROR(taker_->Take(absl::StrCat(root, names.positions, ".weight"),
                                        {int64_t{config_.max_context} + block_.position_offset, hidden},
                                        weights.positions));
  }
  if (!names.embedding_norm.empty()) {
    TANDEM_RETURN_IF_ERROR(
        ReadNorm(root + names.embedding_norm, weights.embedding_norm, &weights.embedding_norm_bias));
  }
  if (block_.embedding_size != 0) {
    const int64_t embedding = block_.embedding_size;
    TANDEM_RETURN_IF_ERROR(taker_->Take(absl::StrCat(root, names.project_in, ".weight"), {hidden, embedding},
                                        weights.project_in));
    TANDEM_RETURN_IF_ERROR(taker_->Take(absl::StrCat(root, names.project_out, ".weight"), {embedding, hidden},
                                        weights.project_out));
  }
  if (names.final_norm.empty()) return absl::OkStatus();
  return ReadNorm(root + names.final_norm, final_norm, &weights.final_norm_bias);
}

}  // namespace tandem

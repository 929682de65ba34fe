#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/config/model_config.h"
#include "common/model/model.h"
#include "common/model/tensor_source.h"

namespace tandem {

// Takes tensors from a source and counts what it took.
class TensorTaker {
 public:
  // `source` outlives this.
  explicit TensorTaker(TensorSource* source) : source_(source) {}

  TensorSource& source() { return *source_; }
  // As TensorSource::Take.
  absl::Status Take(const std::string& name, const std::vector<int64_t>& shape, TensorView& out);
  absl::Status TakeIf(bool wanted, const std::string& name, const std::vector<int64_t>& shape,
                      TensorView& out);
  // As TensorSource::TakeMxFp4.
  absl::Status TakeMxFp4(const std::string& name, const std::vector<int64_t>& shape, TensorView& out);
  // Says that the tensor, which has been taken, is another one's copy.
  void Uncount(const TensorView& tensor);

  uint64_t num_bytes() const { return num_bytes_; }
  uint64_t num_parameters() const { return num_parameters_; }

 private:
  TensorSource* const source_;
  uint64_t num_bytes_ = 0;
  uint64_t num_parameters_ = 0;
};

// Takes the tensors of a model's blocks and of what is around them as its description names and lays them
// out (BlockDescription). What is not in the description is left alone.
class BlockTensors {
 public:
  // Both outlive this.
  BlockTensors(const ModelConfig& config, TensorTaker* taker) : config_(config), taker_(taker) {}

  // What stands in front of the names: of `names.roots` the one that the source has the embedding behind.
  std::string FindRoot() const;

  // A whole layer; `prefix` stands in front of its names.
  absl::Status ReadLayer(const std::string& prefix, bool has_experts, LayerWeights& weights);
  // Its parts, of draft heads: attention without the norm in front of it, whose projections have so many
  // inputs, and all else.
  absl::Status ReadAttention(const std::string& prefix, int64_t inputs, LayerWeights& weights);
  absl::Status ReadFeedForward(const std::string& prefix, bool has_experts, LayerWeights& weights);
  // All but the layers, the embedding and the output matrix.
  absl::Status ReadOuter(const std::string& root, OuterWeights& weights, TensorView& final_norm);

 private:
  absl::Status ReadNorm(const std::string& name, TensorView& weight, TensorView* bias);
  // A matrix [outputs, inputs] in a layer, which the files may hold the other way round.
  absl::Status ReadMatrix(const std::string& name, int64_t outputs, int64_t inputs, TensorView& out);
  absl::Status ReadSeparate(const std::string& prefix, int64_t inputs, LayerWeights& weights);
  absl::Status ReadFused(const std::string& prefix, int64_t inputs, LayerWeights& weights);
  absl::Status ReadLatent(const std::string& prefix, int64_t inputs, LayerWeights& weights);
  // A gated or plain feed-forward part under these names, without its norm.
  struct MlpNames {
    std::string gate, up, down;
  };
  template <typename Weights>
  absl::Status ReadMlp(const MlpNames& names, int64_t intermediate, bool bias, Weights& weights);
  // The router, the experts and what they share.
  absl::Status ReadExperts(const std::string& prefix, LayerWeights& weights);
  // A matrix of every expert, as [experts, inputs, outputs] or in kMxFp4: of each expert [outputs, inputs].
  absl::StatusOr<std::vector<TensorView>> ReadFusedMatrices(const std::string& name, int64_t outputs,
                                                            int64_t inputs);
  absl::Status ReadFusedExperts(const std::string& prefix, LayerWeights& weights);

  const ModelConfig& config_;
  TensorTaker* const taker_;
};

}  // namespace tandem

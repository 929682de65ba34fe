#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/config/model_config.h"
#include "common/model/model.h"
#include "common/model/tensor_source.h"

namespace tandem {

// Takes tensors from a source, and counts their bytes and numbers.
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
  // Uncounts a taken tensor that is a copy of another one.
  void Uncount(const TensorView& tensor);

  uint64_t num_bytes() const { return num_bytes_; }
  uint64_t num_parameters() const { return num_parameters_; }

 private:
  TensorSource* const source_;
  uint64_t num_bytes_ = 0;
  uint64_t num_parameters_ = 0;
};

// Takes the tensors of a model's blocks and of the parts around them, with the names and layouts of its
// description (BlockDescription), which is the source's where that differs from a folder's. Ignores all other
// tensors.
class BlockTensors {
 public:
  // Both outlive this.
  BlockTensors(const ModelConfig& config, TensorTaker* taker)
      : config_(config), block_(config.block), taker_(taker) {
    taker->source().Describe(&block_);
  }

  const TensorNames& names() const { return block_.names; }

  // The prefix of the names: the one of `names.roots` under which the source has the embedding.
  std::string FindRoot() const;

  // Reads a whole layer. `prefix`: of its names.
  absl::Status ReadLayer(const std::string& prefix, bool has_experts, LayerWeights& weights);
  // Reads parts of a draft head's layer: attention without the norm before it, with projections of `inputs`
  // inputs, and the rest.
  absl::Status ReadAttention(const std::string& prefix, int64_t inputs, LayerWeights& weights);
  absl::Status ReadFeedForward(const std::string& prefix, bool has_experts, LayerWeights& weights);
  // Reads everything except layers, embedding and output matrix.
  absl::Status ReadOuter(const std::string& root, OuterWeights& weights, TensorView& final_norm);

 private:
  absl::Status ReadNorm(const std::string& name, TensorView& weight, TensorView* bias);
  // Reads a matrix [outputs, inputs] of a layer, which the files may hold transposed.
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
  // Reads the router, the experts and the shared expert.
  absl::Status ReadExperts(const std::string& prefix, LayerWeights& weights);
  // A matrix of every expert, as [experts, inputs, outputs] or in kMxFp4: of each expert [outputs, inputs].
  absl::StatusOr<std::vector<TensorView>> ReadFusedMatrices(const std::string& name, int64_t outputs,
                                                            int64_t inputs);
  absl::Status ReadFusedExperts(const std::string& prefix, LayerWeights& weights);

  const ModelConfig& config_;
  BlockDescription block_;
  TensorTaker* const taker_;
};

}  // namespace tandem

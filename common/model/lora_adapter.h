#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/config/model_config.h"
#include "common/model/safetensors.h"
#include "common/model/tensor_view.h"

namespace tandem {

// What an adapter adds to the product of one matrix with an input, bias included: scale * b * (a * input).
struct LoraPair {
  TensorView a;  // [rank, inputs]
  TensorView b;  // [outputs, rank]
  float scale = 0.0f;

  bool exists() const { return a.exists(); }
};

// Named like the matrices in LayerWeights; matrices that the adapter does not change have no pair. If the
// model's files store several matrices in one tensor, their pairs share one `a`.
struct LoraLayer {
  LoraPair query;
  LoraPair key;
  LoraPair value;
  LoraPair attention_out;
  LoraPair gate;
  LoraPair up;
  LoraPair down;
};

// A LoRA adapter in a PEFT folder, opened and checked against a model: adapter_config.json (lora_config.h)
// and adapter_model.safetensors. It has parts for matrices of attention and of dense feed-forward parts.
//
// Owns the file's mapping: views are valid as long as the adapter lives. Immutable once made.
class LoraAdapter {
 public:
  // Errors name the file, the field or tensor, and what was expected: NotFound for a missing file or tensor,
  // InvalidArgument for content that is wrong or does not fit the model, Unimplemented for what is valid and
  // not supported: an adapter of experts, of the embedding or the output matrix among others.
  static absl::StatusOr<std::shared_ptr<const LoraAdapter>> Load(const std::string& folder,
                                                                 const ModelConfig& config);

  const std::string& folder() const { return folder_; }
  // One for each of the model's layers.
  absl::Span<const LoraLayer> layers() const { return layers_; }
  uint32_t greatest_rank() const { return greatest_rank_; }
  uint64_t num_parameters() const { return num_parameters_; }
  // Hash of everything that affects results: equal for two adapters that compute the same.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  class Reader;

  LoraAdapter(std::string folder, SafetensorsFile file)
      : folder_(std::move(folder)), file_(std::move(file)) {}

  std::string folder_;
  SafetensorsFile file_;
  std::vector<LoraLayer> layers_;
  uint32_t greatest_rank_ = 0;
  uint64_t num_parameters_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace tandem

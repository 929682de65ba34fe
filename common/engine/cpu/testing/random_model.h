#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/model/model.h"

namespace tandem {

// For tests: what a small model with random weights should look like.
struct RandomModelOptions {
  ModelConfig config;  // The architecture is LlamaForCausalLM, MistralForCausalLM or Qwen3ForCausalLM.
  TensorView::DType dtype = TensorView::DType::kF32;
  std::optional<TensorView::DType> gate_dtype;  // If the gates' activation is another one.
  uint64_t seed = 1;
};

// Writes such a model to a temporary folder and loads it from there. A draft head stays in memory, in
// bfloat16. On an error, the test fails and the result is null.
std::shared_ptr<const Model> MakeRandomModel(const RandomModelOptions& options);

}  // namespace tandem

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
  std::optional<TensorView::DType> gate_dtype;  // Where the gates' is another.
  uint64_t seed = 1;
};

// Writes such a model to a temporary folder and loads it from there; a draft head stays in memory, in
// bfloat16. A test failure and null when that fails.
std::shared_ptr<const Model> MakeRandomModel(const RandomModelOptions& options);

}  // namespace tandem

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/temporary_folder.h"
#include "common/model/lora_adapter.h"
#include "common/model/model.h"
#include "nlohmann/json.hpp"

namespace tandem {

// For tests: the adapters of common/model/testdata/adapters, which make_adapters.py describes.

// Their names, in order.
std::vector<std::string> AdapterNames();
nlohmann::json AdapterGolden(const std::string& name);

// The model that they are of.
std::shared_ptr<const Model> MakeAdaptedModel(const nlohmann::json& golden,
                                              TensorView::DType dtype = TensorView::DType::kF32);

// Writes the adapter of that seed to a folder.
void WriteAdapter(const nlohmann::json& golden, uint64_t seed, const TemporaryFolder& folder,
                  TensorView::DType dtype = TensorView::DType::kF32);
// Writes it to a temporary one and loads it from there; a test failure and null when that fails.
std::shared_ptr<const LoraAdapter> MakeAdapter(const nlohmann::json& golden, uint64_t seed,
                                               const ModelConfig& model,
                                               TensorView::DType dtype = TensorView::DType::kF32);

}  // namespace tandem

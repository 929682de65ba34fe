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

// The model that the adapter belongs to.
std::shared_ptr<const Model> MakeAdaptedModel(const nlohmann::json& golden,
                                              TensorView::DType dtype = TensorView::DType::kF32);

// Writes the adapter of that seed to a folder.
void WriteAdapter(const nlohmann::json& golden, uint64_t seed, const TemporaryFolder& folder,
                  TensorView::DType dtype = TensorView::DType::kF32);
// Writes the adapter to a temporary folder and loads it from there; on an error, the test fails and the
// result is null.
std::shared_ptr<const LoraAdapter> MakeAdapter(const nlohmann::json& golden, uint64_t seed,
                                               const ModelConfig& model,
                                               TensorView::DType dtype = TensorView::DType::kF32);

}  // namespace tandem

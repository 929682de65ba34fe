#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/temporary_folder.h"
#include "nlohmann/json.hpp"

namespace tandem {

// For tests: the tiny models of common/model/testdata/quantized, which make_quantized_models.py describes.

// Their names, in order: one for each format of a checkpoint and each of its variants.
std::vector<std::string> QuantizedModelNames();

// The file of one: config, tensors, and the reference values.
nlohmann::json QuantizedGolden(const std::string& name);

// The bytes of its model.safetensors.
std::string QuantizedWeights(const nlohmann::json& golden);

// Writes config.json and model.safetensors.
void WriteQuantizedModel(const nlohmann::json& golden, const TemporaryFolder& folder);

// A tensor in a golden file, by its name; the test fails if there is none.
nlohmann::json& QuantizedTensorEntry(nlohmann::json& golden, absl::string_view name);

}  // namespace tandem

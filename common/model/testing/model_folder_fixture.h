#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "common/base/temporary_folder.h"
#include "common/model/model.h"

namespace tandem {

// The bytes of a safetensors file with this header, valid or not.
std::string SafetensorsBytes(absl::string_view header, absl::string_view data);

// Name, shape of a BF16 tensor.
using TensorShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

// A valid file of BF16 tensors, one after the other, filled with a pattern.
std::string SafetensorsBytes(const TensorShapes& tensors);

// A Llama of one layer: hidden 8, 2 heads of 4 over 1 key/value head, intermediate 6, vocabulary 10, untied.
nlohmann::json SmallConfig();
TensorShapes SmallTensors();

// Reads every byte of every tensor. The result may be anything, NaN included.
double SumOfWeights(const Model& model);

}  // namespace tandem

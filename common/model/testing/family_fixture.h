#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "nlohmann/json.hpp"

namespace tandem {

// For tests: the tiny models of common/model/testdata/families, which make_family_models.py describes.

// Their names, in order: one for each family and for each of its variants that computes otherwise.
std::vector<std::string> FamilyModelNames();

// The file of one: config, tensors, and the reference values of its models.
nlohmann::json FamilyGolden(const std::string& name);

// The bytes of a safetensors file of tensors as make_family_models.py lists them, which follow from the seed.
std::string GoldenTensorFile(const nlohmann::json& tensors, uint64_t seed, TensorView::DType dtype);

// Writes the model of that seed to a temporary folder, with weights in F32 or BF16, which hold the same
// numbers, and loads it from there. Errors are Model::Load's.
absl::StatusOr<std::shared_ptr<const Model>> LoadFamilyModel(const nlohmann::json& golden, uint64_t seed,
                                                             TensorView::DType dtype);
// The same; a test failure and null when that fails.
std::shared_ptr<const Model> MakeFamilyModel(const nlohmann::json& golden, uint64_t seed,
                                             TensorView::DType dtype = TensorView::DType::kF32);
// The first one of a name.
std::shared_ptr<const Model> MakeFamilyModel(const std::string& name,
                                             TensorView::DType dtype = TensorView::DType::kF32);

}  // namespace tandem

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

// Their names, in order: one for each family and for each variant that computes differently.
std::vector<std::string> FamilyModelNames();

// The file of one: config, tensors, and the reference values of its models.
nlohmann::json FamilyGolden(const std::string& name);

// The bytes of a safetensors file with the tensors that make_family_models.py lists. They depend only on the
// seed.
std::string GoldenTensorFile(const nlohmann::json& tensors, uint64_t seed, TensorView::DType dtype);

// Writes the model of that seed to a temporary folder and loads it from there. Weights are F32 or BF16, with
// the same numbers. Errors are those of Model::Load.
absl::StatusOr<std::shared_ptr<const Model>> LoadFamilyModel(const nlohmann::json& golden, uint64_t seed,
                                                             TensorView::DType dtype);
// The same; on an error, the test fails and the result is null.
std::shared_ptr<const Model> MakeFamilyModel(const nlohmann::json& golden, uint64_t seed,
                                             TensorView::DType dtype = TensorView::DType::kF32);
// The first model of that name.
std::shared_ptr<const Model> MakeFamilyModel(const std::string& name,
                                             TensorView::DType dtype = TensorView::DType::kF32);

}  // namespace tandem

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model.h"

namespace tandem {

// The number type of a model's matrices in an engine, chosen when the model is loaded. Norms and biases are
// always float32.
enum class WeightType {
  // "auto": weights are not rounded. On CPUs, where a file has integers with scales, products read those
  // integers and round inputs to 8 bits, as other engines do; all other products are exact.
  kAsInFile,
  kExact,  // On CPUs: the same with nothing rounded. Integers are multiplied as the numbers they stand for.
  kBf16,   // As kAsInFile, and an error unless the files have bfloat16.
  kInt8,   // 8.25 bits per weight: 8-bit integers, with a scale for every 64 of an output.
  kInt4,   // 4.25 bits per weight, the same. Output head and embedding have 8.25.
  // The weights of kInt8 and kInt4, on CPUs, with inputs of 8 bits instead of 15: many rows cost half the
  // work.
  kW8A8,
  kW4A8,
  // 8 bits per weight, on GPUs: e4m3 floats, with a scale for every output, or for every matrix. The output
  // head and the embedding stay in bfloat16, which the files must hold.
  kFp8,
  kFp8Tensor,
};

// The names on command lines, "auto" first.
std::vector<std::string> WeightTypeNames();
// Parses one of those names; InvalidArgument for anything else.
absl::StatusOr<WeightType> ParseWeightType(absl::string_view name);
absl::string_view WeightTypeName(WeightType type);

// Whether files hold any of the model's matrices in integers or 8-bit floats with scales
// (TensorView::DType::kQuantized), which engines convert.
bool HoldsQuantized(const Model& model);

// Whether any of them are integers in an order that kAsInFile multiplies as they are.
bool HoldsIntegers(const Model& model);

// The type in which an engine keeps the matrices of `model`: "int8", "int4", "w8a8", "w4a8", "fp8",
// "fp8-tensor", or the type in its files: "bf16", "f16" or "f32". Files with integers have "file-codes", or
// with kExact "f32", as have 8-bit floats.
absl::string_view KeptWeightType(const Model& model, WeightType type);

// Whether only engines on GPUs support the type.
bool IsGpuWeightType(WeightType type);

// InvalidArgument for a type that the CPU engine, or GPU engines, do not support.
absl::Status ValidateCpuWeightType(WeightType type);
absl::Status ValidateGpuWeightType(WeightType type);

// InvalidArgument for kBf16 if the model has matrices of another type, and for types of GPUs if its embedding
// or output head has another type.
absl::Status ValidateWeightType(const Model& model, WeightType type);

}  // namespace tandem

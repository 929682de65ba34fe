#include "common/engine/weight_type.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/quantized_matrix.h"

namespace tandem {
namespace {

constexpr WeightType kWeightTypes[] = {WeightType::kAsInFile, WeightType::kExact, WeightType::kBf16,
                                       WeightType::kInt8,     WeightType::kInt4,  WeightType::kW8A8,
                                       WeightType::kW4A8,     WeightType::kFp8,   WeightType::kFp8Tensor};

absl::string_view DTypeName(TensorView::DType dtype) {
  switch (dtype) {
    case TensorView::DType::kF32:
      return "f32";
    case TensorView::DType::kF16:
      return "f16";
    case TensorView::DType::kBF16:
      return "bf16";
    case TensorView::DType::kMxFp4:
      return "mxfp4";
    case TensorView::DType::kQuantized:
      return "integers or floats with scales";
  }
  return "unknown";
}

// bfloat16 holds MXFP4's numbers exactly.
bool IsBf16(const TensorView& matrix) {
  return matrix.dtype == TensorView::DType::kBF16 || matrix.dtype == TensorView::DType::kMxFp4;
}

absl::Status ExpectBf16(const Model& model, const TensorView& matrix, WeightType type) {
  if (!matrix.exists() || IsBf16(matrix)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "weight type ", WeightTypeName(type), ": ", model.folder(), " has a matrix ", ShapeText(matrix.shape),
      " in ", DTypeName(matrix.dtype), "; expected bf16, or the weight type auto, int8 or int4"));
}

bool IsQuantized(const TensorView& matrix) {
  return matrix.dtype == TensorView::DType::kQuantized;
}

template <typename Predicate>
bool HoldsMatrix(const Model& model, Predicate is_one) {
  if (is_one(model.output())) return true;
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView& matrix : DenseMatrices(layer)) {
      if (is_one(matrix)) return true;
    }
    for (const ExpertWeights& expert : layer.experts) {
      if (is_one(expert.gate) || is_one(expert.up) || is_one(expert.down)) return true;
    }
  }
  return false;
}

}  // namespace

absl::string_view WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kAsInFile:
      return "auto";
    case WeightType::kExact:
      return "exact";
    case WeightType::kBf16:
      return "bf16";
    case WeightType::kInt8:
      return "int8";
    case WeightType::kInt4:
      return "int4";
    case WeightType::kW8A8:
      return "w8a8";
    case WeightType::kW4A8:
      return "w4a8";
    case WeightType::kFp8:
      return "fp8";
    case WeightType::kFp8Tensor:
      return "fp8-tensor";
  }
  return "unknown";
}

std::vector<std::string> WeightTypeNames() {
  std::vector<std::string> names;
  for (const WeightType each : kWeightTypes) names.emplace_back(WeightTypeName(each));
  return names;
}

absl::StatusOr<WeightType> ParseWeightType(absl::string_view name) {
  for (const WeightType each : kWeightTypes) {
    if (name == WeightTypeName(each)) return each;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("weight type \"", name, "\", expected one of ", absl::StrJoin(WeightTypeNames(), ", ")));
}

bool HoldsQuantized(const Model& model) {
  return HoldsMatrix(model, IsQuantized);
}

bool HoldsIntegers(const Model& model) {
  return HoldsMatrix(model, [](const TensorView& matrix) {
    if (!IsQuantized(matrix)) return false;
    const Coding coding = matrix.quantized->coding();
    return coding.is_coded && !coding.is_float;
  });
}

absl::string_view KeptWeightType(const Model& model, WeightType type) {
  const bool is_as_in_file =
      type == WeightType::kAsInFile || type == WeightType::kExact || type == WeightType::kBf16;
  if (!is_as_in_file) return WeightTypeName(type);
  if (type != WeightType::kExact && HoldsIntegers(model)) return "file-codes";
  if (HoldsQuantized(model)) return DTypeName(TensorView::DType::kF32);
  return DTypeName(model.embedding().exists() ? model.embedding().dtype : model.output().dtype);
}

bool IsGpuWeightType(WeightType type) {
  return type == WeightType::kFp8 || type == WeightType::kFp8Tensor;
}

absl::Status ValidateCpuWeightType(WeightType type) {
  if (!IsGpuWeightType(type)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weight type ", WeightTypeName(type),
                   " on the device cpu, which has no such kernels; expected auto, "
                   "exact, bf16, int8, int4, w8a8 or w4a8, or a GPU (--device=cuda)"));
}

absl::Status ValidateGpuWeightType(WeightType type) {
  if (type != WeightType::kExact && type != WeightType::kW8A8 && type != WeightType::kW4A8) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "weight type ", WeightTypeName(type),
      " on a GPU, which has no such kernels; expected auto, bf16, int8, int4, fp8 or fp8-tensor, or the "
      "device cpu"));
}

absl::Status ValidateWeightType(const Model& model, WeightType type) {
  if (type != WeightType::kBf16 && !IsGpuWeightType(type)) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(ExpectBf16(model, model.embedding(), type));
  TANDEM_RETURN_IF_ERROR(ExpectBf16(model, model.output(), type));
  if (type != WeightType::kBf16) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(ExpectBf16(model, model.head().projection, type));
  for (const HeadWeights::Position& position : model.head().positions) {
    TANDEM_RETURN_IF_ERROR(ExpectBf16(model, position.output, type));
    for (const TensorView& block : position.blocks) TANDEM_RETURN_IF_ERROR(ExpectBf16(model, block, type));
  }
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView& matrix : DenseMatrices(layer)) {
      TANDEM_RETURN_IF_ERROR(ExpectBf16(model, matrix, type));
    }
    for (const ExpertWeights& expert : layer.experts) {
      for (const TensorView& matrix : {expert.gate, expert.up, expert.down}) {
        TANDEM_RETURN_IF_ERROR(ExpectBf16(model, matrix, type));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem

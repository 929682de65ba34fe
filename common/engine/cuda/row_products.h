#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/weight_type.h"

namespace tandem {

// Products of rows with a weight matrix in any of the device's formats. bfloat16 matrices use the device's
// products, 64 rows at a time; packed weights use Tandem's own kernels.

// Rounds `rows` up to whole tiles.
uint64_t PaddedRows(uint64_t rows);

bool HasIntegerWeights(WeightType type);

// InvalidArgument when a block of threads has too little shared memory for products of so many rows or more.
// Products with experts have kernels for every type.
absl::Status CheckProductMemory(WeightType type, bool has_experts, uint32_t num_rows, const DeviceOps& ops);

// Room for the rounded inputs of products with integers, for `rows` rows of the deepest matrix; none for
// other types.
absl::StatusOr<RoundedInputs> AllocateRoundedInputs(WeightType type, uint64_t rows, uint64_t depth,
                                                    DeviceOps* ops);
// The same, for so many groups of kInputGroup inputs.
absl::StatusOr<RoundedInputs> AllocateRoundedGroups(WeightType type, uint64_t groups, DeviceOps* ops);

// outputs [rows, matrix.outputs] = inputs [rows, matrix.depth] * matrix^T. `num_rows`: of a bucket. Rows up
// to a multiple of kRowTile exist in both, and may be computed. `rounded`: from AllocateRoundedInputs.
absl::Status MultiplyRows(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                          DeviceSpan<float> outputs, uint32_t num_rows, const RoundedInputs& rounded,
                          DeviceOps* ops);

// The same for the items of a plan, each with its expert's matrix of a stack (WeightUploader::Stack).
// `num_rows` is the bucket's. Inputs are per row or per choice, and outputs per choice.
struct ExpertProduct {
  ExpertSizes sizes;
  ExpertRows rows;
  uint32_t num_rows = 0;
};
absl::Status MultiplyExpertRows(const DeviceMatrix& stack, const ExpertProduct& product,
                                DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                                const RoundedInputs& rounded, DeviceOps* ops);

}  // namespace tandem

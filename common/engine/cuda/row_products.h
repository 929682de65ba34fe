#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/weight_type.h"

namespace tandem {

// Products of rows with a weight matrix in any of the device's formats, as engines put them together: in
// bfloat16 those of the device, 64 rows at a time, and of packed weights own kernels.

// `rows` in whole tiles.
uint64_t PaddedRows(uint64_t rows);

bool HasIntegerWeights(WeightType type);

// InvalidArgument when a block of threads has too little shared memory for products of so many rows or more.
absl::Status CheckProductMemory(WeightType type, uint32_t num_rows, const DeviceOps& ops);

// Room for what products with integers multiply, of so many rows and the deepest matrix; none for other
// types.
absl::StatusOr<RoundedInputs> AllocateRoundedInputs(WeightType type, uint64_t rows, uint64_t depth,
                                                    DeviceOps* ops);

// outputs [rows, matrix.outputs] = inputs [rows, matrix.depth] * matrix^T. `num_rows` is a bucket's. Rows up
// to a multiple of kRowTile are there in both, and may be computed. `rounded`: as AllocateRoundedInputs gave
// it.
absl::Status MultiplyRows(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                          DeviceSpan<float> outputs, uint32_t num_rows, const RoundedInputs& rounded,
                          DeviceOps* ops);

}  // namespace tandem

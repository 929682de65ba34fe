#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device.h"
#include "common/engine/cuda/device_ops.h"

namespace tandem {

// Products of kRowTile rows through cuBLASLt: bfloat16 inputs, float32 sums and outputs. Each shape has
// one fixed algorithm: the first that cuBLASLt lists among those that do not split the sum
// (docs/inside/decisions/0009-one-row-tile.md). It is not the fastest by measurement, because a measurement
// could choose differently at the next start.
class MatrixProducts {
 public:
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(CudaPool* pool);
  ~MatrixProducts();

  // Unimplemented when cuBLASLt knows no way.
  absl::Status Prepare(uint32_t outputs, uint32_t depth);
  absl::Status Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                        const CudaStream& stream);

 private:
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t weights = nullptr;
    cublasLtMatrixLayout_t inputs = nullptr;
    cublasLtMatrixLayout_t outputs = nullptr;
    cublasLtMatmulAlgo_t algorithm;
  };

  MatrixProducts() = default;
  static absl::Status Describe(uint32_t outputs, uint32_t depth, Plan* plan);
  absl::Status Choose(uint32_t outputs, uint32_t depth, Plan* plan);
  static void Destroy(const Plan& plan);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<std::pair<uint32_t, uint32_t>, Plan> plans_;  // By outputs and depth.
};

}  // namespace tandem

#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device.h"
#include "common/engine/cuda/device_ops.h"

namespace tandem {

// Products of tiles of kRowTile rows through cuBLASLt: bfloat16 inputs, float32 sums and outputs. Each shape
// has one fixed algorithm: the first that cuBLASLt lists among those that do not split the sum
// (docs/inside/decisions/0009-one-row-tile.md). It is not the fastest by measurement, because a measurement
// could choose differently at the next start.
//
// A matrix of few outputs and many inputs has too little work side by side for a large GPU. Its sums are
// computed in parts, as a batch of products, and a kernel adds these in order. The number of parts depends on
// the matrix's shape alone.
//
// Prompts have many rows, which larger products compute faster than tiles do. Such a product is used only if
// it gives the bits of the tiles, which Prepare finds out by multiplying: an algorithm adds up in the same
// order for all numbers, so one that adds up in another order shows in some of a million sums.
class MatrixProducts {
 public:
  // `pool` outlives the object.
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(CudaPool* pool);
  ~MatrixProducts();

  // As DeviceOps::PrepareProduct. Unimplemented if cuBLASLt has no algorithm.
  absl::Status Prepare(const DeviceMatrix& matrix, const CudaStream& stream);
  // As DeviceOps::Multiply.
  absl::Status Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                        uint32_t num_rows, const CudaStream& stream);

 private:
  // How cuBLASLt sees the matrices of one call.
  struct Layouts {
    cublasLtMatrixLayout_t weights = nullptr;
    cublasLtMatrixLayout_t inputs = nullptr;
    cublasLtMatrixLayout_t outputs = nullptr;

    Layouts() = default;
    Layouts(const Layouts&) = delete;
    Layouts& operator=(const Layouts&) = delete;
    ~Layouts();
  };
  // A product of `num_rows` rows, in all parts.
  struct Product {
    uint32_t num_rows = kRowTile;
    Layouts layouts;
    cublasLtMatmulAlgo_t algorithm;
  };
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    uint32_t num_parts = 1;
    Product tile;
    std::vector<std::unique_ptr<Product>> wider;  // With the bits of tiles. From many rows to few.
    bool is_compared = false;                     // Whether it is known which are.

    ~Plan();
  };

  explicit MatrixProducts(CudaPool* pool) : pool_(pool) {}
  static absl::Status Describe(const DeviceMatrix& matrix, uint32_t num_parts, uint32_t num_rows,
                               Layouts* layouts);
  absl::Status Choose(cublasLtMatmulDesc_t operation, Product* product);
  // Fills plan->wider, if there is the memory to find out.
  absl::Status CompareWider(const DeviceMatrix& matrix, const CudaStream& stream, Plan* plan);
  // One call of the product and, if it is in parts, their sum.
  absl::Status Compute(const Plan& plan, const Product& product, const DeviceMatrix& matrix,
                       const Bf16* inputs, DeviceSpan<float> outputs, const CudaStream& stream);
  absl::Status ReserveParts(const Plan& plan, uint32_t num_rows, uint32_t outputs);

  CudaPool* pool_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  DeviceSpan<float> parts_;                                               // For the largest product in parts.
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Plan>> plans_;  // By outputs and depth.
};

}  // namespace tandem

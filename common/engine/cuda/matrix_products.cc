#include "common/engine/cuda/matrix_products.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cuda/launch_kernels.h"
#include "common/engine/cuda/launch_shape.h"

namespace tandem {
namespace {

constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;
// For all inputs and results: a rank's tied output matrix may begin anywhere in the embedding.
constexpr uint32_t kAlignment = 16;
// The most rows of one product. Output matrices multiply few rows.
constexpr uint32_t kWidest = 512;
constexpr uint32_t kMostWideOutputs = 65536;

absl::Status LtStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", cublasLtGetStatusName(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                              : absl::InternalError(message);
}

// With few outputs, sums are halved until none is longer than kLongestSum inputs, or there are enough of
// them.
uint32_t NumParts(uint32_t outputs, uint32_t depth) {
  constexpr uint64_t kFewOutputs = 12288;
  constexpr uint32_t kLongestSum = 4096;
  uint32_t parts = 1;
  while (parts * uint64_t{outputs} < kFewOutputs && depth / parts > kLongestSum &&
         depth % (2 * parts * kInputGroup) == 0) {
    parts *= 2;
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProducts>> MatrixProducts::Create(CudaPool* pool) {
  std::unique_ptr<MatrixProducts> products(new MatrixProducts(pool));
  TANDEM_RETURN_IF_ERROR(LtStatus(cublasLtCreate(&products->handle_), "opening cuBLASLt"));
  TANDEM_ASSIGN_OR_RETURN(products->workspace_, pool->Allocate(kWorkspaceBytes, "matrix products"));
  return products;
}

MatrixProducts::~MatrixProducts() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

MatrixProducts::Layouts::~Layouts() {
  for (const cublasLtMatrixLayout_t layout : {weights, inputs, outputs}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
}

MatrixProducts::Plan::~Plan() {
  if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
}

// cuBLASLt counts in columns: a matrix [outputs, depth] in rows is [depth, outputs] in columns, and the
// product is outputs^T = weights * inputs^T.
absl::Status MatrixProducts::Describe(const DeviceMatrix& matrix, uint32_t num_parts, uint32_t num_rows,
                                      Layouts* layouts) {
  const uint32_t depth = matrix.depth;
  const uint32_t part_depth = depth / num_parts;
  const auto count = static_cast<int32_t>(num_parts);
  const auto describe = [count](cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint32_t rows,
                                uint32_t columns, uint32_t distance, uint64_t next) {
    cublasStatus_t status = cublasLtMatrixLayoutCreate(layout, type, rows, columns, distance);
    const auto stride = static_cast<int64_t>(next);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                sizeof(count));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                sizeof(stride));
    }
    return LtStatus(status, "describing a matrix product");
  };
  // A batch has the parts, side by side.
  TANDEM_RETURN_IF_ERROR(
      describe(&layouts->weights, CUDA_R_16BF, part_depth, matrix.outputs, depth, part_depth));
  TANDEM_RETURN_IF_ERROR(describe(&layouts->inputs, CUDA_R_16BF, part_depth, num_rows, depth, part_depth));
  return describe(&layouts->outputs, CUDA_R_32F, matrix.outputs, num_rows, matrix.outputs,
                  uint64_t{num_rows} * matrix.outputs);
}

// Unimplemented if there is none.
absl::Status MatrixProducts::Choose(cublasLtMatmulDesc_t operation, Product* product) {
  const char* const what = "choosing an algorithm";
  cublasLtMatmulPreference_t preference = nullptr;
  TANDEM_RETURN_IF_ERROR(LtStatus(cublasLtMatmulPreferenceCreate(&preference), what));
  const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  cublasStatus_t status = set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_reduction);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  for (const cublasLtMatmulPreferenceAttributes_t attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    if (status == CUBLAS_STATUS_SUCCESS) status = set(attribute, kAlignment);
  }
  cublasLtMatmulHeuristicResult_t result = {};
  int num_results = 0;
  const Layouts& layouts = product->layouts;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status =
        cublasLtMatmulAlgoGetHeuristic(handle_, operation, layouts.weights, layouts.inputs, layouts.outputs,
                                       layouts.outputs, preference, 1, &result, &num_results);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && num_results == 0)) {
    return absl::UnimplementedError("no algorithm that does not split sums");
  }
  TANDEM_RETURN_IF_ERROR(LtStatus(status, what));
  TANDEM_RETURN_IF_ERROR(LtStatus(result.state, what));
  product->algorithm = result.algo;
  return absl::OkStatus();
}

absl::Status MatrixProducts::ReserveParts(const Plan& plan, uint32_t num_rows, uint32_t outputs) {
  const uint64_t size = uint64_t{plan.num_parts} * num_rows * outputs;
  if (plan.num_parts == 1 || size <= parts_.size) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(void* const data, pool_->AllocateBlock(size * sizeof(float), "matrix products"));
  if (parts_.size > 0) pool_->FreeBlock(parts_.data);
  parts_ = {static_cast<float*>(data), size};
  return absl::OkStatus();
}

absl::Status MatrixProducts::Prepare(const DeviceMatrix& matrix, const CudaStream& stream) {
  std::unique_ptr<Plan>& known = plans_[{matrix.outputs, matrix.depth}];
  if (known != nullptr)
    return known->is_compared ? absl::OkStatus() : CompareWider(matrix, stream, known.get());
  auto plan = std::make_unique<Plan>();
  const char* const what = "describing a matrix product";
  TANDEM_RETURN_IF_ERROR(
      LtStatus(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), what));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  TANDEM_RETURN_IF_ERROR(LtStatus(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                                 &transposed, sizeof(transposed)),
                                  what));
  plan->num_parts = NumParts(matrix.outputs, matrix.depth);
  TANDEM_RETURN_IF_ERROR(Describe(matrix, plan->num_parts, kRowTile, &plan->tile.layouts));
  const absl::Status chosen = Choose(plan->operation, &plan->tile);
  if (absl::IsUnimplemented(chosen)) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt, for a matrix of ", matrix.outputs,
                                                 " outputs and ", matrix.depth,
                                                 " inputs: ", chosen.message()));
  }
  TANDEM_RETURN_IF_ERROR(chosen);
  TANDEM_RETURN_IF_ERROR(ReserveParts(*plan, kRowTile, matrix.outputs));
  known = std::move(plan);
  return CompareWider(matrix, stream, known.get());
}

absl::Status MatrixProducts::CompareWider(const DeviceMatrix& matrix, const CudaStream& stream, Plan* plan) {
  if (matrix.outputs > kMostWideOutputs) {
    plan->is_compared = true;
    return absl::OkStatus();
  }
  const uint64_t num_inputs = uint64_t{kWidest} * matrix.depth;
  const uint64_t num_outputs = uint64_t{kWidest} * matrix.outputs;
  // A GPU without the memory for this computes tiles, with the same bits.
  const absl::StatusOr<void*> room =
      pool_->AllocateBlock(2 * num_outputs * sizeof(float) + num_inputs * sizeof(Bf16), "matrix products");
  if (absl::IsResourceExhausted(room.status())) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(room.status());
  const absl::Cleanup give_back = [this, &room] { pool_->FreeBlock(*room); };
  auto* const by_tiles = static_cast<float*>(*room);
  float* const by_one = by_tiles + num_outputs;
  auto* const from = reinterpret_cast<Bf16*>(by_one + num_outputs);
  std::vector<Bf16> numbers(num_inputs);
  std::mt19937 random(1);
  for (Bf16& number : numbers) number = ToBf16(static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f);
  TANDEM_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(from, numbers.data(), num_inputs * sizeof(Bf16), cudaMemcpyHostToDevice, stream.get()),
      "copying to the device"));
  std::vector<float> expected(num_outputs);
  std::vector<float> got(num_outputs);
  const auto download = [&](std::vector<float>& to, const float* data) -> absl::Status {
    TANDEM_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(to.data(), data, to.size() * sizeof(float), cudaMemcpyDeviceToHost, stream.get()),
        "copying from the device"));
    return stream.Synchronize();
  };
  for (uint64_t row = 0; row < kWidest; row += kRowTile) {
    TANDEM_RETURN_IF_ERROR(Compute(*plan, plan->tile, matrix, from + row * matrix.depth,
                                   {by_tiles + row * matrix.outputs, uint64_t{kRowTile} * matrix.outputs},
                                   stream));
  }
  TANDEM_RETURN_IF_ERROR(download(expected, by_tiles));
  // A matrix of zeros tells nothing: the next of its shape will.
  const auto num_zeros = std::count(expected.begin(), expected.end(), 0.0f);
  if (2 * static_cast<uint64_t>(num_zeros) > num_outputs) return absl::OkStatus();
  plan->is_compared = true;
  for (uint32_t num_rows = kWidest; num_rows > kRowTile; num_rows /= 2) {
    auto product = std::make_unique<Product>();
    product->num_rows = num_rows;
    TANDEM_RETURN_IF_ERROR(Describe(matrix, plan->num_parts, num_rows, &product->layouts));
    const absl::Status chosen = Choose(plan->operation, product.get());
    if (absl::IsUnimplemented(chosen)) continue;
    TANDEM_RETURN_IF_ERROR(chosen);
    const absl::Status reserved = ReserveParts(*plan, num_rows, matrix.outputs);
    if (absl::IsResourceExhausted(reserved)) continue;
    TANDEM_RETURN_IF_ERROR(reserved);
    const uint64_t size = uint64_t{num_rows} * matrix.outputs;
    TANDEM_RETURN_IF_ERROR(Compute(*plan, *product, matrix, from, {by_one, size}, stream));
    TANDEM_RETURN_IF_ERROR(download(got, by_one));
    if (std::memcmp(got.data(), expected.data(), size * sizeof(float)) != 0) continue;
    plan->wider.push_back(std::move(product));
  }
  return absl::OkStatus();
}

absl::Status MatrixProducts::Compute(const Plan& plan, const Product& product, const DeviceMatrix& matrix,
                                     const Bf16* inputs, DeviceSpan<float> outputs,
                                     const CudaStream& stream) {
  const bool is_whole = plan.num_parts == 1;
  float* const to = is_whole ? outputs.data : parts_.data;
  const Layouts& layouts = product.layouts;
  const float one = 1.0f;
  const float zero = 0.0f;
  TANDEM_RETURN_IF_ERROR(
      LtStatus(cublasLtMatmul(handle_, plan.operation, &one, matrix.data.data, layouts.weights, inputs,
                              layouts.inputs, &zero, to, layouts.outputs, to, layouts.outputs,
                              &product.algorithm, workspace_, kWorkspaceBytes, stream.get()),
               "multiplying matrices"));
  if (is_whole) return absl::OkStatus();
  const AddPartsKernel add = {.parts = parts_.Part(0, plan.num_parts * outputs.size),
                              .outputs = outputs,
                              .num_parts = plan.num_parts,
                              .size = outputs.size};
  return CudaStatus(LaunchKernel(add, AddPartsShape(outputs.size), stream.get()),
                    "adding up parts of a matrix product");
}

absl::Status MatrixProducts::Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                                      DeviceSpan<float> outputs, uint32_t num_rows,
                                      const CudaStream& stream) {
  const auto found = plans_.find({matrix.outputs, matrix.depth});
  if (found == plans_.end() || found->second == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("a product of ", matrix.outputs, " by ", matrix.depth, " that was not prepared"));
  }
  const Plan& plan = *found->second;
  uint64_t row = 0;
  const auto compute = [&](const Product& product) {
    const uint64_t begin = row;
    row += product.num_rows;
    return Compute(plan, product, matrix, inputs.data + begin * matrix.depth,
                   outputs.Part(begin * matrix.outputs, uint64_t{product.num_rows} * matrix.outputs), stream);
  };
  for (const std::unique_ptr<Product>& product : plan.wider) {
    while (row + product->num_rows <= num_rows) TANDEM_RETURN_IF_ERROR(compute(*product));
  }
  while (row < num_rows) TANDEM_RETURN_IF_ERROR(compute(plan.tile));
  return absl::OkStatus();
}

}  // namespace tandem

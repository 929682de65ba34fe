#include "common/engine/cuda/matrix_products.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;
// For all inputs and results: a rank's tied output matrix may begin anywhere in the embedding.
constexpr uint32_t kAlignment = 16;

absl::Status LtStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", cublasLtGetStatusName(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                              : absl::InternalError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProducts>> MatrixProducts::Create(CudaPool* pool) {
  std::unique_ptr<MatrixProducts> products(new MatrixProducts);
  TANDEM_RETURN_IF_ERROR(LtStatus(cublasLtCreate(&products->handle_), "opening cuBLASLt"));
  TANDEM_ASSIGN_OR_RETURN(products->workspace_, pool->Allocate(kWorkspaceBytes, "matrix products"));
  return products;
}

MatrixProducts::~MatrixProducts() {
  for (const auto& [shape, plan] : plans_) Destroy(plan);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

void MatrixProducts::Destroy(const Plan& plan) {
  if (plan.operation != nullptr) cublasLtMatmulDescDestroy(plan.operation);
  for (const cublasLtMatrixLayout_t layout : {plan.weights, plan.inputs, plan.outputs}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
}

// cuBLASLt counts in columns: a matrix [outputs, depth] in rows is [depth, outputs] in columns, and the
// product is outputs^T = weights * inputs^T.
absl::Status MatrixProducts::Describe(uint32_t outputs, uint32_t depth, Plan* plan) {
  const char* const what = "describing a matrix product";
  TANDEM_RETURN_IF_ERROR(
      LtStatus(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), what));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  TANDEM_RETURN_IF_ERROR(LtStatus(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                                 &transposed, sizeof(transposed)),
                                  what));
  TANDEM_RETURN_IF_ERROR(
      LtStatus(cublasLtMatrixLayoutCreate(&plan->weights, CUDA_R_16BF, depth, outputs, depth), what));
  TANDEM_RETURN_IF_ERROR(
      LtStatus(cublasLtMatrixLayoutCreate(&plan->inputs, CUDA_R_16BF, depth, kRowTile, depth), what));
  return LtStatus(cublasLtMatrixLayoutCreate(&plan->outputs, CUDA_R_32F, outputs, kRowTile, outputs), what);
}

absl::Status MatrixProducts::Choose(uint32_t outputs, uint32_t depth, Plan* plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  TANDEM_RETURN_IF_ERROR(LtStatus(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm"));
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
  if (status == CUBLAS_STATUS_SUCCESS) {
    status =
        cublasLtMatmulAlgoGetHeuristic(handle_, plan->operation, plan->weights, plan->inputs, plan->outputs,
                                       plan->outputs, preference, 1, &result, &num_results);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && num_results == 0)) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for a matrix of ", outputs,
                                                 " outputs and ", depth,
                                                 " inputs that does not split its sums"));
  }
  TANDEM_RETURN_IF_ERROR(LtStatus(status, "choosing an algorithm"));
  TANDEM_RETURN_IF_ERROR(LtStatus(result.state, "choosing an algorithm"));
  plan->algorithm = result.algo;
  return absl::OkStatus();
}

absl::Status MatrixProducts::Prepare(uint32_t outputs, uint32_t depth) {
  if (plans_.contains({outputs, depth})) return absl::OkStatus();
  Plan plan;
  absl::Status status = Describe(outputs, depth, &plan);
  if (status.ok()) status = Choose(outputs, depth, &plan);
  if (!status.ok()) {
    Destroy(plan);
    return status;
  }
  plans_[{outputs, depth}] = plan;
  return absl::OkStatus();
}

absl::Status MatrixProducts::Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                                      DeviceSpan<float> outputs, const CudaStream& stream) {
  const auto plan = plans_.find({matrix.outputs, matrix.depth});
  if (plan == plans_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a product of ", matrix.outputs, " by ", matrix.depth, " that was not prepared"));
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  const Plan& way = plan->second;
  return LtStatus(cublasLtMatmul(handle_, way.operation, &one, matrix.data.data, way.weights, inputs.data,
                                 way.inputs, &zero, outputs.data, way.outputs, outputs.data, way.outputs,
                                 &way.algorithm, workspace_, kWorkspaceBytes, stream.get()),
                  "multiplying matrices");
}

}  // namespace tandem

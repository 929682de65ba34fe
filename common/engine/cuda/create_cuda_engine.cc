#include "common/engine/cuda/create_cuda_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CudaEngine>> CreateCudaEngine(const Model& model, WeightType weight_type,
                                                             const CudaDeviceOptions& device,
                                                             const CudaEngine::Options& options) {
  if (weight_type != WeightType::kAsInFile && weight_type != WeightType::kBf16) {
    return absl::UnimplementedError(absl::StrCat("weights in ", WeightTypeName(weight_type),
                                                 " on a GPU; expected auto or bf16, or the device cpu"));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceOps> ops, OpenCudaDevice(device));
  return CudaEngine::Create(model, options, std::move(ops));
}

}  // namespace tandem

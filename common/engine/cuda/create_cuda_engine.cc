#include "common/engine/cuda/create_cuda_engine.h"

#include <utility>

#include "common/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CudaEngine>> CreateCudaEngine(const Model& model,
                                                             const CudaDeviceOptions& device,
                                                             const CudaEngine::Options& options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceOps> ops, OpenCudaDevice(device));
  return CudaEngine::Create(model, options, std::move(ops));
}

}  // namespace tandem

#include "common/engine/cuda/create_cuda_engine.h"

#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/engine/cuda/cuda_medusa_engine.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CudaEngine>> CreateCudaEngine(const Model& model,
                                                             const CudaDeviceOptions& device,
                                                             const CudaEngine::Options& options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceOps> ops, OpenCudaDevice(device));
  return CudaEngine::Create(model, options, std::move(ops));
}

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaDrafter(const Model& model, const CudaDeviceOptions& device,
                                                          const CudaEngine::Options& options) {
  const std::optional<HeadConfig>& head = model.config().head;
  if (!head.has_value() || head->kind != HeadConfig::Kind::kMedusa) {
    return CreateCudaEngine(model, device, options);
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceOps> ops, OpenCudaDevice(device));
  return CudaMedusaEngine::Create(model, options, std::move(ops));
}

}  // namespace tandem

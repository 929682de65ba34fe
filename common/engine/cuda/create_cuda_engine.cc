#include "common/engine/cuda/create_cuda_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CudaEngine>> CreateCudaEngine(const Model& model,
                                                             const CudaDeviceOptions& device,
                                                             const CudaEngine::Options& options) {
  if (model.config().head.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(model.folder(), ": a draft head, expected a language model: heads run on the CPU only"));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceOps> ops, OpenCudaDevice(device));
  return CudaEngine::Create(model, options, std::move(ops));
}

}  // namespace tandem

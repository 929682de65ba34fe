#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/open_device.h"
#include "common/model/model.h"

namespace tandem {

// Opens the device and puts the model on it. Errors are those of OpenCudaDevice and of CudaEngine::Create.
absl::StatusOr<std::unique_ptr<CudaEngine>> CreateCudaEngine(const Model& model,
                                                             const CudaDeviceOptions& device,
                                                             const CudaEngine::Options& options);

// The same for a draft model of any kind. Medusa heads have an engine of their own.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaDrafter(const Model& model, const CudaDeviceOptions& device,
                                                          const CudaEngine::Options& options);

}  // namespace tandem

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/open_device.h"
#include "common/engine/weight_type.h"
#include "common/model/model.h"

namespace tandem {

// Opens the device and puts the model on it. Errors are those of OpenCudaDevice and of CudaEngine::Create;
// Unimplemented for a weight type that only the processor's engine has.
absl::StatusOr<std::unique_ptr<CudaEngine>> CreateCudaEngine(const Model& model, WeightType weight_type,
                                                             const CudaDeviceOptions& device,
                                                             const CudaEngine::Options& options);

}  // namespace tandem

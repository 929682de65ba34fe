#pragma once

#include <cuda_runtime_api.h>

#include "common/engine/cuda/kernels/kernels.h"
#include "common/engine/cuda/launch_shape.h"

namespace tandem {

// Puts a kernel into a stream; returns the error of the launch. Without absl, for nvcc.
#define TANDEM_DECLARE_LAUNCH_KERNEL(Kernel) \
  cudaError_t LaunchKernel(const Kernel& kernel, const LaunchShape& shape, cudaStream_t stream);
TANDEM_FOR_EACH_KERNEL(TANDEM_DECLARE_LAUNCH_KERNEL)
#undef TANDEM_DECLARE_LAUNCH_KERNEL

// Lets every kernel of the current device have up to `num_bytes` of shared memory.
cudaError_t AllowSharedMemory(uint32_t num_bytes);

}  // namespace tandem

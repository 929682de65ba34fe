#include "common/engine/cuda/launch_kernels.h"

#include "common/engine/cuda/device_block.h"

namespace tandem {
namespace {

// No block has more threads (launch_shape.cc). A lower limit leaves more registers for each thread.
template <typename Kernel>
constexpr uint32_t MostThreads() {
  if constexpr (requires { Kernel::kMostThreads; }) {
    return Kernel::kMostThreads;
  } else {
    return 1024;
  }
}

// How many blocks a multiprocessor should have room for; 0: the compiler decides.
template <typename Kernel>
constexpr uint32_t LeastBlocks() {
  if constexpr (requires { Kernel::kLeastBlocks; }) {
    return Kernel::kLeastBlocks;
  } else {
    return 0;
  }
}

template <typename Kernel>
__global__ void __launch_bounds__(MostThreads<Kernel>(), LeastBlocks<Kernel>())
    RunKernel(const __grid_constant__ Kernel kernel) {
  DeviceBlock block;
  kernel(block);
}

template <typename Kernel>
cudaError_t Allow(uint32_t num_bytes) {
  return cudaFuncSetAttribute(RunKernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(num_bytes));
}

}  // namespace

#define TANDEM_DEFINE_LAUNCH_KERNEL(Kernel)                                                             \
  cudaError_t LaunchKernel(const Kernel& kernel, const LaunchShape& shape, cudaStream_t stream) {       \
    RunKernel<<<dim3(shape.grid_x, shape.grid_y), shape.threads, shape.shared_bytes, stream>>>(kernel); \
    return cudaGetLastError();                                                                          \
  }
TANDEM_FOR_EACH_KERNEL(TANDEM_DEFINE_LAUNCH_KERNEL)
#undef TANDEM_DEFINE_LAUNCH_KERNEL

cudaError_t AllowSharedMemory(uint32_t num_bytes) {
  cudaError_t error = cudaSuccess;
#define TANDEM_ALLOW(Kernel) \
  if (error == cudaSuccess) error = Allow<Kernel>(num_bytes);
  TANDEM_FOR_EACH_KERNEL(TANDEM_ALLOW)
#undef TANDEM_ALLOW
  return error;
}

}  // namespace tandem

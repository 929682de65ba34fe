#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/open_device.h"

namespace tandem {

// The code that calls CUDA is a separate module, tandem-cuda.so, which open_device.cc loads when a GPU is
// requested. The reason: cuBLASLt alone has 94 KB of thread-local storage. If it is linked to the program,
// the C library takes this out of the stack of every thread, and threads of some libraries have stacks of 100
// KB. If it is loaded later, a thread takes it from the heap, when it first uses it.
//
// Classes of the standard library and of absl cross the border, and memory is allocated on one side and freed
// on the other, so both sides must be of one build. The fingerprint checks that. If absl is a static library,
// each side has its own copy of the code; nothing that crosses (Status, its message, string_view) refers to
// state in it.

// Increase it whenever CudaModule, DeviceOps, CudaDeviceOptions or a kernel's fields change their meaning or
// order.
inline constexpr uint32_t kCudaModuleVersion = 7;
inline constexpr char kCudaModuleFile[] = "tandem-cuda.so";
inline constexpr char kCudaModuleEntry[] = "tandem_cuda_module";  // Of type CudaModuleEntry.

// Everything besides the version that both sides must agree on: the sizes of all types that cross, the order
// of kernels in DeviceOps, and the versions of absl and of the C++ library.
constexpr uint64_t CudaModuleFingerprint() {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, of whole words.
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
#define TANDEM_ADD_KERNEL(Kernel)                             \
  for (const char letter : #Kernel) {                         \
    add(static_cast<uint64_t>(static_cast<uint8_t>(letter))); \
  }                                                           \
  add(sizeof(Kernel));                                        \
  add(alignof(Kernel));
  TANDEM_FOR_EACH_KERNEL(TANDEM_ADD_KERNEL)
#undef TANDEM_ADD_KERNEL
  add(sizeof(LaunchShape));
  add(sizeof(DeviceMatrix));
  add(sizeof(DeviceSpan<float>));
  add(sizeof(AdapterInput));
  add(sizeof(TensorParallel));
  add(sizeof(CudaDeviceOptions));
  add(sizeof(std::string));
  add(sizeof(absl::string_view));
  add(sizeof(absl::Status));
  add(sizeof(absl::StatusOr<void*>));
  add(sizeof(absl::StatusOr<std::unique_ptr<DeviceOps>>));
#ifdef ABSL_LTS_RELEASE_VERSION
  add(ABSL_LTS_RELEASE_VERSION);
#endif
#ifdef _GLIBCXX_USE_CXX11_ABI
  add(_GLIBCXX_USE_CXX11_ABI);
#endif
#ifdef TANDEM_SANITIZED
  add(1);
#endif
  return hash;
}

// What the module's entry returns. The first two members have the same position in every version. Do not read
// anything else before CheckCudaModule has accepted them.
struct CudaModule {
  uint32_t version = kCudaModuleVersion;
  uint64_t fingerprint = CudaModuleFingerprint();
  // See open_device.h.
  absl::StatusOr<std::unique_ptr<DeviceOps>> (*open)(const CudaDeviceOptions& options) = nullptr;
  absl::StatusOr<double> (*measure_copy_bandwidth)(int index) = nullptr;
};
using CudaModuleEntry = const CudaModule*();

// FailedPrecondition, naming `path`, for a module of another build.
absl::Status CheckCudaModule(const CudaModule& module, absl::string_view path);

// Loads the module, once, for good. NotFound, with the places searched, if there is none; FailedPrecondition
// if it cannot be loaded or is of another build.
absl::StatusOr<const CudaModule*> LoadCudaModule();

}  // namespace tandem

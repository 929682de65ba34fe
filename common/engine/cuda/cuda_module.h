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

// What talks to CUDA is a module of its own, tandem-cuda.so, that open_device.cc loads when a GPU is asked
// for: cuBLASLt alone has 94 KB of thread-local storage, which the C library takes out of the stack of every
// thread where the library is linked to the program, and some libraries' threads have stacks of 100 KB.
// Loaded later, each thread takes it from the heap, and only when it uses it.
//
// Classes of the standard library and of absl cross the border, and memory is allocated on one side and freed
// on the other: both sides have to be of one build. That is what is checked. Where absl is a static library,
// each side has its code for itself; nothing that crosses (Status, its message, string_view) refers to state
// of it.

// To be raised whenever CudaModule, DeviceOps, CudaDeviceOptions or a kernel's fields change their meaning or
// order.
inline constexpr uint32_t kCudaModuleVersion = 7;
inline constexpr char kCudaModuleFile[] = "tandem-cuda.so";
inline constexpr char kCudaModuleEntry[] = "tandem_cuda_module";  // Of type CudaModuleEntry.

// What both sides have to agree about, whatever the version says: the size of all that crosses, the order of
// kernels in DeviceOps, and of which absl and C++ library the classes are.
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

// What the module's entry returns. The first two members stay where they are in every version; nothing else
// may be looked at before CheckCudaModule is content with them.
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

// Loads the module at the first call that succeeds, for good. NotFound, saying where it was looked for, when
// there is none; FailedPrecondition when it cannot be loaded or is of another build.
absl::StatusOr<const CudaModule*> LoadCudaModule();

}  // namespace tandem

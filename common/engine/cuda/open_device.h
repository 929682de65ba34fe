#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/shard.h"

namespace tandem {

// What --device says.
struct DeviceSpec {
  bool is_cuda = false;
  int index = 0;  // Of the CUDA device.

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// "cpu", "cuda" (device 0) or "cuda:N". InvalidArgument for anything else.
absl::StatusOr<DeviceSpec> ParseDeviceSpec(absl::string_view text);

// For a CUDA device loads the module that talks to CUDA (cuda_module.h), so that what is wrong with it is
// said before a model is loaded. NotFound without one; FailedPrecondition when it cannot be loaded or is of
// another build.
absl::Status PrepareDevice(const DeviceSpec& device);

struct CudaDeviceOptions {
  int index = 0;
  uint64_t memory_limit = 0;  // Bytes this process takes of the device at most; 0: what there is.
  bool low_priority = false;  // Kernels of other streams and processes (with MPS) go first.
  TensorParallel parallel;
  // With several ranks: a file that all of them see, where rank 0 leaves what the others need to find it. It
  // must not exist before, and is gone once all have met.
  std::string rendezvous;
};

// Errors of PrepareDevice; Unavailable, saying why, without a driver or device; InvalidArgument for a device
// that is not there or ranks that cannot meet; DeadlineExceeded when other ranks do not come.
absl::StatusOr<std::unique_ptr<DeviceOps>> OpenCudaDevice(const CudaDeviceOptions& options);

// Bytes per second, read and written together, of a copy from device memory to device memory, the best of
// several; what the times of steps are compared with. Errors as OpenCudaDevice's.
absl::StatusOr<double> MeasureCudaCopyBandwidth(int index);

}  // namespace tandem

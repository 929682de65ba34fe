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

// A value of --device.
struct DeviceSpec {
  bool is_cuda = false;
  int index = 0;  // Of the CUDA device.

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// "cpu", "cuda" (device 0) or "cuda:N". InvalidArgument for anything else.
absl::StatusOr<DeviceSpec> ParseDeviceSpec(absl::string_view text);

// For a CUDA device, loads the CUDA module (cuda_module.h), so that its errors appear before a model is
// loaded. NotFound if there is none; FailedPrecondition if it cannot be loaded or is of another build.
absl::Status PrepareDevice(const DeviceSpec& device);

struct CudaDeviceOptions {
  int index = 0;
  uint64_t memory_limit = 0;  // The most bytes of the device for this process; 0: no limit.
  bool low_priority = false;  // Kernels of other streams and processes (with MPS) go first.
  TensorParallel parallel;
  // With several ranks: a file that all of them can access, in which rank 0 writes how the others find it. It
  // must not exist before, and is removed once all have met.
  std::string rendezvous;
};

// Errors: those of PrepareDevice; Unavailable, with the reason, without a driver or device; InvalidArgument
// for a device that does not exist, or for ranks that cannot meet; DeadlineExceeded if other ranks do not
// come.
absl::StatusOr<std::unique_ptr<DeviceOps>> OpenCudaDevice(const CudaDeviceOptions& options);

// Measures the bandwidth of a copy within device memory, in bytes read plus written per second, the best of
// several runs. Times of steps are compared with it. Errors as in OpenCudaDevice.
absl::StatusOr<double> MeasureCudaCopyBandwidth(int index);

}  // namespace tandem

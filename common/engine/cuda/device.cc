#include "common/engine/cuda/device.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

absl::Status CudaStatus(int code, absl::string_view what) {
  const auto error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<std::vector<CudaDevice>> ListCudaDevices() {
  int count = 0;
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "counting CUDA devices"));
  if (count == 0) return absl::UnavailableError("counting CUDA devices: there are none");
  std::vector<CudaDevice> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    TANDEM_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, index),
                                      absl::StrCat("reading the properties of CUDA device ", index)));
    devices.push_back({.index = index,
                       .name = properties.name,
                       .compute_major = properties.major,
                       .compute_minor = properties.minor,
                       .memory_bytes = properties.totalGlobalMem,
                       .num_multiprocessors = properties.multiProcessorCount});
  }
  return devices;
}

absl::StatusOr<CudaBuffer> CudaBuffer::Allocate(size_t bytes) {
  void* data = nullptr;
  TANDEM_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&data, bytes), absl::StrCat("allocating ", bytes, " bytes of device memory")));
  return CudaBuffer(data, bytes);
}

// An error of an earlier kernel would surface here again; whoever launched it has seen it.
CudaBuffer::~CudaBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

absl::Status CudaBuffer::CopyFromHost(const void* source, size_t bytes) {
  if (bytes > bytes_) return absl::OutOfRangeError(absl::StrCat(bytes, " bytes into a buffer of ", bytes_));
  return CudaStatus(cudaMemcpy(data_, source, bytes, cudaMemcpyHostToDevice), "copying to the device");
}

absl::Status CudaBuffer::CopyToHost(void* target, size_t bytes) const {
  if (bytes > bytes_) return absl::OutOfRangeError(absl::StrCat(bytes, " bytes out of a buffer of ", bytes_));
  return CudaStatus(cudaMemcpy(target, data_, bytes, cudaMemcpyDeviceToHost), "copying from the device");
}

}  // namespace tandem

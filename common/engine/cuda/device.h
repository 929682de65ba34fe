#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

struct CudaDevice {
  int index = 0;
  std::string name;
  int compute_major = 0;  // Compute capability, such as 9.0.
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
  int num_multiprocessors = 0;
};

// The devices that this process can use. Unavailable, saying why, when there is no driver or no device.
absl::StatusOr<std::vector<CudaDevice>> ListCudaDevices();

// A CUDA error code as a status; OK for cudaSuccess. `what` says what was being done.
absl::Status CudaStatus(int code, absl::string_view what);

// Memory of the current device, freed on destruction. Movable, not copyable. Its methods block until done.
class CudaBuffer {
 public:
  // ResourceExhausted when the device does not have the memory.
  static absl::StatusOr<CudaBuffer> Allocate(size_t bytes);

  CudaBuffer(CudaBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  ~CudaBuffer();

  void* data() const { return data_; }
  size_t size_bytes() const { return bytes_; }

  // Between host memory and the first `bytes` of the buffer; OutOfRange when it is smaller.
  absl::Status CopyFromHost(const void* source, size_t bytes);
  absl::Status CopyToHost(void* target, size_t bytes) const;

 private:
  CudaBuffer(void* data, size_t bytes) : data_(data), bytes_(bytes) {}

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tandem

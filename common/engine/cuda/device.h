#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace tandem {

struct CudaDevice {
  int index = 0;
  std::string name;
  int compute_major = 0;  // Compute capability, such as 9.0.
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
  int num_multiprocessors = 0;
};

// The devices that this process can use. Unavailable, with the reason, if there is no driver or no device.
absl::StatusOr<std::vector<CudaDevice>> ListCudaDevices();

// A CUDA error code as a status; OK for cudaSuccess. `what`: the operation.
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

  // Copies between host memory and the first `bytes` of the buffer; OutOfRange if the buffer is smaller.
  absl::Status CopyFromHost(const void* source, size_t bytes);
  absl::Status CopyToHost(void* target, size_t bytes) const;

 private:
  CudaBuffer(void* data, size_t bytes) : data_(data), bytes_(bytes) {}

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A stream of the current device; kernels of a low-priority one wait for those of others. Movable.
class CudaStream {
 public:
  static absl::StatusOr<CudaStream> Create(bool low_priority);
  CudaStream() = default;
  CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStream();

  CUstream_st* get() const { return stream_; }
  absl::Status Synchronize() const;

 private:
  CUstream_st* stream_ = nullptr;
};

// A point in a stream, to measure the time between two of them. Movable.
class CudaEvent {
 public:
  static absl::StatusOr<CudaEvent> Create();
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent();

  absl::Status Record(const CudaStream& stream);
  // Seconds on the device from `begin` to this; waits for both.
  absl::StatusOr<double> SecondsSince(const CudaEvent& begin) const;

 private:
  CudaEvent() = default;

  CUevent_st* event_ = nullptr;
};

// The work captured from a stream between Begin and End, which can be launched again as a whole. Movable.
class CudaGraph {
 public:
  static absl::Status Begin(const CudaStream& stream);
  static absl::StatusOr<CudaGraph> End(const CudaStream& stream);
  CudaGraph(CudaGraph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&& other) noexcept {
    std::swap(executable_, other.executable_);
    return *this;
  }
  ~CudaGraph();

  absl::Status Launch(const CudaStream& stream) const;

 private:
  CudaGraph() = default;

  CUgraphExec_st* executable_ = nullptr;
};

// Pinned host memory, from and to which the device copies by itself.
class CudaHostBuffer {
 public:
  static absl::StatusOr<CudaHostBuffer> Allocate(size_t bytes);
  CudaHostBuffer(CudaHostBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  CudaHostBuffer& operator=(CudaHostBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~CudaHostBuffer();

  void* data() const { return data_; }

 private:
  CudaHostBuffer() = default;

  void* data_ = nullptr;
};

// Device memory for many small pieces. The pool cuts pieces from large buffers, because separate
// allocations would each cost a round trip to the driver and up to 2 MiB. All pieces are freed together.
class CudaPool {
 public:
  explicit CudaPool(uint64_t memory_limit) : memory_limit_(memory_limit) {}

  // Aligned to 256 bytes, not initialised. ResourceExhausted, naming `what`, beyond the limit (0: none) or
  // the device.
  absl::StatusOr<void*> Allocate(uint64_t bytes, absl::string_view what);
  // The same in a separate buffer, which FreeBlock frees.
  absl::StatusOr<void*> AllocateBlock(uint64_t bytes, absl::string_view what);
  void FreeBlock(void* data);

 private:
  absl::StatusOr<CudaBuffer> NewBuffer(uint64_t bytes, absl::string_view what);

  const uint64_t memory_limit_;
  uint64_t bytes_used_ = 0;  // Of the device.
  std::vector<CudaBuffer> buffers_;
  std::vector<CudaBuffer> blocks_;
  uint64_t left_in_last_ = 0;
};

}  // namespace tandem

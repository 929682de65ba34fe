#include "common/engine/cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>

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

namespace {

// A lack of memory is answered by whoever allocates. CUDA also keeps it as its last error, which the next
// launch would return as its own.
absl::Status AllocationStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaErrorMemoryAllocation) (void)cudaGetLastError();
  return CudaStatus(error, what);
}

}  // namespace

absl::StatusOr<CudaBuffer> CudaBuffer::Allocate(size_t bytes) {
  void* data = nullptr;
  TANDEM_RETURN_IF_ERROR(AllocationStatus(cudaMalloc(&data, bytes),
                                          absl::StrCat("allocating ", bytes, " bytes of device memory")));
  return CudaBuffer(data, bytes);
}

// cudaFree may return an earlier kernel's error again. It is ignored here: that kernel's launch has already
// returned it.
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

absl::StatusOr<CudaStream> CudaStream::Create(bool low_priority) {
  int lowest = 0;
  int highest = 0;
  TANDEM_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "reading the priorities of streams"));
  CudaStream stream;
  TANDEM_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream.stream_, cudaStreamNonBlocking, low_priority ? lowest : highest),
      "making a stream"));
  return stream;
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status CudaStream::Synchronize() const {
  return CudaStatus(cudaStreamSynchronize(stream_), "waiting for the device");
}

absl::StatusOr<CudaEvent> CudaEvent::Create() {
  CudaEvent event;
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event.event_), "making an event"));
  return event;
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

absl::Status CudaEvent::Record(const CudaStream& stream) {
  return CudaStatus(cudaEventRecord(event_, stream.get()), "recording an event");
}

absl::StatusOr<double> CudaEvent::SecondsSince(const CudaEvent& begin) const {
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(event_), "waiting for an event"));
  float milliseconds = 0.0f;
  TANDEM_RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "reading an event"));
  return 1e-3 * static_cast<double>(milliseconds);
}

absl::Status CudaGraph::Begin(const CudaStream& stream) {
  return CudaStatus(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                    "beginning a graph");
}

absl::StatusOr<CudaGraph> CudaGraph::End(const CudaStream& stream) {
  cudaGraph_t captured = nullptr;
  TANDEM_RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(stream.get(), &captured), "ending a graph"));
  CudaGraph graph;
  const absl::Status status =
      CudaStatus(cudaGraphInstantiate(&graph.executable_, captured, 0), "making a graph executable");
  cudaGraphDestroy(captured);
  TANDEM_RETURN_IF_ERROR(status);
  return graph;
}

CudaGraph::~CudaGraph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
}

absl::Status CudaGraph::Launch(const CudaStream& stream) const {
  return CudaStatus(cudaGraphLaunch(executable_, stream.get()), "launching a graph");
}

absl::StatusOr<CudaHostBuffer> CudaHostBuffer::Allocate(size_t bytes) {
  CudaHostBuffer buffer;
  TANDEM_RETURN_IF_ERROR(AllocationStatus(cudaMallocHost(&buffer.data_, bytes),
                                          absl::StrCat("allocating ", bytes, " bytes of pinned memory")));
  return buffer;
}

CudaHostBuffer::~CudaHostBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

absl::StatusOr<void*> CudaPool::Allocate(uint64_t bytes, absl::string_view what) {
  constexpr uint64_t kAlignment = 256;
  constexpr uint64_t kBufferBytes = uint64_t{32} << 20;
  if (bytes > UINT64_MAX - kAlignment)
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes for ", what));
  const uint64_t rounded = (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded > left_in_last_) {
    const uint64_t wanted = std::max(rounded, kBufferBytes);
    TANDEM_ASSIGN_OR_RETURN(CudaBuffer buffer, NewBuffer(wanted, what));
    buffers_.push_back(std::move(buffer));
    left_in_last_ = wanted;
  }
  const CudaBuffer& last = buffers_.back();
  void* data = static_cast<char*>(last.data()) + (last.size_bytes() - left_in_last_);
  left_in_last_ -= rounded;
  return data;
}

absl::StatusOr<void*> CudaPool::AllocateBlock(uint64_t bytes, absl::string_view what) {
  TANDEM_ASSIGN_OR_RETURN(CudaBuffer buffer, NewBuffer(std::max<uint64_t>(bytes, 1), what));
  blocks_.push_back(std::move(buffer));
  return blocks_.back().data();
}

void CudaPool::FreeBlock(void* data) {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [data](const CudaBuffer& each) { return each.data() == data; });
  if (found == blocks_.end()) return;
  bytes_used_ -= found->size_bytes();
  blocks_.erase(found);
}

absl::StatusOr<CudaBuffer> CudaPool::NewBuffer(uint64_t bytes, absl::string_view what) {
  if (memory_limit_ > 0 && bytes > memory_limit_ - std::min(bytes_used_, memory_limit_)) {
    return absl::ResourceExhaustedError(absl::StrCat("allocating ", bytes, " bytes of device memory for ",
                                                     what, ": ", bytes_used_, " of the limit of ",
                                                     memory_limit_, " are in use"));
  }
  absl::StatusOr<CudaBuffer> buffer = CudaBuffer::Allocate(bytes);
  if (!buffer.ok()) {
    return absl::Status(buffer.status().code(), absl::StrCat(buffer.status().message(), ", for ", what));
  }
  bytes_used_ += bytes;
  return buffer;
}

}  // namespace tandem

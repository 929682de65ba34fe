#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/engine/cuda/kernels/kernels.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/shard.h"

namespace tandem {

// Matrix products always compute this many rows: a step's rows are padded to a multiple of it and go through
// the products so many at a time (docs/inside/decisions/0009-one-row-tile.md).
inline constexpr uint32_t kRowTile = 64;

// How a weight matrix is kept in device memory.
enum class DeviceFormat : uint8_t { kBf16, kInt8, kInt4, kFp8 };

// A weight matrix in device memory, [outputs, depth].
struct DeviceMatrix {
  DeviceFormat format = DeviceFormat::kBf16;
  uint32_t outputs = 0;
  uint32_t depth = 0;
  DeviceSpan<const Bf16> data;  // Row by row, of kBf16.
  PackedWeights packed;         // Of the others.
};

// The operations that a CudaEngine needs from a GPU: implemented by a CUDA device (cuda_ops.cc), and by an
// emulation on the host (testing/host_ops.h), with which the engine is tested on machines without a GPU.
//
// All operations go to one stream and run in that order; Synchronize waits for them. The destructor frees
// all memory; blocks can be given back earlier. The object belongs to one thread at a time: first the one
// that created it, then any other that calls BindThread. Calls from other threads return
// FailedPrecondition.
class DeviceOps {
 public:
  virtual ~DeviceOps() = default;

  // Such as "cuda:0 (NVIDIA H200)".
  virtual std::string name() const = 0;
  virtual uint32_t num_multiprocessors() const = 0;
  virtual uint32_t max_shared_bytes() const = 0;  // Of a block of threads.
  virtual TensorParallel parallel() const = 0;
  // Binds the object to the calling thread.
  virtual absl::Status BindThread() = 0;

  // Returns zeroed device memory. ResourceExhausted, naming `what`, if there is too little or the limit is
  // reached.
  virtual absl::StatusOr<void*> AllocateBytes(uint64_t num_bytes, absl::string_view what) = 0;
  // The same, but not zeroed, and FreeBlock can free it.
  virtual absl::StatusOr<void*> AllocateBlock(uint64_t num_bytes, absl::string_view what) = 0;
  // No operation in flight may use the block.
  virtual void FreeBlock(void* data) = 0;
  // Host memory that the device can copy from and to while the host continues.
  virtual absl::StatusOr<void*> AllocateHostBytes(uint64_t num_bytes, absl::string_view what) = 0;
  // The host memory must not change until Synchronize.
  virtual absl::Status Upload(void* to, const void* from, uint64_t num_bytes) = 0;
  virtual absl::Status Download(void* to, const void* from, uint64_t num_bytes) = 0;
  virtual absl::Status Synchronize() = 0;

  // For matrices in bfloat16; those in other formats have kernels (product_kernels.h).
  //
  // Chooses how products of the matrix's shape are computed, as long as the object exists. Call it before any
  // of them, when the matrix has been uploaded: it may multiply it.
  virtual absl::Status PrepareProduct(const DeviceMatrix& matrix) = 0;
  // outputs [num_rows, matrix.outputs] = inputs [num_rows, matrix.depth] * matrix^T, in float32. num_rows: a
  // multiple of kRowTile. Each output is computed in the same order of operations however many rows there are
  // and wherever among them its row stands.
  virtual absl::Status Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs,
                                DeviceSpan<float> outputs, uint32_t num_rows) = 0;

  // all[r] = the part of rank r, for every rank. All ranks call it, with parts of the same size.
  virtual absl::Status AllGather(DeviceSpan<const float> part, DeviceSpan<float> all) = 0;
  // Sends rank 0's bytes to all ranks.
  virtual absl::Status Broadcast(void* data, uint64_t num_bytes) = 0;

  // Between the two, operations (except allocations, copies and Synchronize) are recorded and not executed;
  // Replay executes them.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<uint32_t> EndCapture() = 0;
  virtual absl::Status Replay(uint32_t graph) = 0;
  virtual void DropGraphs() = 0;

#define TANDEM_DECLARE_LAUNCH(Kernel) \
  virtual absl::Status Launch(const Kernel& kernel, const LaunchShape& shape) = 0;
  TANDEM_FOR_EACH_KERNEL(TANDEM_DECLARE_LAUNCH)
#undef TANDEM_DECLARE_LAUNCH

  template <typename T>
  absl::StatusOr<DeviceSpan<T>> Allocate(uint64_t count, absl::string_view what) {
    if (count > UINT64_MAX / 2 / sizeof(T)) return absl::InvalidArgumentError("a size that no memory has");
    absl::StatusOr<void*> data = AllocateBytes(count * sizeof(T), what);
    if (!data.ok()) return data.status();
    return DeviceSpan<T>{static_cast<T*>(*data), count};
  }
};

}  // namespace tandem

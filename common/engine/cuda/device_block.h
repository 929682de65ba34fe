#pragma once

#include <cuda_runtime.h>

#include "common/engine/cuda/kernels/block.h"

// Only for nvcc: what kernels see of the GPU.

namespace tandem {

class DeviceBlock {
 public:
  __device__ __forceinline__ uint32_t thread() const { return threadIdx.x; }
  __device__ __forceinline__ uint32_t num_threads() const { return blockDim.x; }
  __device__ __forceinline__ uint32_t index_x() const { return blockIdx.x; }
  __device__ __forceinline__ uint32_t index_y() const { return blockIdx.y; }
  __device__ __forceinline__ uint32_t num_x() const { return gridDim.x; }
  __device__ __forceinline__ void Sync() { __syncthreads(); }
  __device__ __forceinline__ void SyncWarp() { __syncwarp(); }

  __device__ __forceinline__ float ShuffleXor(float value, uint32_t mask) {
    return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
  }
  __device__ __forceinline__ double ShuffleXor(double value, uint32_t mask) {
    return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
  }
  __device__ __forceinline__ uint32_t ShuffleXor(uint32_t value, uint32_t mask) {
    return __shfl_xor_sync(kAllLanes, value, static_cast<int>(mask));
  }
  __device__ __forceinline__ uint64_t ShuffleXor(uint64_t value, uint32_t mask) {
    return __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), static_cast<int>(mask));
  }
  __device__ __forceinline__ uint32_t Ballot(bool bit) { return __ballot_sync(kAllLanes, bit); }

  __device__ __forceinline__ void MultiplyAddInt8(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                  int32_t (&sums)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  __device__ __forceinline__ void MultiplyAddBf16(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                  float (&sums)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  // `place` is in shared memory.
  __device__ __forceinline__ void AtomicAdd(uint64_t& place, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&place), static_cast<unsigned long long>(value));
  }

  template <typename T>
  __device__ __forceinline__ DeviceSpan<T> Shared(uint64_t offset, uint64_t count) {
    extern __shared__ __align__(16) char tandem_shared_memory[];
    return {reinterpret_cast<T*>(tandem_shared_memory + offset), count};
  }

 private:
  static constexpr uint32_t kAllLanes = 0xffffffffu;
};

}  // namespace tandem

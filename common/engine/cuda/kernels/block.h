#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

// The language of the kernels. A kernel is a struct of arguments with a template operator()(Block&), which
// every thread of a block runs. nvcc compiles it for DeviceBlock (device_block.h), and the host compiler for
// the emulated block of testing/host_block.h, which checks every access. Both give the same bits: kernels use
// only additions, multiplications, divisions, square roots and fused multiply-adds. These are correctly
// rounded, called by name and never contracted (nvcc gets -fmad=false).
//
// A Block has thread(), num_threads(), index_x(), index_y(), num_x(), Sync(), SyncWarp(), ShuffleXor(value,
// mask), Ballot(bit), AtomicAdd(place, value) for shared memory, and Shared<T>(offset, count). Warps have 32
// lanes, thread numbers have one dimension, and the number of threads is a multiple of 32. All threads of a
// block call Sync together. All threads of a warp call SyncWarp, shuffles, ballots and matrix products
// together.
//
// MultiplyAddInt8(a, b0, b1, sums) is a matrix product of a warp: sums [16, 8] += a [16, 32] * b [8, 32]^T,
// of 8-bit integers, exactly. A word holds four neighbours, the first in the low bits. Lane 4 g + t holds
// these columns:
//
//   a, row g        columns 4 t to 4 t + 3 (a[0]) and 16 + 4 t to 16 + 4 t + 3 (a[2])
//   a, row g + 8    the same columns (a[1], a[3])
//   b, row g        the same columns (b0, b1)
//   sums, row g     columns 2 t and 2 t + 1 (sums[0, 1])
//   sums, row g + 8 the same columns (sums[2, 3])
//
// Source: the PTX ISA, mma.m16n8k32.
//
// MultiplyAddBf16(a, b0, b1, sums) is the same for bfloat16, with sums in float32 and half as many columns:
// sums [16, 8] += a [16, 16] * b [8, 16]^T. A word holds two neighbours, and the columns are 2 t, 2 t + 1 and
// 8 + 2 t, 8 + 2 t + 1. An element of sums depends only on its row of a and its row of b, in the same way for
// all elements. The order in which its 16 products are added up is the GPU's own, and the emulation's order
// differs.

#if defined(__CUDACC__)
// Goes before a loop over values that should stay in registers.
#define TANDEM_UNROLL _Pragma("unroll")
// Goes before a loop that many threads run through once: copies of its body would have to be fetched first,
// from memory that is slow to begin with.
#define TANDEM_ROLLED _Pragma("unroll 1")
#define TANDEM_DEVICE __device__ __forceinline__
#define TANDEM_BOTH __host__ __device__ __forceinline__
#else
#define TANDEM_UNROLL
#define TANDEM_ROLLED
#define TANDEM_DEVICE inline
#define TANDEM_BOTH inline
#endif

namespace tandem {

inline constexpr uint32_t kWarpThreads = 32;

#if !defined(__CUDACC__)
// Ends the program: an emulated kernel accessed memory outside of its buffers.
[[noreturn]] void FailDeviceAccess(uint64_t index, uint64_t size, size_t element_bytes);
#endif

// Elements in device memory. Kernels take it by value.
template <typename T>
struct DeviceSpan {
  T* data = nullptr;
  uint64_t size = 0;

  TANDEM_DEVICE T& operator[](uint64_t index) const {
#if !defined(__CUDACC__)
    if (index >= size) FailDeviceAccess(index, size, sizeof(T));
#endif
    return data[index];
  }
  // The same elements, read-only.
  template <typename Const,
            typename = std::enable_if_t<!std::is_same_v<T, Const> && std::is_same_v<const T, Const>>>
  TANDEM_BOTH operator DeviceSpan<Const>() const {
    return {data, size};
  }
  bool empty() const {
    return size == 0;
  }
  DeviceSpan Part(uint64_t begin, uint64_t count) const {
    return {data + begin, count};
  }
};

template <typename To, typename From>
TANDEM_DEVICE To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

struct Bf16 {
  uint16_t bits;
};

// Two neighbours at once: the first in the low half. `index` is even.
struct Bf16Pair {
  uint32_t bits;
};
TANDEM_DEVICE Bf16Pair LoadPair(DeviceSpan<const Bf16> span, uint64_t index) {
#if !defined(__CUDACC__)
  if (index + 2 > span.size || index % 2 != 0) FailDeviceAccess(index, span.size, 2 * sizeof(Bf16));
  Bf16Pair pair;
  memcpy(&pair, span.data + index, sizeof(pair));
  return pair;
#else
  return {*reinterpret_cast<const uint32_t*>(span.data + index)};
#endif
}
TANDEM_DEVICE void StorePair(DeviceSpan<Bf16> span, uint64_t index, Bf16Pair pair) {
#if !defined(__CUDACC__)
  if (index + 2 > span.size || index % 2 != 0) FailDeviceAccess(index, span.size, 2 * sizeof(Bf16));
  memcpy(span.data + index, &pair, sizeof(pair));
#else
  *reinterpret_cast<uint32_t*>(span.data + index) = pair.bits;
#endif
}
TANDEM_DEVICE float FirstOf(Bf16Pair pair) {
  return BitsAs<float>(pair.bits << 16);
}
TANDEM_DEVICE float SecondOf(Bf16Pair pair) {
  return BitsAs<float>(pair.bits & 0xffff0000u);
}

// `kCount` words at once: loads take 1, 2 or 4. `index` is a multiple of the elements in them.
template <uint32_t kCount>
struct alignas(kCount < 4 ? 4 * kCount : 16) Words {
  uint32_t word[kCount];
};
template <uint32_t kCount, typename T>
TANDEM_DEVICE Words<kCount> LoadWords(DeviceSpan<const T> span, uint64_t index) {
#if !defined(__CUDACC__)
  constexpr uint64_t kElements = kCount * sizeof(uint32_t) / sizeof(T);
  if (index + kElements > span.size || index % kElements != 0) {
    FailDeviceAccess(index, span.size, kCount * sizeof(uint32_t));
  }
  Words<kCount> words;
  memcpy(&words, span.data + index, sizeof(words));
  return words;
#else
  return *reinterpret_cast<const Words<kCount>*>(span.data + index);
#endif
}

// `kCount` neighbours, 1, 2 or 4, at once. `index` is a multiple of kCount.
template <uint32_t kCount>
struct alignas(4 * kCount) Floats {
  float at[kCount];
};
template <uint32_t kCount>
TANDEM_DEVICE Floats<kCount> LoadFloats(DeviceSpan<const float> span, uint64_t index) {
#if !defined(__CUDACC__)
  if (index + kCount > span.size || index % kCount != 0) {
    FailDeviceAccess(index, span.size, kCount * sizeof(float));
  }
  Floats<kCount> floats;
  memcpy(&floats, span.data + index, sizeof(floats));
  return floats;
#else
  return *reinterpret_cast<const Floats<kCount>*>(span.data + index);
#endif
}
template <uint32_t kCount>
TANDEM_DEVICE void StoreFloats(DeviceSpan<float> span, uint64_t index, const Floats<kCount>& floats) {
#if !defined(__CUDACC__)
  if (index + kCount > span.size || index % kCount != 0) {
    FailDeviceAccess(index, span.size, kCount * sizeof(float));
  }
  memcpy(span.data + index, &floats, sizeof(floats));
#else
  *reinterpret_cast<Floats<kCount>*>(span.data + index) = floats;
#endif
}

TANDEM_DEVICE float ToFloat(Bf16 value) {
  return BitsAs<float>(static_cast<uint32_t>(value.bits) << 16);
}

// To the nearest, ties to even; a NaN stays one.
TANDEM_DEVICE Bf16 ToBf16(float value) {
#if defined(__CUDACC__)
  Bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
  return rounded;
#else
  const uint32_t bits = BitsAs<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
}

TANDEM_DEVICE uint32_t Least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}
TANDEM_DEVICE uint32_t Most(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}
TANDEM_DEVICE uint32_t CountBits(uint32_t bits) {
#if defined(__CUDACC__)
  return static_cast<uint32_t>(__popc(bits));
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}
TANDEM_DEVICE float Greater(float a, float b) {
  return a > b ? a : b;
}

TANDEM_DEVICE float Fma(float a, float b, float c) {
#if defined(__CUDACC__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

TANDEM_DEVICE float SquareRoot(float x) {
#if defined(__CUDACC__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// exp(x) to about 1 ulp, as the processor's kernels compute it (cpu/vector_templates.h): above 88 it stays at
// exp(88), below the smallest normal number it is 0.
TANDEM_DEVICE float Exponential(float x) {
  constexpr float kSmallest = -87.33654f;
  constexpr float kRounder = 12582912.0f;
  if (x < kSmallest) return 0.0f;
  const float clamped = x < 88.0f ? x : 88.0f;
  const float shifted = Fma(clamped, 1.44269504088896341f, kRounder);
  const float n = shifted - kRounder;
  float r = Fma(n, -0.693359375f, clamped);
  r = Fma(n, 2.12194440054690583e-4f, r);
  float sum = 1.0f / 5040;
  sum = Fma(sum, r, 1.0f / 720);
  sum = Fma(sum, r, 1.0f / 120);
  sum = Fma(sum, r, 1.0f / 24);
  sum = Fma(sum, r, 1.0f / 6);
  sum = Fma(sum, r, 0.5f);
  sum = Fma(sum, r, 1.0f);
  sum = Fma(sum, r, 1.0f);
  // The low bits of `shifted` hold the integer.
  const uint32_t exponent = BitsAs<uint32_t>(shifted) - BitsAs<uint32_t>(kRounder) + 127u;
  return sum * BitsAs<float>(exponent << 23);
}

// Over a warp, in one fixed order: every lane gets the same bits.
template <typename Block>
TANDEM_DEVICE float WarpSum(Block& block, float value) {
  for (uint32_t mask = kWarpThreads / 2; mask > 0; mask /= 2) value += block.ShuffleXor(value, mask);
  return value;
}
template <typename Block>
TANDEM_DEVICE float WarpGreatest(Block& block, float value) {
  for (uint32_t mask = kWarpThreads / 2; mask > 0; mask /= 2) {
    value = Greater(value, block.ShuffleXor(value, mask));
  }
  return value;
}

// Over the block, in one fixed order. `scratch` holds a float for each warp and is free again after the call.
template <typename Block>
TANDEM_DEVICE float BlockSum(Block& block, float value, DeviceSpan<float> scratch) {
  const float warp_sum = WarpSum(block, value);
  if (block.thread() % kWarpThreads == 0) scratch[block.thread() / kWarpThreads] = warp_sum;
  block.Sync();
  // A block has at most as many warps as a warp has lanes.
  const uint32_t lane = block.thread() % kWarpThreads;
  const float sum = WarpSum(block, lane < block.num_threads() / kWarpThreads ? scratch[lane] : 0.0f);
  block.Sync();
  return sum;
}

}  // namespace tandem

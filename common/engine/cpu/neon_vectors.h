#pragma once

#include <arm_neon.h>

#include "common/engine/cpu/kernel_templates.h"

namespace tandem {
namespace {

// The vector of floats for sources with NEON: four registers. Every 64-bit Arm processor has these
// instructions.
struct Neon {
  static constexpr int kMaxRows = 3;
  static constexpr int kMaxSums = 6;  // Four of 32 registers each.
  static constexpr int kMaxAttentionSums = 4;
  static constexpr int kParts = 4;
  static constexpr int kPartLanes = 4;
  static constexpr int kPieces = 1;
  using Piece = Neon;

  float32x4_t part[kParts];

  template <typename F>
  static TANDEM_INLINE Neon ForParts(F value) {
    return {{value(0), value(1), value(2), value(3)}};
  }
  static TANDEM_INLINE Neon Broadcast(float x) {
    const float32x4_t all = vdupq_n_f32(x);
    return {{all, all, all, all}};
  }
  static TANDEM_INLINE Neon Load(const float* from) {
    return ForParts([&](int i) { return vld1q_f32(from + i * kPartLanes); });
  }
  static TANDEM_INLINE void Store(const Neon& x, float* to) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) vst1q_f32(to + i * kPartLanes, x.part[i]);
  }
  static TANDEM_INLINE Neon Add(const Neon& a, const Neon& b) {
    return ForParts([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
  }
  static TANDEM_INLINE Neon Subtract(const Neon& a, const Neon& b) {
    return ForParts([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
  }
  static TANDEM_INLINE Neon Multiply(const Neon& a, const Neon& b) {
    return ForParts([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
  }
  static TANDEM_INLINE Neon Divide(const Neon& a, const Neon& b) {
    return ForParts([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
  }
  static TANDEM_INLINE Neon Fma(const Neon& a, const Neon& b, const Neon& c) {
    return ForParts([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
  }
  // a > b ? a : b, and a < b ? a : b. A NaN in `b` stays. The processor's own maximum differs if `a` is a
  // NaN.
  static TANDEM_INLINE Neon Max(const Neon& a, const Neon& b) {
    return ForParts([&](int i) { return vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
  }
  static TANDEM_INLINE Neon Min(const Neon& a, const Neon& b) {
    return ForParts([&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
  }
  static TANDEM_INLINE Neon ZeroWhereLess(const Neon& a, const Neon& b, const Neon& x) {
    return ForParts([&](int i) {
      return vreinterpretq_f32_u32(
          vbicq_u32(vreinterpretq_u32_f32(x.part[i]), vcltq_f32(a.part[i], b.part[i])));
    });
  }
  // 2^n for an integer n in the low bits of x.
  static TANDEM_INLINE Neon PowerOfTwo(const Neon& x) {
    return ForParts([&](int i) {
      const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(x.part[i]), 23);
      return vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(127u << 23)));
    });
  }
  static TANDEM_INLINE Neon LoadBf16(const uint16_t* from) {
    return ForParts([&](int i) {
      return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(from + i * kPartLanes)), 16));
    });
  }
  static TANDEM_INLINE Neon LoadHalf(const uint16_t* from) {
    return ForParts(
        [&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i * kPartLanes))); });
  }
  static TANDEM_INLINE Neon LoadInt8(const int8_t* from) {
    const int8x16_t numbers = vld1q_s8(from);
    const int16x8_t low = vmovl_s8(vget_low_s8(numbers));
    const int16x8_t high = vmovl_s8(vget_high_s8(numbers));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  static TANDEM_INLINE void LoadBf16Pairs(const uint16_t* line, Neon* low, Neon* high) {
    const uint32x4_t mask = vdupq_n_u32(0xffff0000u);
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
      const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(line + i * 2 * kPartLanes));
      low->part[i] = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
      high->part[i] = vreinterpretq_f32_u32(vandq_u32(pairs, mask));
    }
  }
};

// Codes of files (file_code_products.h), except their sums.
struct NeonCodes {
  static constexpr uint32_t kOutputs = 4;
  static constexpr int kVectors = 2;
  using Codes = uint8x16_t;
  using Sums = int32x4_t;
  using Floats = float32x4_t;

  static TANDEM_INLINE Codes Load(const char* line) {
    return vld1q_u8(reinterpret_cast<const uint8_t*>(line));
  }
  static TANDEM_INLINE Codes And(Codes codes, uint8_t byte) { return vandq_u8(codes, vdupq_n_u8(byte)); }
  static TANDEM_INLINE Codes Or(Codes a, Codes b) { return vorrq_u8(a, b); }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftLeft(Codes codes) {
    return vshlq_n_u8(codes, kBits);
  }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftRight(Codes codes) {
    return vshrq_n_u8(codes, kBits);
  }

  static TANDEM_INLINE Codes Signed(Codes codes) { return codes; }
  static TANDEM_INLINE Floats ToFloats(Sums sums) { return vcvtq_f32_s32(sums); }
  static TANDEM_INLINE Floats LoadFloats(const float* from) { return vld1q_f32(from); }
  static TANDEM_INLINE Floats BroadcastFloat(const float* from) { return vld1q_dup_f32(from); }
  static TANDEM_INLINE Floats Multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
  static TANDEM_INLINE Floats Fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static TANDEM_INLINE Floats NegativeFma(Floats a, Floats b, Floats c) { return vfmsq_f32(c, a, b); }
  static TANDEM_INLINE void StoreFloats(Floats x, float* to) { vst1q_f32(to, x); }
};

}  // namespace
}  // namespace tandem

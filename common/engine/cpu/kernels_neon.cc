#include <arm_neon.h>

#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/kernel_templates.h"

namespace tandem {
namespace {

// Four registers. Every 64-bit Arm processor has these instructions.
struct Neon {
  static constexpr int kMaxRows = 3;
  static constexpr int kMaxAccumulators = 6;  // Four of 32 registers each.
  static constexpr int kMaxAttentionSums = 4;
  static constexpr int kParts = 4;
  static constexpr int kPartLanes = 4;

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
  // a > b ? a : b, and a < b ? a : b: a NaN in `b` stays. The processor's own maximum differs when `a` is
  // one.
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
  // 2^n for an integer n that stands in the low bits of x.
  static TANDEM_INLINE Neon PowerOfTwo(const Neon& x) {
    return ForParts([&](int i) {
      const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(x.part[i]), 23);
      return vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(127u << 23)));
    });
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

struct NeonIntegers {
  static constexpr int kMaxRows = 2;
  struct Sum {
    int32x4_t part[Neon::kParts];
  };
  struct Weights {
    int16x8_t part[Neon::kParts];
  };

  static TANDEM_INLINE Sum Zero() {
    const int32x4_t zero = vdupq_n_s32(0);
    return {{zero, zero, zero, zero}};
  }
  static TANDEM_INLINE Weights Widen(const char* line) {
    const auto* bytes = reinterpret_cast<const int8_t*>(line);
    const int8x16_t first = vld1q_s8(bytes);
    const int8x16_t second = vld1q_s8(bytes + 16);
    return {{vmovl_s8(vget_low_s8(first)), vmovl_high_s8(first), vmovl_s8(vget_low_s8(second)),
             vmovl_high_s8(second)}};
  }
  static TANDEM_INLINE void WidenHalves(const char* line, Weights* low, Weights* high) {
    const Weights both = Widen(line);
#pragma GCC unroll 4
    for (int i = 0; i < Neon::kParts; ++i) {
      low->part[i] = vshrq_n_s16(vshlq_n_s16(both.part[i], 12), 12);
      high->part[i] = vshrq_n_s16(both.part[i], 4);
    }
  }
  static TANDEM_INLINE Sum MultiplyAdd(const Sum& sum, const Weights& weights, const char* pair) {
    int32_t inputs;
    __builtin_memcpy(&inputs, pair, sizeof(inputs));
    const int16x8_t input = vreinterpretq_s16_s32(vdupq_n_s32(inputs));
    Sum result;
#pragma GCC unroll 4
    for (int i = 0; i < Neon::kParts; ++i) {
      const int32x4_t first = vmull_s16(vget_low_s16(weights.part[i]), vget_low_s16(input));
      const int32x4_t second = vmull_high_s16(weights.part[i], input);
      result.part[i] = vaddq_s32(sum.part[i], vpaddq_s32(first, second));
    }
    return result;
  }
  static TANDEM_INLINE Neon ToFloat(const Sum& sum) {
    return Neon::ForParts([&](int i) { return vcvtq_f32_s32(sum.part[i]); });
  }
};

}  // namespace

const KernelTable& NeonKernels() {
  static const KernelTable kTable = [] {
    KernelTable table = MakeKernelTable<Neon>("neon");
    SetIntegerProducts<Neon, NeonIntegers>(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem

#include <arm_neon.h>

#include "common/engine/cpu/file_code_products.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/kernel_templates.h"
#include "common/engine/cpu/neon_vectors.h"

namespace tandem {
namespace {

struct NeonIntegers {
  static constexpr int kMaxRows = 2;
  static constexpr int Halves(int) { return 2; }
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

// Codes have at most 7 bits, or 8 and a sign, so they are signed bytes.
struct NeonByteCodes : NeonCodes {
  template <int kBits, int kFirst, int kCount>
  static TANDEM_INLINE void Dot(const Codes (&codes)[kVectors][kQuads], const int8_t* inputs,
                                const int32_t* /*begin*/, Sums (&sums)[kVectors]) {
    sums[0] = sums[1] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int quad = kFirst; quad < kFirst + kCount; ++quad) {
      int32_t word;
      __builtin_memcpy(&word, inputs + quad * 4, sizeof(word));
      const int8x16_t input = vreinterpretq_s8_s32(vdupq_n_s32(word));
#pragma GCC unroll 2
      for (int vector = 0; vector < kVectors; ++vector) {
        const int8x16_t code = vreinterpretq_s8_u8(codes[vector][quad]);
        const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(code), vget_low_s8(input)));
        const int32x4_t high = vpaddlq_s16(vmull_high_s8(code, input));
        sums[vector] = vaddq_s32(sums[vector], vpaddq_s32(low, high));
      }
    }
  }
};

}  // namespace

const KernelTable& NeonKernels() {
  static const KernelTable kTable = [] {
    KernelTable table = MakeKernelTable<Neon>("neon");
    SetIntegerProducts<Neon, NeonIntegers>(&table);
    SetFileCodeProduct<Neon, NeonByteCodes>(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem

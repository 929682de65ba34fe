#include <cstring>

#include "common/engine/cpu/file_code_products.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/kernel_templates.h"

namespace tandem {
namespace {

// Plain loops over the lanes. Compilers turn them into vector code where the base instruction set has fused
// multiply-add (aarch64); elsewhere the fused multiply-add is a library call, exact but slow.
struct Portable {
  static constexpr int kMaxRows = 3;
  static constexpr int kMaxSums = 6;
  static constexpr int kMaxAttentionSums = 4;
  static constexpr int kPieces = 1;
  using Piece = Portable;

  float v[kLanes];

  template <typename F>
  static TANDEM_INLINE Portable ForLanes(F lane) {
    Portable result;
    for (uint32_t i = 0; i < kLanes; ++i) result.v[i] = lane(i);
    return result;
  }
  static TANDEM_INLINE Portable Broadcast(float x) {
    return ForLanes([&](uint32_t) { return x; });
  }
  static TANDEM_INLINE Portable Load(const float* from) {
    return ForLanes([&](uint32_t i) { return from[i]; });
  }
  static TANDEM_INLINE void Store(const Portable& x, float* to) {
    for (uint32_t i = 0; i < kLanes; ++i) to[i] = x.v[i];
  }
  static TANDEM_INLINE Portable Add(const Portable& a, const Portable& b) {
    return ForLanes([&](uint32_t i) { return a.v[i] + b.v[i]; });
  }
  static TANDEM_INLINE Portable Subtract(const Portable& a, const Portable& b) {
    return ForLanes([&](uint32_t i) { return a.v[i] - b.v[i]; });
  }
  static TANDEM_INLINE Portable Multiply(const Portable& a, const Portable& b) {
    return ForLanes([&](uint32_t i) { return a.v[i] * b.v[i]; });
  }
  static TANDEM_INLINE Portable Divide(const Portable& a, const Portable& b) {
    return ForLanes([&](uint32_t i) { return a.v[i] / b.v[i]; });
  }
  static TANDEM_INLINE Portable Fma(const Portable& a, const Portable& b, const Portable& c) {
    return ForLanes([&](uint32_t i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
  }
  // A NaN in `b` stays, as on x86.
  static TANDEM_INLINE Portable Max(const Portable& a, const Portable& b) {
    return ForLanes([&](uint32_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static TANDEM_INLINE Portable Min(const Portable& a, const Portable& b) {
    return ForLanes([&](uint32_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static TANDEM_INLINE Portable ZeroWhereLess(const Portable& a, const Portable& b, const Portable& x) {
    return ForLanes([&](uint32_t i) { return a.v[i] < b.v[i] ? 0.0f : x.v[i]; });
  }
  // 2^n for an integer n in the low bits of x.
  static TANDEM_INLINE Portable PowerOfTwo(const Portable& x) {
    return ForLanes([&](uint32_t i) {
      uint32_t bits;
      std::memcpy(&bits, &x.v[i], sizeof(bits));
      return FromBits((bits << 23) + (127u << 23));
    });
  }
  static TANDEM_INLINE Portable LoadBf16(const uint16_t* from) {
    return ForLanes([&](uint32_t i) { return FromBits(static_cast<uint32_t>(from[i]) << 16); });
  }
  static TANDEM_INLINE Portable LoadHalf(const uint16_t* from) {
    return ForLanes([&](uint32_t i) {
      // The exponent's bias is 112 less than float32's.
      const uint32_t magnitude = (from[i] & 0x7fffu) << 13;
      const uint32_t sign = (from[i] & 0x8000u) << 16;
      if (magnitude >= 0x0f800000u)
        return FromBits(sign | 0x70000000u | magnitude);  // Infinite, or no number.
      const float number = FromBits(magnitude) * 0x1p112f;
      return sign == 0 ? number : -number;
    });
  }
  static TANDEM_INLINE Portable LoadInt8(const int8_t* from) {
    return ForLanes([&](uint32_t i) { return static_cast<float>(from[i]); });
  }
  static TANDEM_INLINE void LoadBf16Pairs(const uint16_t* line, Portable* low, Portable* high) {
    for (uint32_t i = 0; i < kLanes; ++i) {
      low->v[i] = FromBits(static_cast<uint32_t>(line[2 * i]) << 16);
      high->v[i] = FromBits(static_cast<uint32_t>(line[2 * i + 1]) << 16);
    }
  }
  static TANDEM_INLINE float FromBits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

struct PortableIntegers {
  static constexpr int kMaxRows = 2;
  static constexpr int Halves(int) { return 2; }
  struct Sum {
    int32_t v[kLanes];
  };
  struct Weights {
    int16_t v[2 * kLanes];
  };

  static TANDEM_INLINE Sum Zero() { return {}; }
  static TANDEM_INLINE Weights Widen(const char* line) {
    Weights weights;
    for (uint32_t i = 0; i < 2 * kLanes; ++i) weights.v[i] = static_cast<int8_t>(line[i]);
    return weights;
  }
  static TANDEM_INLINE void WidenHalves(const char* line, Weights* low, Weights* high) {
    for (uint32_t i = 0; i < 2 * kLanes; ++i) {
      const auto both = static_cast<int8_t>(line[i]);
      low->v[i] = static_cast<int16_t>(static_cast<int8_t>(both << 4) >> 4);
      high->v[i] = static_cast<int16_t>(both >> 4);
    }
  }
  static TANDEM_INLINE Sum MultiplyAdd(const Sum& sum, const Weights& weights, const char* pair) {
    int16_t inputs[2];
    std::memcpy(inputs, pair, sizeof(inputs));
    Sum result;
    for (uint32_t i = 0; i < kLanes; ++i) {
      result.v[i] = sum.v[i] + weights.v[2 * i] * inputs[0] + weights.v[2 * i + 1] * inputs[1];
    }
    return result;
  }
  static TANDEM_INLINE Portable ToFloat(const Sum& sum) {
    return Portable::ForLanes([&](uint32_t i) { return static_cast<float>(sum.v[i]); });
  }
};

struct PortableCodes {
  static constexpr uint32_t kOutputs = 16;
  static constexpr int kVectors = 1;
  struct Codes {
    uint8_t v[4 * kOutputs];
  };
  struct Sums {
    int32_t v[kOutputs];
  };
  using Floats = Portable;

  static TANDEM_INLINE Codes Load(const char* line) {
    Codes codes;
    std::memcpy(codes.v, line, sizeof(codes.v));
    return codes;
  }
  template <typename F>
  static TANDEM_INLINE Codes ForBytes(F byte) {
    Codes codes;
    for (uint32_t i = 0; i < 4 * kOutputs; ++i) codes.v[i] = static_cast<uint8_t>(byte(i));
    return codes;
  }
  static TANDEM_INLINE Codes And(const Codes& codes, uint8_t byte) {
    return ForBytes([&](uint32_t i) { return codes.v[i] & byte; });
  }
  static TANDEM_INLINE Codes Or(const Codes& a, const Codes& b) {
    return ForBytes([&](uint32_t i) { return a.v[i] | b.v[i]; });
  }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftLeft(const Codes& codes) {
    return ForBytes([&](uint32_t i) { return codes.v[i] << kBits; });
  }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftRight(const Codes& codes) {
    return ForBytes([&](uint32_t i) { return codes.v[i] >> kBits; });
  }

  static TANDEM_INLINE Codes Signed(const Codes& codes) { return codes; }
  template <int kBits, int kFirst, int kCount>
  static TANDEM_INLINE void Dot(const Codes (&codes)[1][kQuads], const int8_t* inputs,
                                const int32_t* /*begin*/, Sums (&sums)[1]) {
    sums[0] = {};
    for (int quad = kFirst; quad < kFirst + kCount; ++quad) {
      for (uint32_t i = 0; i < 4 * kOutputs; ++i) {
        const uint8_t byte = codes[0][quad].v[i];
        const int code = kBits == 8 ? static_cast<int8_t>(byte) : byte;
        sums[0].v[i / 4] += code * inputs[quad * 4 + static_cast<int>(i % 4)];
      }
    }
  }

  static TANDEM_INLINE Floats ToFloats(const Sums& sums) {
    return Portable::ForLanes([&](uint32_t i) { return static_cast<float>(sums.v[i]); });
  }
  static TANDEM_INLINE Floats LoadFloats(const float* from) { return Portable::Load(from); }
  static TANDEM_INLINE Floats BroadcastFloat(const float* from) { return Portable::Broadcast(*from); }
  static TANDEM_INLINE Floats Multiply(const Floats& a, const Floats& b) { return Portable::Multiply(a, b); }
  static TANDEM_INLINE Floats Fma(const Floats& a, const Floats& b, const Floats& c) {
    return Portable::Fma(a, b, c);
  }
  static TANDEM_INLINE Floats NegativeFma(const Floats& a, const Floats& b, const Floats& c) {
    return Portable::ForLanes([&](uint32_t i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
  }
  static TANDEM_INLINE void StoreFloats(const Floats& x, float* to) { Portable::Store(x, to); }
};

}  // namespace

const KernelTable& PortableKernels() {
  static const KernelTable kTable = [] {
    KernelTable table = MakeKernelTable<Portable>("portable");
    SetIntegerProducts<Portable, PortableIntegers>(&table);
    SetFileCodeProduct<Portable, PortableCodes>(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem

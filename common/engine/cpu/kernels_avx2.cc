#include <immintrin.h>

#include "common/engine/cpu/file_code_products.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/kernel_templates.h"

namespace tandem {
namespace {

// One register, half of a vector.
struct Avx2Half {
  __m256 v;

  static TANDEM_INLINE Avx2Half Broadcast(float x) { return {_mm256_set1_ps(x)}; }
  static TANDEM_INLINE Avx2Half Load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static TANDEM_INLINE void Store(Avx2Half x, float* to) { _mm256_storeu_ps(to, x.v); }
  static TANDEM_INLINE Avx2Half Fma(Avx2Half a, Avx2Half b, Avx2Half c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
  }
  static TANDEM_INLINE void LoadBf16Pairs(const uint16_t* pairs, Avx2Half* low, Avx2Half* high) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    low->v = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    high->v = _mm256_castsi256_ps(_mm256_and_si256(both, mask));
  }
};

struct Avx2 {
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxSums = 12;  // Of 16 registers.
  static constexpr int kMaxAttentionSums = 4;
  static constexpr int kPieces = 2;
  using Piece = Avx2Half;

  __m256 low;
  __m256 high;

  static TANDEM_INLINE Avx2 Broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static TANDEM_INLINE Avx2 Load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  static TANDEM_INLINE void Store(Avx2 x, float* to) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
  }
  static TANDEM_INLINE Avx2 Add(Avx2 a, Avx2 b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static TANDEM_INLINE Avx2 Subtract(Avx2 a, Avx2 b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  static TANDEM_INLINE Avx2 Multiply(Avx2 a, Avx2 b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static TANDEM_INLINE Avx2 Divide(Avx2 a, Avx2 b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  static TANDEM_INLINE Avx2 Fma(Avx2 a, Avx2 b, Avx2 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  // a > b ? a : b, and a < b ? a : b. A NaN in `b` stays.
  static TANDEM_INLINE Avx2 Max(Avx2 a, Avx2 b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static TANDEM_INLINE Avx2 Min(Avx2 a, Avx2 b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static TANDEM_INLINE Avx2 ZeroWhereLess(Avx2 a, Avx2 b, Avx2 x) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), x.low),
            _mm256_andnot_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ), x.high)};
  }
  // 2^n for an integer n in the low bits of x.
  static TANDEM_INLINE Avx2 PowerOfTwo(Avx2 x) { return {PowerOfTwo(x.low), PowerOfTwo(x.high)}; }
  static TANDEM_INLINE __m256 PowerOfTwo(__m256 x) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(x), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(127 << 23)));
  }
  static TANDEM_INLINE Avx2 LoadBf16(const uint16_t* from) {
    const auto half = [from](int index) {
      const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + index);
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(numbers), 16));
    };
    return {half(0), half(1)};
  }
  static TANDEM_INLINE Avx2 LoadHalf(const uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + 1))};
  }
  static TANDEM_INLINE Avx2 LoadInt8(const int8_t* from) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(numbers, 8)))};
  }
  static TANDEM_INLINE void LoadBf16Pairs(const uint16_t* line, Avx2* low, Avx2* high) {
    Piece lows[kPieces];
    Piece highs[kPieces];
    for (int piece = 0; piece < kPieces; ++piece)
      Piece::LoadBf16Pairs(line + piece * kLanes, &lows[piece], &highs[piece]);
    *low = {lows[0].v, lows[1].v};
    *high = {highs[0].v, highs[1].v};
  }
};

struct Avx2Integers {
  static constexpr int kMaxRows = 4;
  static constexpr int Halves(int rows) { return rows == 1 ? 2 : 1; }
  struct Vector {
    __m256i low;
    __m256i high;
  };
  using Sum = Vector;
  using Weights = Vector;

  static TANDEM_INLINE Sum Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static TANDEM_INLINE Weights Widen(const char* line) {
    const auto* lines = reinterpret_cast<const __m128i*>(line);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(lines)), _mm256_cvtepi8_epi16(_mm_loadu_si128(lines + 1))};
  }
  static TANDEM_INLINE void WidenHalves(const char* line, Weights* low, Weights* high) {
    const Weights both = Widen(line);
    low->low = _mm256_srai_epi16(_mm256_slli_epi16(both.low, 12), 12);
    low->high = _mm256_srai_epi16(_mm256_slli_epi16(both.high, 12), 12);
    high->low = _mm256_srai_epi16(both.low, 4);
    high->high = _mm256_srai_epi16(both.high, 4);
  }
  static TANDEM_INLINE Sum MultiplyAdd(Sum sum, Weights weights, const char* pair) {
    int32_t inputs;
    __builtin_memcpy(&inputs, pair, sizeof(inputs));
    const __m256i input = _mm256_set1_epi32(inputs);
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(weights.low, input)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(weights.high, input))};
  }
  static TANDEM_INLINE Avx2 ToFloat(Sum sum) {
    return {_mm256_cvtepi32_ps(sum.low), _mm256_cvtepi32_ps(sum.high)};
  }
};

// Products of bytes, one not negative and one signed, are added in pairs of 16 bits, which hold several such
// sums.
struct Avx2Codes {
  static constexpr uint32_t kOutputs = 8;
  static constexpr int kVectors = 1;
  using Codes = __m256i;
  using Sums = __m256i;
  using Floats = __m256;

  static TANDEM_INLINE Codes Load(const char* line) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
  }
  static TANDEM_INLINE Codes And(Codes codes, uint8_t byte) {
    return _mm256_and_si256(codes, _mm256_set1_epi8(static_cast<char>(byte)));
  }
  static TANDEM_INLINE Codes Or(Codes a, Codes b) { return _mm256_or_si256(a, b); }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftLeft(Codes codes) {
    return _mm256_slli_epi16(codes, kBits);
  }
  template <int kBits>
  static TANDEM_INLINE Codes ShiftRight(Codes codes) {
    return _mm256_srli_epi16(codes, kBits);
  }

  static TANDEM_INLINE Codes Signed(Codes codes) { return codes; }
  template <int kBits, int kFirst, int kCount>
  static TANDEM_INLINE void Dot(const Codes (&codes)[1][kQuads], const int8_t* inputs,
                                const int32_t* /*begin*/, Sums (&sums)[1]) {
    // So many pairs of products of a code and an input of 127 at most fit 16 bits.
    constexpr int kFitting = kBits == 8 ? 1 : 32767 / (2 * 127 * ((1 << kBits) - 1));
    constexpr int kRun = kFitting < kCount ? kFitting : kCount;
    static_assert(kCount % kRun == 0);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int first = kFirst; first < kFirst + kCount; first += kRun) {
      __m256i pairs = Pairs<kBits>(codes[0][first], inputs + first * 4);
#pragma GCC unroll 8
      for (int quad = first + 1; quad < first + kRun; ++quad) {
        pairs = _mm256_add_epi16(pairs, Pairs<kBits>(codes[0][quad], inputs + quad * 4));
      }
      const __m256i words = _mm256_madd_epi16(pairs, ones);
      sums[0] = first == kFirst ? words : _mm256_add_epi32(sums[0], words);
    }
  }

  static TANDEM_INLINE Floats ToFloats(Sums sums) {
    return _mm256_cvtepi32_ps(sums);
  }
  static TANDEM_INLINE Floats LoadFloats(const float* from) {
    return _mm256_loadu_ps(from);
  }
  static TANDEM_INLINE Floats BroadcastFloat(const float* from) {
    return _mm256_broadcast_ss(from);
  }
  static TANDEM_INLINE Floats Multiply(Floats a, Floats b) {
    return _mm256_mul_ps(a, b);
  }
  static TANDEM_INLINE Floats Fma(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static TANDEM_INLINE Floats NegativeFma(Floats a, Floats b, Floats c) {
    return _mm256_fnmadd_ps(a, b, c);
  }
  static TANDEM_INLINE void StoreFloats(Floats x, float* to) {
    _mm256_storeu_ps(to, x);
  }

 private:
  template <int kBits>
  static TANDEM_INLINE __m256i Pairs(Codes codes, const int8_t* quad) {
    int32_t word;
    __builtin_memcpy(&word, quad, sizeof(word));
    const __m256i inputs = _mm256_set1_epi32(word);
    if constexpr (kBits < 8) return _mm256_maddubs_epi16(codes, inputs);
    // A signed code is moved to the input: two products of at most 128 and 127 fit 16 bits.
    return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(inputs, codes));
  }
};

}  // namespace

const KernelTable& Avx2Kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = MakeKernelTable<Avx2>("avx2");
    SetIntegerProducts<Avx2, Avx2Integers>(&table);
    SetFileCodeProduct<Avx2, Avx2Codes>(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem

#include <immintrin.h>

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

}  // namespace

const KernelTable& Avx2Kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = MakeKernelTable<Avx2>("avx2");
    SetIntegerProducts<Avx2, Avx2Integers>(&table);
    return table;
  }();
  return kTable;
}

}  // namespace tandem

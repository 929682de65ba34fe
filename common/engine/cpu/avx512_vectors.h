#pragma once

#include <immintrin.h>

#include "common/engine/cpu/kernel_templates.h"

namespace tandem {
namespace {

// The vector of floats for sources with AVX-512.
struct Avx512 {
  static constexpr int kMaxRows = 12;
  static constexpr int kMaxSums = 24;  // Of 32 registers.
  static constexpr int kMaxAttentionSums = 16;
  static constexpr int kPieces = 1;
  using Piece = Avx512;

  __m512 v;

  static TANDEM_INLINE Avx512 Broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static TANDEM_INLINE Avx512 Load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static TANDEM_INLINE void Store(Avx512 x, float* to) { _mm512_storeu_ps(to, x.v); }
  static TANDEM_INLINE Avx512 Add(Avx512 a, Avx512 b) { return {_mm512_add_ps(a.v, b.v)}; }
  static TANDEM_INLINE Avx512 Subtract(Avx512 a, Avx512 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static TANDEM_INLINE Avx512 Multiply(Avx512 a, Avx512 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static TANDEM_INLINE Avx512 Divide(Avx512 a, Avx512 b) { return {_mm512_div_ps(a.v, b.v)}; }
  static TANDEM_INLINE Avx512 Fma(Avx512 a, Avx512 b, Avx512 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  // a > b ? a : b, and a < b ? a : b. A NaN in `b` stays.
  static TANDEM_INLINE Avx512 Max(Avx512 a, Avx512 b) { return {_mm512_max_ps(a.v, b.v)}; }
  static TANDEM_INLINE Avx512 Min(Avx512 a, Avx512 b) { return {_mm512_min_ps(a.v, b.v)}; }
  static TANDEM_INLINE float SumLanes(Avx512 x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static TANDEM_INLINE float GreatestLane(Avx512 x) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static TANDEM_INLINE Avx512 ZeroWhereLess(Avx512 a, Avx512 b, Avx512 x) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), x.v)};
  }
  // 2^n for an integer n in the low bits of x.
  static TANDEM_INLINE Avx512 PowerOfTwo(Avx512 x) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(x.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(127 << 23)))};
  }
  static TANDEM_INLINE Avx512 LoadBf16(const uint16_t* from) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16))};
  }
  static TANDEM_INLINE Avx512 LoadHalf(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static TANDEM_INLINE Avx512 LoadInt8(const int8_t* from) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers))};
  }
  static TANDEM_INLINE void LoadBf16Pairs(const uint16_t* line, Avx512* low, Avx512* high) {
    const __m512i pairs = _mm512_loadu_si512(line);
    low->v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    high->v = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

// Operations on 8-bit and 4-bit integers with AVX-512, except products (integer_products.h).
struct Avx512Integers {
  static constexpr int kMaxRows = 6;
  static constexpr int Halves(int) { return 2; }
  using Sum = __m512i;
  using Weights = __m512i;

  static TANDEM_INLINE Sum Zero() { return _mm512_setzero_si512(); }
  static TANDEM_INLINE Weights Widen(const char* line) {
    return _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(line)));
  }
  static TANDEM_INLINE void WidenHalves(const char* line, Weights* low, Weights* high) {
    const __m512i both = Widen(line);
    *low = _mm512_srai_epi16(_mm512_slli_epi16(both, 12), 12);
    *high = _mm512_srai_epi16(both, 4);
  }
  static TANDEM_INLINE __m512i BroadcastPair(const char* pair) {
    int32_t inputs;
    __builtin_memcpy(&inputs, pair, sizeof(inputs));
    return _mm512_set1_epi32(inputs);
  }
  static TANDEM_INLINE Avx512 ToFloat(Sum sum) { return {_mm512_cvtepi32_ps(sum)}; }
};

}  // namespace
}  // namespace tandem

#include "common/speculation/gumbel.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "common/base/philox.h"
#include "common/speculation/simd_clones.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kLog2E = 1.44269504088896340736;

// The smaller of `gap`, which is not negative, and 64, beyond which nothing matters. A minimum of integers is
// vectorised where one of floats is not.
inline float Limited(float gap) {
  return std::bit_cast<float>(std::min(std::bit_cast<int32_t>(gap), std::bit_cast<int32_t>(64.0f)));
}

// exp(-gap) * 2^40, rounded to an integer: exp(x) = 2^n * exp(r), n the integer nearest to x / ln 2, and
// exp(r) its Taylor series up to r^10 / 10!, whose remainder for |r| <= ln(2) / 2 is below 3e-13.
inline uint64_t WeightOf(float gap) {
  // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
  constexpr double kRounder = 6755399441055744.0;
  const double x = -static_cast<double>(Limited(gap));
  const double shifted = x * kLog2E + kRounder;
  const double r = x - (shifted - kRounder) * kLn2;
  double series = 1.0 / 3628800;
  series = series * r + 1.0 / 362880;
  series = series * r + 1.0 / 40320;
  series = series * r + 1.0 / 5040;
  series = series * r + 1.0 / 720;
  series = series * r + 1.0 / 120;
  series = series * r + 1.0 / 24;
  series = series * r + 1.0 / 6;
  series = series * r + 0.5;
  series = series * r + 1.0;
  series = series * r + 1.0;
  const uint64_t exponent = std::bit_cast<uint64_t>(shifted) - std::bit_cast<uint64_t>(kRounder);
  const double scale = std::bit_cast<double>((exponent + 1023 + kWeightBits) << 52);
  constexpr double kTwo52 = 4503599627370496.0;
  return std::bit_cast<uint64_t>(series * scale + kTwo52) - std::bit_cast<uint64_t>(kTwo52);
}

// Philox4x32-10 of 16 consecutive counters at once, the same function as common/base/philox.h: word w of
// counter {first_group + g, position, 0, 0} goes to bits[4 * g + w]. Returns the greatest.
TANDEM_SIMD_CLONES
uint32_t PhiloxBlock(uint64_t seed, uint32_t position, uint32_t first_group, uint32_t (&bits)[kTokenBlock]) {
  constexpr int kGroups = kTokenBlock / 4;
  uint32_t c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    c0[g] = first_group + g;
    c1[g] = position;
    c2[g] = 0;
    c3[g] = 0;
  }
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int g = 0; g < kGroups; ++g) {
      const uint64_t product0 = uint64_t{0xD2511F53} * c0[g];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * c2[g];
      c0[g] = static_cast<uint32_t>(product1 >> 32) ^ c1[g] ^ key0;
      c1[g] = static_cast<uint32_t>(product1);
      c2[g] = static_cast<uint32_t>(product0 >> 32) ^ c3[g] ^ key1;
      c3[g] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  for (int g = 0; g < kGroups; ++g) {
    bits[4 * g] = c0[g];
    bits[4 * g + 1] = c1[g];
    bits[4 * g + 2] = c2[g];
    bits[4 * g + 3] = c3[g];
  }
  uint32_t greatest = 0;
  for (int i = 0; i < kTokenBlock; ++i) greatest = std::max(greatest, bits[i]);
  return greatest;
}

#if defined(__x86_64__)

// Words 0 and 1, and words 2 and 3, of 8 counters, beside one another.
struct PhiloxWords {
  __m512i low;
  __m512i high;
};

#define TANDEM_AVX512 __attribute__((target("avx512f")))

TANDEM_AVX512 inline __attribute__((always_inline)) __m512i Broadcast(uint64_t word) {
  return _mm512_set1_epi64(static_cast<int64_t>(word));
}

// The same of 8 counters from `first_group` on, one in each 64-bit lane; what stands above 32 bits does not
// count. Even lanes are the first four counters, so that words come out in order later.
TANDEM_AVX512 inline __attribute__((always_inline)) PhiloxWords PhiloxAvx512(
    const uint64_t (&round_keys)[10][2], uint32_t position, uint32_t first_group) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  const __m512i multiplier0 = _mm512_set1_epi64(kMultiplier0);
  const __m512i multiplier1 = _mm512_set1_epi64(kMultiplier1);
  const __m512i groups =
      _mm512_add_epi64(_mm512_set1_epi64(first_group), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
  // Words 2 and 3 of a counter are zeros: after the first round words 0 and 1 are the same for all, and the
  // second round makes words 2 and 3 without a product of vectors.
  const __m512i first_product = _mm512_mul_epu32(multiplier0, groups);
  const __m512i second_product = _mm512_mul_epu32(
      multiplier1,
      _mm512_xor_epi64(_mm512_shuffle_epi32(first_product, _MM_PERM_DDBB), Broadcast(round_keys[0][1])));
  const uint64_t common_product = kMultiplier0 * (position ^ round_keys[0][0]);
  __m512i c0 =
      _mm512_xor_epi64(_mm512_shuffle_epi32(second_product, _MM_PERM_DDBB), Broadcast(round_keys[1][0]));
  __m512i c1 = second_product;
  __m512i c2 = _mm512_xor_epi64(first_product, Broadcast((common_product >> 32) ^ round_keys[1][1]));
  __m512i c3 = Broadcast(common_product);
#pragma GCC unroll 10
  for (int round = 2; round < 10; ++round) {
    constexpr int kXorOfThree = 0x96;
    const __m512i product0 = _mm512_mul_epu32(multiplier0, c0);
    const __m512i product1 = _mm512_mul_epu32(multiplier1, c2);
    const __m512i key0 = Broadcast(round_keys[round][0]);
    const __m512i key1 = Broadcast(round_keys[round][1]);
    // Upper halves by shuffles, which leave Intel's only unit for products of vectors alone, as shifts would
    // not.
    c0 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(product1, _MM_PERM_DDBB), c1, key0, kXorOfThree);
    c2 = _mm512_ternarylogic_epi64(_mm512_shuffle_epi32(product0, _MM_PERM_DDBB), c3, key1, kXorOfThree);
    c1 = product1;
    c3 = product0;
  }
  return {_mm512_mask_shuffle_epi32(c0, 0xAAAA, c1, _MM_PERM_CCAA),
          _mm512_mask_shuffle_epi32(c2, 0xAAAA, c3, _MM_PERM_CCAA)};
}

TANDEM_AVX512 uint64_t FindBitsAvx512(const uint64_t (&round_keys)[10][2], uint32_t position,
                                      uint32_t first_group, uint32_t least, uint32_t (&bits)[kTokenBlock]) {
  const PhiloxWords first = PhiloxAvx512(round_keys, position, first_group);
  const PhiloxWords second = PhiloxAvx512(round_keys, position, first_group + 8);
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(least));
  const __m512i greatest =
      _mm512_max_epu32(_mm512_max_epu32(first.low, first.high), _mm512_max_epu32(second.low, second.high));
  if (_mm512_cmpge_epu32_mask(greatest, bound) == 0) return 0;
  const __m512i words[4] = {
      _mm512_unpacklo_epi64(first.low, first.high), _mm512_unpackhi_epi64(first.low, first.high),
      _mm512_unpacklo_epi64(second.low, second.high), _mm512_unpackhi_epi64(second.low, second.high)};
  uint64_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(bits + 16 * i, words[i]);
    mask |= uint64_t{_mm512_cmpge_epu32_mask(words[i], bound)} << (16 * i);
  }
  return mask;
}

#endif

}  // namespace

// x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716, by its
// series up to s^17, whose remainder is below 1e-14 of the sum.
double NaturalLog(double x) {
  constexpr uint64_t kMantissaMask = (uint64_t{1} << 52) - 1;
  constexpr double kSqrt2 = 1.41421356237309504880;
  const uint64_t x_bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(x_bits >> 52) - 1023;
  double m = std::bit_cast<double>((x_bits & kMantissaMask) | (uint64_t{1023} << 52));
  if (m >= kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double series = 1.0 / 17;
  series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13;
  series = series * z + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  series = series * z + 1.0;
  return exponent * kLn2 + 2.0 * s * series;
}

float GumbelFromBits(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * (1.0 / 4294967296.0);
  return static_cast<float>(-NaturalLog(-NaturalLog(u)));
}

float GumbelNoise(uint64_t seed, uint32_t position, TokenId token) {
  const uint32_t unsigned_token = static_cast<uint32_t>(token);
  const PhiloxCounter words = Philox4x32({unsigned_token / 4, position, 0, 0},
                                         {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return GumbelFromBits(words[unsigned_token % 4]);
}

uint64_t TokenWeight(float gap) {
  return WeightOf(gap);
}

TANDEM_SIMD_CLONES
void TokenWeights(const float (&gaps)[kTokenBlock], uint64_t (&weights)[kTokenBlock]) {
  for (int i = 0; i < kTokenBlock; ++i) weights[i] = WeightOf(gaps[i]);
}

NoiseKey::NoiseKey(uint64_t seed, uint32_t position) : seed_(seed), position_(position) {
  uint32_t halves[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (auto& keys : round_keys_) {
    keys[0] = halves[0];
    keys[1] = halves[1];
    halves[0] += 0x9E3779B9;
    halves[1] += 0xBB67AE85;
  }
}

uint64_t NoiseKey::FindBits(TokenId first_token, uint32_t least, uint32_t (&bits)[kTokenBlock]) const {
  const auto first_group = static_cast<uint32_t>(first_token) / 4;
#if defined(__x86_64__)
  if (ComputesWithAvx512()) return FindBitsAvx512(round_keys_, position_, first_group, least, bits);
#endif
  if (PhiloxBlock(seed_, position_, first_group, bits) < least) return 0;
  uint64_t mask = 0;
  for (int i = 0; i < kTokenBlock; ++i) mask |= static_cast<uint64_t>(bits[i] >= least ? 1 : 0) << i;
  return mask;
}

}  // namespace tandem

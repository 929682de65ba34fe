#include "common/speculation/gumbel.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "common/base/philox.h"
#include "common/speculation/simd_clones.h"

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
// counter {first_group + g, position, 0, 0} goes to bits[4 * g + w].
inline void PhiloxBlock(uint64_t seed, uint32_t position, uint32_t first_group,
                        uint32_t (&bits)[kTokenBlock]) {
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
}

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

// As -log u >= 1 - u, noise G = -log(-log u) of at least h needs 1 - u <= exp(-h). 1 - u is rounded down to
// 24 bits, and 2^y is bounded from above by linear interpolation between powers of two, which costs one
// conversion: the float whose bits are y + 127 in fixed point with 23 fractional bits. kSlack covers all
// roundings.
TANDEM_SIMD_CLONES
uint64_t FindContenders(uint64_t seed, uint32_t position, TokenId first_token,
                        const float (&gaps)[kTokenBlock], float score, uint32_t (&bits)[kTokenBlock]) {
  assert(score > -4.0f && score < kMaxGumbel);
  PhiloxBlock(seed, position, static_cast<uint32_t>(first_token) / 4, bits);
  constexpr float kSlack = 1e-3f;
  constexpr float kTwo23 = 8388608.0f;
  int32_t passes[kTokenBlock];
  for (int i = 0; i < kTokenBlock; ++i) {
    // Between 0 and 140, as the score is one that noise can reach.
    const float y = (127.0f + kSlack) - (Limited(gaps[i]) + score) * static_cast<float>(kLog2E);
    const float bound = std::bit_cast<float>(static_cast<int32_t>(y * kTwo23));
    const float complement = static_cast<float>(static_cast<int32_t>(~bits[i] >> 8)) * (0.5f / kTwo23);
    passes[i] = complement <= bound ? 1 : 0;
  }
  int32_t any = 0;
  for (int i = 0; i < kTokenBlock; ++i) any |= passes[i];
  if (any == 0) return 0;
  uint64_t mask = 0;
  for (int i = 0; i < kTokenBlock; ++i) mask |= static_cast<uint64_t>(passes[i]) << i;
  return mask;
}

}  // namespace tandem

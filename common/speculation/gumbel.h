#pragma once

#include <bit>
#include <cassert>
#include <cstdint>

#include "common/base/token.h"

namespace tandem {

// The numerical base of the seeded choice (DESIGN law 2). Everything here uses only IEEE additions,
// subtractions, multiplications, divisions and bit operations in a fixed order, never the C library's
// transcendental functions, so that results have the same bits on every machine.

// Natural logarithm of a positive, normal, finite number; relative error below 1e-12, near 1 too.
double NaturalLog(double x);

// The key of every noise value of a request, and the standard Gumbel variate that 32 random bits stand for:
// -log(-log u), u = (bits + 0.5) / 2^32.
float GumbelFromBits(uint32_t bits);

// An upper bound of GumbelFromBits over all bits: values are between -3.14 and 22.88.
inline constexpr float kMaxGumbel = 22.9f;

// Standard Gumbel noise G(seed, position, token): a function of these three and of nothing else. The bits are
// word token % 4 of Philox4x32-10 with counter {token / 4, position, 0, 0} and key {low, high half of seed}.
float GumbelNoise(uint64_t seed, uint32_t position, TokenId token);

// Tokens are processed in blocks of this many, a constant that the compiler can vectorise for.
inline constexpr int kTokenBlock = 64;

// A token's weight in probability sums: round(exp(-gap) * 2^40), where `gap`, 0 or more, is the distance of
// its scaled logit from the best one's. Integers make sums independent of their order; a sum over 2^22 tokens
// fits.
inline constexpr int kWeightBits = 40;
uint64_t TokenWeight(float gap);

// TokenWeight of each of `gaps`.
void TokenWeights(const float (&gaps)[kTokenBlock], uint64_t (&weights)[kTokenBlock]);

// The key of the noise of all tokens at one position, expanded for whole blocks.
class NoiseKey {
 public:
  NoiseKey(uint64_t seed, uint32_t position);

  // The random bits of tokens [first_token, first_token + kTokenBlock), `first_token` being a multiple of
  // kTokenBlock. Returns a mask: bit i is set where bits[i] >= least. Without any, `bits` may be left as they
  // are.
  uint64_t FindBits(TokenId first_token, uint32_t least, uint32_t (&bits)[kTokenBlock]) const;

 private:
  uint64_t seed_;
  uint32_t position_;
  // Both halves of the key of each of Philox's rounds.
  uint64_t round_keys_[10][2];
};

// Bits below these stand for noise less than `noise`; those from there on may stand for less too. `noise` is
// above -4.
//
// As -log u >= 1 - u, noise G = -log(-log u) of at least h needs 1 - u <= exp(-h). 2^y is bounded from above
// by linear interpolation between powers of two, which costs one conversion: the float whose bits are y + 127
// in fixed point with 23 fractional bits. kSlack covers all roundings.
inline uint32_t LeastBitsOf(float noise) {
  assert(noise > -4.0f);
  constexpr float kSlack = 1e-3f;
  constexpr float kLog2E = 1.44269504f;
  constexpr float kTwo23 = 8388608.0f;
  // Beyond 64 nothing matters.
  const float y = (127.0f + kSlack) - (noise < 64.0f ? noise : 64.0f) * kLog2E;
  const float bound = std::bit_cast<float>(static_cast<int32_t>(y * kTwo23));
  if (bound >= 1.0f) return 0;
  return ~static_cast<uint32_t>(static_cast<double>(bound) * 4294967296.0);
}

}  // namespace tandem

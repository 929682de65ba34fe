#pragma once

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

// What a token counts for in probability sums: round(exp(-gap) * 2^40), `gap` being how far its scaled logit
// is below the best one's, 0 or more. Integers make sums independent of their order; a sum over 2^22 tokens
// fits.
inline constexpr int kWeightBits = 40;
uint64_t TokenWeight(float gap);

// TokenWeight of each of `gaps`.
void TokenWeights(const float (&gaps)[kTokenBlock], uint64_t (&weights)[kTokenBlock]);

// The random bits of tokens [first_token, first_token + 64); `first_token` is a multiple of 4. Returns a
// mask: bit i is set when token first_token + i may have GumbelFromBits(bits[i]) - gaps[i] >= score. Never
// misses one; one that is set may still fall short. `score` is a value of the noise or above it: in (-4,
// kMaxGumbel).
uint64_t FindContenders(uint64_t seed, uint32_t position, TokenId first_token,
                        const float (&gaps)[kTokenBlock], float score, uint32_t (&bits)[kTokenBlock]);

}  // namespace tandem

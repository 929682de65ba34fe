#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"

// common/speculation/gumbel.h and common/base/philox.h once more, for a GPU: the same operations in the same
// order, so that the seeded choice has the same bits there (law 2). Tests hold the two against one another.

namespace tandem {

inline constexpr float kDeviceMaxGumbel = 22.9f;

TANDEM_DEVICE double DeviceNaturalLog(double x) {
  constexpr uint64_t kMantissaMask = (uint64_t{1} << 52) - 1;
  constexpr double kSqrt2 = 1.41421356237309504880;
  const auto x_bits = BitsAs<uint64_t>(x);
  int exponent = static_cast<int>(x_bits >> 52) - 1023;
  double m = BitsAs<double>((x_bits & kMantissaMask) | (uint64_t{1023} << 52));
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
  return exponent * 0.69314718055994530942 + 2.0 * s * series;
}

TANDEM_DEVICE float DeviceGumbel(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * (1.0 / 4294967296.0);
  return static_cast<float>(-DeviceNaturalLog(-DeviceNaturalLog(u)));
}

// Philox4x32-10 of the counter {group, position, 0, 0}: the bits of tokens 4 * group to 4 * group + 3.
TANDEM_DEVICE void DevicePhilox(uint64_t seed, uint32_t position, uint32_t group, uint32_t (&bits)[4]) {
  uint32_t c0 = group;
  uint32_t c1 = position;
  uint32_t c2 = 0;
  uint32_t c3 = 0;
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  bits[0] = c0;
  bits[1] = c1;
  bits[2] = c2;
  bits[3] = c3;
}

// TokenWeight: round(exp(-gap) * 2^40).
TANDEM_DEVICE uint64_t DeviceTokenWeight(float gap) {
  constexpr double kRounder = 6755399441055744.0;
  constexpr double kTwo52 = 4503599627370496.0;
  const double x = -static_cast<double>(gap < 64.0f ? gap : 64.0f);
  const double shifted = x * 1.44269504088896340736 + kRounder;
  const double r = x - (shifted - kRounder) * 0.69314718055994530942;
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
  const uint64_t exponent = BitsAs<uint64_t>(shifted) - BitsAs<uint64_t>(kRounder);
  const double scale = BitsAs<double>((exponent + 1023 + 40) << 52);
  return BitsAs<uint64_t>(series * scale + kTwo52) - BitsAs<uint64_t>(kTwo52);
}

}  // namespace tandem

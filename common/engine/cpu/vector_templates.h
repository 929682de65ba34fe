#pragma once

#include "common/engine/cpu/kernel_table.h"

// Functions that kernels share: partial vectors, sums over lanes, the exponential. See kernel_templates.h.

#define TANDEM_INLINE inline __attribute__((always_inline))
// The same between a lambda's parameters and its body.
#define TANDEM_INLINE_LAMBDA __attribute__((always_inline))

namespace tandem {
namespace {

// Reads the first `count` (< kLanes) floats; the rest are 0.
template <typename V>
TANDEM_INLINE V LoadFirst(const float* from, size_t count) {
  alignas(64) float lanes[kLanes] = {};
  for (size_t i = 0; i < count; ++i) lanes[i] = from[i];
  return V::Load(lanes);
}

template <typename V>
TANDEM_INLINE void StoreFirst(V value, size_t count, float* to) {
  alignas(64) float lanes[kLanes];
  V::Store(value, lanes);
  for (size_t i = 0; i < count; ++i) to[i] = lanes[i];
}

// Adds the lanes in halves: 16 -> 8 -> 4 -> 2 -> 1. V may have its own implementation.
template <typename V>
TANDEM_INLINE float SumLanes(V value) {
  if constexpr (requires { V::SumLanes(value); }) return V::SumLanes(value);
  alignas(64) float lanes[kLanes];
  V::Store(value, lanes);
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// exp(x) to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, the Taylor polynomial of degree 7 in r
// (remainder below 6e-9 of the result), times 2^n. Above 88 it stays at exp(88); below the smallest normal
// number it is 0.
template <typename V>
TANDEM_INLINE V Exponential(V x) {
  constexpr float kSmallest = -87.33654f;  // ln(2^-126), rounded towards 0.
  // Adding 1.5 * 2^23 rounds to an integer, in the low bits of the sum.
  const V magic = V::Broadcast(12582912.0f);
  const V clamped = V::Min(V::Broadcast(88.0f), V::Max(V::Broadcast(kSmallest), x));
  const V shifted = V::Fma(clamped, V::Broadcast(1.44269504088896341f), magic);
  const V n = V::Subtract(shifted, magic);
  // ln 2 in two parts; the first has few enough bits that n times it is exact.
  V r = V::Fma(n, V::Broadcast(-0.693359375f), clamped);
  r = V::Fma(n, V::Broadcast(2.12194440054690583e-4f), r);
  V sum = V::Broadcast(1.0f / 5040);
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 720));
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 120));
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 24));
  sum = V::Fma(sum, r, V::Broadcast(1.0f / 6));
  sum = V::Fma(sum, r, V::Broadcast(0.5f));
  sum = V::Fma(sum, r, V::Broadcast(1.0f));
  sum = V::Fma(sum, r, V::Broadcast(1.0f));
  return V::ZeroWhereLess(x, V::Broadcast(kSmallest), V::Multiply(sum, V::PowerOfTwo(shifted)));
}

// cap * tanh(x / cap) = cap - 2 cap / (exp(2 x / cap) + 1)
template <typename V>
TANDEM_INLINE V Cap(float cap, V x) {
  const V power = Exponential(V::Multiply(x, V::Broadcast(2.0f / cap)));
  return V::Subtract(V::Broadcast(cap),
                     V::Divide(V::Broadcast(2.0f * cap), V::Add(power, V::Broadcast(1.0f))));
}

}  // namespace
}  // namespace tandem

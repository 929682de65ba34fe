#pragma once

#include <cstdint>

#include "common/engine/cpu/kernel_table.h"

namespace tandem {

// A group of weights of one output as integers: weight k is about scale * values[k].
struct QuantizedGroup {
  // A number that bfloat16 holds. 0 for a group of zeros; NaN if a weight is not finite.
  float scale = 0.0f;
  int8_t values[kInputGroup] = {};
};

// Rounds to the nearest, at most 127 in magnitude. The error is at most scale / 2, and the scale exceeds the
// least one that holds the greatest of `weights` ([kInputGroup]) by at most a factor of 1 + 2^-7.
QuantizedGroup QuantizeInt8(const float* weights);

// At most 7 in magnitude. Tries some scales, from the one that holds the greatest weight down to half of it,
// and takes the one with the least sum of squared errors: clipping a few great weights buys finer steps for
// all others.
QuantizedGroup QuantizeInt4(const float* weights);

}  // namespace tandem

#pragma once

#include <cstdint>

#include "common/engine/cpu/kernel_table.h"

namespace tandem {

// A group of weights of one output as integers: weight k is about scale * values[k].
struct QuantizedGroup {
  // A float that bfloat16 holds. 0 for a group of zeros; not a number if a weight is not finite.
  float scale = 0.0f;
  int8_t values[kInputGroup] = {};
};

// Round to nearest, at most 127 in magnitude: an error of at most scale / 2, and a scale at most 2^-7 above
// the least that holds the greatest of `weights` ([kInputGroup]).
QuantizedGroup QuantizeInt8(const float* weights);

// At most 7 in magnitude. Of some scales from the one that holds the greatest weight down to half of it, the
// one with the least sum of squared errors: a few great weights that lose something are the price for finer
// steps for all others.
QuantizedGroup QuantizeInt4(const float* weights);

}  // namespace tandem

#pragma once

#include <cstdint>

#include "common/model/model.h"

namespace tandem {

// Tells targets apart for which draft heads were trained: a hash over the sizes and the norms' weights, which
// every training changes, whatever type the files keep the matrices in. 64 bits, never 0: HashBytes over, one
// after the other as little-endian float32, the final norm's weights and each layer's input and
// post-attention norms', seeded with HashCombine(hidden_size, num_layers). Part of file formats: never change
// it.
uint64_t TargetFingerprint(const Model& model);

}  // namespace tandem

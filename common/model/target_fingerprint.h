#pragma once

#include <cstdint>

#include "common/model/model.h"

namespace tandem {

// Identifies the target for which a draft head was trained: a hash over the sizes and the norms' weights,
// which every training changes, and which do not depend on the number type of the matrices in files. 64 bits,
// never 0: HashBytes over, one after the other as little-endian float32, the final norm's weights and each
// layer's input and post-attention norms', seeded with HashCombine(hidden_size, num_layers). Part of file
// formats: never change it.
uint64_t TargetFingerprint(const Model& model);

}  // namespace tandem

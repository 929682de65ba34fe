#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/engine/cuda/device_ops.h"

namespace tandem {

// Weights on their way into the tiles that products read (product_kernels.h): the same integers and scales as
// the CPU engine's of that type.

// Of a group of one tile; 0 for kBf16, which has no tiles.
uint32_t PackedGroupWords(DeviceFormat format);

// Rounds the weights of output `output` of a tile, [depth], into the tile's words [groups][PackedGroupWords]
// and scales [groups][kPackedOutputs], in which its places are 0 as yet.
void PackOutput(DeviceFormat format, absl::Span<const float> weights, uint32_t output, uint32_t* words,
                Bf16* scales);

}  // namespace tandem

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/engine/cuda/device_ops.h"

namespace tandem {

// Packs weights into the tiles that products read (product_kernels.h), with the same integers and scales as
// the CPU engine's for this type.

// Words of one group of one tile; 0 for kBf16, which has no tiles.
uint32_t PackedGroupWords(DeviceFormat format);

// Rounds integers' weights of output `output` of a tile, [depth], into the tile's words
// [groups][PackedGroupWords] and scales [groups][kPackedOutputs], in which its places are 0 as yet.
void PackOutput(DeviceFormat format, absl::Span<const float> weights, uint32_t output, uint32_t* words,
                Bf16* scales);

// The same as floats in e4m3, of the magnitudes up to 448: nearest to weight / scale, ties to even.
void PackFp8Output(absl::Span<const float> weights, float scale, uint32_t output, uint32_t* words);

// The greatest magnitude, as bits of a float, so that values that are not finite are the greatest.
uint32_t GreatestMagnitude(absl::Span<const float> weights);
// The scale that puts the greatest magnitude at 448; 0 for weights below 2^-100, which count as zeros, and
// not a number for those that are not finite.
float Fp8Scale(uint32_t greatest_magnitude);

// Bits of e4m3: the nearest to `value`, ties to even, at most 448 in magnitude.
uint8_t ToE4m3(float value);

}  // namespace tandem

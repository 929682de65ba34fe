#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/engine/cuda/device_ops.h"

namespace tandem {

// Packs weights into the tiles that products read (product_kernels.h), with the same integers and scales as
// the CPU engine's for this type.

// Words of one group of one tile; 0 for kBf16, which has no tiles.
uint32_t PackedGroupWords(DeviceFormat format);

// Rounds the weights of output `output` of a tile, [depth], to integers. Writes them and the scales to the
// tile's words [groups][PackedGroupWords] and scales [groups][kPackedOutputs], where the output's places must
// be 0 before.
void PackOutput(DeviceFormat format, absl::Span<const float> weights, uint32_t output, uint32_t* words,
                Bf16* scales);

// The same for floats in e4m3 with magnitudes up to 448: the nearest to weight / scale, ties to even.
void PackFp8Output(absl::Span<const float> weights, float scale, uint32_t output, uint32_t* words);

// The greatest magnitude, as a float's bits, so that infinities and NaNs are the greatest.
uint32_t GreatestMagnitude(absl::Span<const float> weights);
// The scale that maps the greatest magnitude to 448. It is 0 for magnitudes below 2^-100, which count as
// zeros, and NaN if the magnitude is not finite.
float Fp8Scale(uint32_t greatest_magnitude);

// Bits of e4m3: the nearest to `value`, ties to even, at most 448 in magnitude.
uint8_t ToE4m3(float value);

}  // namespace tandem

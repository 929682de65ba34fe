#pragma once

#include "common/engine/cpu/kernel_table.h"

namespace tandem {

// One line per k, [depth][kTileOutputs], so that the vector lanes run over outputs.
WeightLayout F32Lines();

// The same in bfloat16. Element 2 i of a line is output i, element 2 i + 1 output i + 16: then one shift and
// one mask of 32-bit lanes make two vectors of floats. The low half of a float32 weight is dropped: pack only
// weights that bfloat16 can hold.
WeightLayout Bf16Lines();

// [depth / 32][2][16][16][2] in bfloat16, depth padded with zeros. For 32 inputs and 16 outputs at a time,
// there is one line for each pair of inputs, with each output's pair of weights: the content of an AMX tile.
WeightLayout Bf16AmxTiles();

// [depth / 4][kTileOutputs][4] in bfloat16, depth padded with zeros. BFMMLA multiplies by 4 inputs' weights
// of two neighbouring outputs.
WeightLayout Bf16Quads();

// [depth / 32][8][2][kTileOutputs][2] in bfloat16, depth padded with zeros. For each 32 inputs, line (j,
// chain) holds each output's weights for the inputs 4 j + chain + 2 and 4 j + chain, in this order. VDPBF16PS
// adds the second of a pair first, so lines of one chain add up every other input in ascending order, as an
// AMX tile does.
WeightLayout Bf16Chains();

}  // namespace tandem

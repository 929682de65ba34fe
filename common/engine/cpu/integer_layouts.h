#pragma once

#include <cstddef>

#include "common/engine/cpu/kernel_table.h"

// Weights as integers of 8 or 4 bits. For each group of kInputGroup inputs (the last padded with zeros), a
// tile holds a line of 64 bytes with the scales of its outputs in bfloat16, followed by the integers. The
// scales are in pairs: output i at 2 i, output i + 16 at 2 i + 1. That makes 8.25 and 4.25 bits per weight.

namespace tandem {

inline constexpr size_t kScaleLineBytes = 64;
inline constexpr size_t kInt8GroupBytes = kScaleLineBytes + size_t{kInputGroup} * kTileOutputs;
inline constexpr size_t kInt4GroupBytes = kScaleLineBytes + size_t{kInputGroup} * kTileOutputs / 2;

// [32][32][2]: one line for each pair of inputs, with each output's pair of weights.
WeightLayout Int8Lines();

// [16][32][2]: lines 0 to 15 of Int8Lines in the low halves of the bytes, 16 to 31 in the high halves.
WeightLayout Int4Lines();

// [2][16][16][4]: for 16 outputs at a time, one line for every four inputs, with each output's four weights:
// the content of an AMX tile.
WeightLayout Int8AmxTiles();

// [2][8][16][4]: lines 0 to 7 of each of those tiles in the low halves of the bytes, 8 to 15 in the high
// halves.
WeightLayout Int4AmxTiles();

// [8][16][2][8]: for eight inputs at a time, the weights of one output and then of the next: the operand of
// an SMMLA instruction.
WeightLayout Int8Octets();

// [4][16][2][8]: the first four of those eight in the low halves of the bytes, the others in the high halves.
WeightLayout Int4Octets();

// Int8AmxTiles and Int4AmxTiles with 2^kInt8OffsetBits and 2^kInt4OffsetBits added to each integer, so that
// none is negative: VPDPBUSD multiplies unsigned integers by signed ones.
inline constexpr int kInt8OffsetBits = 7;
inline constexpr int kInt4OffsetBits = 3;
WeightLayout Int8OffsetTiles();
WeightLayout Int4OffsetTiles();

}  // namespace tandem

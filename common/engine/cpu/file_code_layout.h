#pragma once

#include <cstddef>
#include <cstdint>

#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/vector_templates.h"

// Weights with the codes and scales of their file (common/model/coded_rows.h), for integer products. They
// take about as many bits as in the file: Q4_K 4.75, Q6_K 6.63, Q4_0 and Q8_0 as there.
//
// A tile holds its superblocks of kSuperblock inputs one after the other; the last may have fewer groups of
// kCodeGroup inputs, and its last group is padded with zeros. A superblock is
//
//   scales, then minimums if the format stores them. With kUnits, units first: float32 [kTileOutputs], and
//     likewise the minimums' if there are any; then [groups][parts][kTileOutputs] integers of 8 bits.
//     Otherwise [groups][parts][kTileOutputs] of float32, float16 or bfloat16. A group has two parts if
//     is_fine, else one.
//   zeros up to a multiple of 64 bytes
//   codes [groups][2][bits][64]: for 16 outputs at a time `bits` lines, each with four bytes for each output
//
// A quad is a code of each of four inputs, one in each of those bytes. The 8 quads of a group, in bytes: line
// j is quad j. Smaller codes are divided into planes of 4, 2 and 1 bits, with lines in this order:
//
//   4 bits  4 lines: quad j in the low half of line j, quad j + 4 in the high half
//   2 bits  2 lines: quad j in bits 2 (j % 4) and up of line j / 4
//   1 bit   1 line: quad j in bit j
//
// 5 bits have planes of 4 and 1, 6 of 4 and 2, 3 of 2 and 1; the first plane has the lowest bits. Codes of 8
// bits are the values; smaller ones are not negative, value + zero_point().

namespace tandem {
namespace {

inline constexpr uint32_t kCodeGroup = 32;
inline constexpr uint32_t kSuperblockGroups = 8;
inline constexpr uint32_t kQuads = kCodeGroup / 4;
inline constexpr uint32_t kHalfOutputs = 16;
inline constexpr size_t kCodeLineBytes = 64;

TANDEM_INLINE constexpr uint32_t NumCodeGroups(uint32_t depth) {
  return (depth + kCodeGroup - 1) / kCodeGroup;
}

TANDEM_INLINE constexpr uint32_t NumParts(const FileCodeFormat& format) {
  return format.is_fine ? 2 : 1;
}

TANDEM_INLINE constexpr int ZeroPoint(const FileCodeFormat& format) {
  return format.has_zero_point ? 1 << (format.bits - 1) : 0;
}

// Of one scale or minimum.
TANDEM_INLINE constexpr size_t ScaleBytes(const FileCodeFormat& format) {
  return format.scales == CodeScales::kUnits   ? sizeof(int8_t)
         : format.scales == CodeScales::kFloat ? sizeof(float)
                                               : sizeof(uint16_t);
}

// Of the units of a superblock.
TANDEM_INLINE constexpr size_t UnitBytes(const FileCodeFormat& format) {
  const size_t kinds = format.has_minimums ? 2 : 1;
  return format.scales == CodeScales::kUnits ? kinds * kTileOutputs * sizeof(float) : 0;
}

// Of what precedes the codes of a superblock with this many groups.
TANDEM_INLINE constexpr size_t HeaderBytes(const FileCodeFormat& format, uint32_t groups) {
  const size_t kinds = format.has_minimums ? 2 : 1;
  const size_t bytes =
      UnitBytes(format) + kinds * groups * NumParts(format) * kTileOutputs * ScaleBytes(format);
  return (bytes + 63) / 64 * 64;
}

// Of a group's codes.
TANDEM_INLINE constexpr size_t CodeBytes(const FileCodeFormat& format) {
  return size_t{kCodeGroup} * kTileOutputs / 8 * format.bits;
}

TANDEM_INLINE constexpr uint64_t FileCodeTileBytes(const FileCodeFormat& format, uint32_t depth) {
  const uint32_t groups = NumCodeGroups(depth);
  const uint32_t rest = groups % kSuperblockGroups;
  return uint64_t{groups / kSuperblockGroups} * HeaderBytes(format, kSuperblockGroups) +
         (rest > 0 ? HeaderBytes(format, rest) : 0) + uint64_t{groups} * CodeBytes(format);
}

}  // namespace
}  // namespace tandem

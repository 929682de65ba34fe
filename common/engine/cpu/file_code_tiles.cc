#include "common/engine/cpu/file_code_tiles.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "common/engine/cpu/file_code_layout.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

constexpr uint32_t kQuad = 4;

// A plane of a code's bits.
struct Plane {
  int bits;
  int shift;             // Of its bits within a code.
  uint32_t first_line;   // Of a half group's lines.
  uint32_t quads;        // That share a byte.
  uint32_t quad_stride;  // How far they are apart.
};

struct Planes {
  int count;
  Plane each[2];
};

constexpr Plane PlaneOf(int bits, int shift, uint32_t first_line) {
  // Four bits pair quads that are four apart; smaller planes hold neighbours.
  return {bits, shift, first_line, 8u / static_cast<uint32_t>(bits), bits == 4 ? 4u : 1u};
}

constexpr Planes PlanesOf(int bits) {
  switch (bits) {
    case 2:
      return {1, {PlaneOf(2, 0, 0)}};
    case 3:
      return {2, {PlaneOf(2, 0, 0), PlaneOf(1, 2, 2)}};
    case 4:
      return {1, {PlaneOf(4, 0, 0)}};
    case 5:
      return {2, {PlaneOf(4, 0, 0), PlaneOf(1, 4, 4)}};
    case 6:
      return {2, {PlaneOf(4, 0, 0), PlaneOf(2, 4, 4)}};
    default:
      return {1, {PlaneOf(8, 0, 0)}};
  }
}

// Where a plane has a quad.
struct Place {
  uint32_t line;
  uint32_t bit;
};

constexpr Place PlaceOf(const Plane& plane, uint32_t quad) {
  if (plane.quad_stride == 4)
    return {plane.first_line + quad % 4, quad / 4 * static_cast<uint32_t>(plane.bits)};
  return {plane.first_line + quad / plane.quads, quad % plane.quads * static_cast<uint32_t>(plane.bits)};
}

// Puts the quads of a group into lines. A word holds the four codes of an output.
template <int kBits>
void PackGroup(const uint8_t (&codes)[kTileOutputs][kCodeGroup], char* to) {
  constexpr Planes kPlanes = PlanesOf(kBits);
  for (uint32_t half = 0; half < 2; ++half) {
    uint32_t lines[kBits][kHalfOutputs] = {};
    for (uint32_t output = 0; output < kHalfOutputs; ++output) {
      uint32_t quads[kQuads];
      std::memcpy(quads, codes[half * kHalfOutputs + output], sizeof(quads));
      for (int i = 0; i < kPlanes.count; ++i) {
        const Plane plane = kPlanes.each[i];
        const uint32_t mask = 0x01010101u * ((1u << plane.bits) - 1);
        for (uint32_t quad = 0; quad < kQuads; ++quad) {
          const Place place = PlaceOf(plane, quad);
          lines[place.line][output] |= ((quads[quad] >> plane.shift) & mask) << place.bit;
        }
      }
    }
    std::memcpy(to + half * sizeof(lines), lines, sizeof(lines));
  }
}

void PackGroup(int bits, const uint8_t (&codes)[kTileOutputs][kCodeGroup], char* to) {
  switch (bits) {
    case 2:
      return PackGroup<2>(codes, to);
    case 3:
      return PackGroup<3>(codes, to);
    case 4:
      return PackGroup<4>(codes, to);
    case 5:
      return PackGroup<5>(codes, to);
    case 6:
      return PackGroup<6>(codes, to);
    default:
      return PackGroup<8>(codes, to);
  }
}

// The bits of a float16, for a number that it holds exactly.
uint16_t StoreHalf(float number) {
  // float16 has 10 bits of mantissa, and below 2^-14 multiples of 2^-24.
  const uint32_t bits = std::bit_cast<uint32_t>(number);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(number);
  uint16_t half;
  if (magnitude < 0x1p-14f) {
    half = static_cast<uint16_t>(magnitude * 0x1p24f);
  } else if ((bits & 0x7f800000) == 0x7f800000) {
    half = static_cast<uint16_t>(0x7c00 | (bits & 0x7fffff) >> 13);
  } else {
    half = static_cast<uint16_t>(((bits & 0x7fffffff) >> 13) - (112u << 10));
  }
  half = static_cast<uint16_t>(half | sign);
  assert(std::isnan(number) || HalfToFloat(half) == number);
  return half;
}

int8_t StoreInteger(float number, float unit) {
  if (unit == 0.0f || !std::isfinite(unit)) return 1;  // 0 times anything; infinity and NaN stay themselves.
  const float integer = std::nearbyint(number / unit);
  assert(std::fabs(integer) <= 128 && integer * unit == number);
  return static_cast<int8_t>(integer);
}

// The scales or minimums of a superblock.
struct Numbers {
  const std::vector<float>& each;   // [kTileOutputs][num_parts]
  const std::vector<float>& units;  // [kTileOutputs][num_units]
  uint32_t num_parts;
  uint32_t num_units;
};

// `groups` groups from `group` on; returns the next byte.
char* StoreNumbers(const FileCodeFormat& format, const Numbers& numbers, uint32_t group, uint32_t groups,
                   char* to) {
  for (uint32_t at = group; at < group + groups; ++at) {
    for (uint32_t part = 0; part < NumParts(format); ++part) {
      // Coded rows have numbers for every half of a group.
      const uint32_t from = std::min(2 * at + part, numbers.num_parts - 1);
      for (uint32_t output = 0; output < kTileOutputs; ++output) {
        const float number = numbers.each[size_t{output} * numbers.num_parts + from];
        const float unit = numbers.units[size_t{output} * numbers.num_units + at / kSuperblockGroups];
        switch (format.scales) {
          case CodeScales::kFloat:
            std::memcpy(to, &number, sizeof(number));
            to += sizeof(number);
            break;
          case CodeScales::kHalf:
          case CodeScales::kBfloat16: {
            const uint16_t stored = format.scales == CodeScales::kHalf
                                        ? StoreHalf(number)
                                        : static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16);
            std::memcpy(to, &stored, sizeof(stored));
            to += sizeof(stored);
            break;
          }
          case CodeScales::kUnits:
            *to++ = static_cast<char>(StoreInteger(number, unit));
            break;
        }
      }
    }
  }
  return to;
}

char* StoreUnits(const Numbers& numbers, uint32_t superblock, char* to) {
  for (uint32_t output = 0; output < kTileOutputs; ++output, to += sizeof(float)) {
    std::memcpy(to, &numbers.units[size_t{output} * numbers.num_units + superblock], sizeof(float));
  }
  return to;
}

// Reads number `at` of [groups][parts][kTileOutputs].
float LoadNumber(const FileCodeFormat& format, const char* from, size_t at, float unit) {
  switch (format.scales) {
    case CodeScales::kFloat: {
      float number;
      std::memcpy(&number, from + at * sizeof(number), sizeof(number));
      return number;
    }
    case CodeScales::kHalf:
    case CodeScales::kBfloat16: {
      uint16_t bits;
      std::memcpy(&bits, from + at * sizeof(bits), sizeof(bits));
      return format.scales == CodeScales::kHalf ? HalfToFloat(bits)
                                                : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
    case CodeScales::kUnits:
      break;
  }
  return static_cast<float>(static_cast<int8_t>(from[at])) * unit;
}

float LoadFloat(const char* from, size_t at) {
  float number;
  std::memcpy(&number, from + at * sizeof(number), sizeof(number));
  return number;
}

}  // namespace

FileCodeFormat FileCodeFormatOf(const Coding& coding) {
  assert(coding.is_coded && !coding.is_float && coding.bits >= 2 && coding.bits <= 8);
  FileCodeFormat format;
  // There are no codes of seven bits, and bytes are signed.
  format.bits = static_cast<uint8_t>(coding.bits == 7 ? 8 : coding.bits);
  assert(!coding.is_unsigned || coding.bits < 8);
  format.is_fine = coding.is_fine;
  format.has_minimums = coding.has_minimums;
  format.has_zero_point = !coding.is_unsigned && format.bits < 8;
  switch (coding.scales) {
    case Coding::Scales::kFloat:
      format.scales = CodeScales::kFloat;
      break;
    case Coding::Scales::kHalf:
      format.scales = CodeScales::kHalf;
      break;
    case Coding::Scales::kBfloat16:
      format.scales = CodeScales::kBfloat16;
      break;
    case Coding::Scales::kUnits:
      format.scales = CodeScales::kUnits;
      break;
  }
  return format;
}

uint64_t FileCodeBytes(const FileCodeFormat& format, uint32_t depth) {
  return FileCodeTileBytes(format, depth);
}

void PackFileCodes(const FileCodeFormat& format, const CodedRows& weights, void* tile) {
  const auto depth = static_cast<uint32_t>(weights.num_inputs);
  const auto num_parts = static_cast<uint32_t>(weights.num_groups);
  const auto num_units = static_cast<uint32_t>(weights.num_units);
  const Numbers scales = {weights.scales, weights.units, num_parts, num_units};
  const Numbers minimums = {weights.minimums, weights.minimum_units, num_parts, num_units};
  const uint32_t num_groups = NumCodeGroups(depth);
  const int zero = ZeroPoint(format);
  auto* to = static_cast<char*>(tile);
  for (uint32_t first = 0; first < num_groups; first += kSuperblockGroups) {
    const uint32_t groups = std::min(num_groups - first, kSuperblockGroups);
    char* const end = to + HeaderBytes(format, groups);
    const bool has_units = format.scales == CodeScales::kUnits;
    if (has_units) to = StoreUnits(scales, first / kSuperblockGroups, to);
    if (has_units && format.has_minimums) to = StoreUnits(minimums, first / kSuperblockGroups, to);
    to = StoreNumbers(format, scales, first, groups, to);
    if (format.has_minimums) to = StoreNumbers(format, minimums, first, groups, to);
    std::memset(to, 0, static_cast<size_t>(end - to));
    to = end;
    for (uint32_t group = first; group < first + groups; ++group, to += CodeBytes(format)) {
      alignas(64) uint8_t codes[kTileOutputs][kCodeGroup];
      const uint32_t begin = group * kCodeGroup;
      const uint32_t count = std::min(depth - begin, kCodeGroup);
      for (uint32_t output = 0; output < kTileOutputs; ++output) {
        const int8_t* const from = weights.values.data() + size_t{output} * depth + begin;
        uint8_t* const row = codes[output];
        if (count < kCodeGroup) std::memset(row, 0, kCodeGroup);
        count == kCodeGroup ? std::memcpy(row, from, kCodeGroup) : std::memcpy(row, from, count);
        for (uint32_t k = 0; k < kCodeGroup; ++k) row[k] = static_cast<uint8_t>(row[k] + zero);
      }
      PackGroup(format.bits, codes, to);
    }
  }
}

void UnpackFileCodes(const FileCodeFormat& format, const void* tile, uint32_t depth, uint32_t output,
                     float* weights) {
  const Planes planes = PlanesOf(format.bits);
  const auto* from = static_cast<const char*>(tile);
  const bool has_units = format.scales == CodeScales::kUnits;
  const uint32_t num_groups = NumCodeGroups(depth);
  for (uint32_t first = 0; first < num_groups; first += kSuperblockGroups) {
    const uint32_t groups = std::min(num_groups - first, kSuperblockGroups);
    const size_t count = size_t{groups} * NumParts(format) * kTileOutputs;
    const char* const scales = from + UnitBytes(format);
    float unit = 0, minimum_unit = 0;
    if (has_units) {
      unit = LoadFloat(from, output);
      if (format.has_minimums) minimum_unit = LoadFloat(from, kTileOutputs + output);
    }
    const char* const minimums = scales + count * ScaleBytes(format);
    const char* codes = from + HeaderBytes(format, groups);
    for (uint32_t group = 0; group < groups; ++group, codes += CodeBytes(format)) {
      const char* const half = codes + output / kHalfOutputs * format.bits * kCodeLineBytes;
      for (uint32_t k = 0; k < kCodeGroup; ++k) {
        const uint32_t input = (first + group) * kCodeGroup + k;
        if (input >= depth) break;
        int code = 0;
        for (int i = 0; i < planes.count; ++i) {
          const Plane& plane = planes.each[i];
          const Place place = PlaceOf(plane, k / kQuad);
          const auto byte = static_cast<uint8_t>(
              half[place.line * kCodeLineBytes + output % kHalfOutputs * kQuad + k % kQuad]);
          code |= ((byte >> place.bit) & ((1 << plane.bits) - 1)) << plane.shift;
        }
        const int value = format.bits == 8 ? static_cast<int8_t>(code) : code - ZeroPoint(format);
        const uint32_t part = format.is_fine ? k / (kCodeGroup / 2) : 0;
        const size_t at = (size_t{group} * NumParts(format) + part) * kTileOutputs + output;
        weights[input] = static_cast<float>(value) * LoadNumber(format, scales, at, unit);
        if (format.has_minimums) weights[input] -= LoadNumber(format, minimums, at, minimum_unit);
      }
    }
    from = codes;
  }
}

}  // namespace tandem

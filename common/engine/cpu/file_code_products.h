#pragma once

#include "common/engine/cpu/file_code_layout.h"
#include "common/engine/cpu/integer_products.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/vector_templates.h"

// Products with the codes and scales of quantised files (file_code_layout.h), written once for a vector of
// floats V (kernel_templates.h) and a policy I for the integers, which provides
//
//   kOutputs              outputs of a vector, a divisor of kHalfOutputs
//   kVectors              1 or 2: as many vectors as registers hold with all their quads
//   Codes, Sums, Floats   of kOutputs outputs: a quad each (bytes), 32-bit integers, float32
//   Load(line)            Codes
//   And(codes, byte), Or(a, b), ShiftLeft<n>(codes), ShiftRight<n>(codes), in words of 16 bits or more
//   Signed(codes)         codes of 8 bits as Dot wants them
//   Dot<kBits, kFirst, kCount>(codes, inputs, begin, sums)
//                         for each vector the exact sums over quads kFirst to kFirst + kCount of codes of
//                         kBits bits (8: signed, else not negative) times the inputs of a group. `begin`: see
//                         InputRecord.
//   ToFloats(sums)        correctly rounded
//   LoadFloats, BroadcastFloat, Multiply, Fma (a * b + c), NegativeFma (c - a * b), StoreFloats
//
// The codes of kVectors vectors of outputs and one group of inputs are unpacked into registers, and used for
// all rows. So the work for each code is the less the more rows there are, and weights are read once.

namespace tandem {
namespace {

// The inputs of a row and group.
struct InputRecord {
  int8_t inputs[kCodeGroup];
  float scale;
  float sums[2];  // scale * float(sum of the inputs), of the first part and the second. If there is one
                  // part, it is in `sum`.
  float sum;
  int32_t begins[2];  // -128 * (sum of the inputs), for instructions that take codes of 8 bits without signs.
  int32_t begin;      // Of both parts.
  int32_t unused;
};
static_assert(sizeof(InputRecord) == 64);

template <typename V>
uint64_t RecordBytes(uint32_t max_rows, uint32_t depth) {
  return uint64_t{max_rows} * NumCodeGroups(depth) * sizeof(InputRecord);
}

// The greatest magnitude of a group, as a float's bits; those of a NaN if any input is infinite or no number.
template <typename V>
TANDEM_INLINE uint32_t GreatestOf(V low, V high) {
  const V zero = V::Broadcast(0.0f);
  const V magnitudes = V::Max(V::Max(low, V::Subtract(zero, low)), V::Max(high, V::Subtract(zero, high)));
  // Zeros, unless an input is infinite or no number.
  const V zeros = V::Fma(low, zero, V::Multiply(high, zero));
  alignas(64) float lanes[kLanes], checks[kLanes];
  V::Store(magnitudes, lanes);
  V::Store(zeros, checks);
  uint32_t magnitude_bits[kLanes], check_bits[kLanes];
  __builtin_memcpy(magnitude_bits, lanes, sizeof(lanes));
  __builtin_memcpy(check_bits, checks, sizeof(checks));
  uint32_t greatest = 0, check = 0;
  for (uint32_t i = 0; i < kLanes; ++i) {
    // The sign of a zero says nothing.
    greatest = magnitude_bits[i] > greatest ? magnitude_bits[i] : greatest;
    check |= check_bits[i] & 0x7fffffffu;
  }
  return check == 0 ? greatest : 0x7fc00000u;
}

template <typename V>
TANDEM_INLINE void RoundRecord(const float* inputs, InputRecord* record) {
  const V low = V::Load(inputs), high = V::Load(inputs + kLanes);
  const InputScale scale = ScaleOfInputs<kGreatestShortInput>(GreatestOf(low, high));
  if (scale.inverse == 0.0f) {
    __builtin_memset(record, 0, sizeof(*record));
    record->scale = scale.scale;
    record->sums[0] = record->sums[1] = record->sum = scale.scale * 0.0f;
    return;
  }
  // Adding 1.5 * 2^23 rounds to an integer, in the low bits of the sum.
  constexpr int32_t kRounderBits = 0x4b400000;
  const V inverse = V::Broadcast(scale.inverse), rounder = V::Broadcast(12582912.0f);
  alignas(64) float rounded[kCodeGroup];
  V::Store(V::Fma(low, inverse, rounder), rounded);
  V::Store(V::Fma(high, inverse, rounder), rounded + kLanes);
  alignas(64) int32_t integers[kCodeGroup];
  __builtin_memcpy(integers, rounded, sizeof(integers));
  alignas(64) int8_t bytes[kCodeGroup];
  int32_t sums[2] = {};
  for (uint32_t k = 0; k < kCodeGroup; ++k) integers[k] -= kRounderBits;
  for (uint32_t k = 0; k < kCodeGroup; ++k) bytes[k] = static_cast<int8_t>(integers[k]);
  for (uint32_t k = 0; k < kCodeGroup / 2; ++k) {
    sums[0] += integers[k];
    sums[1] += integers[kCodeGroup / 2 + k];
  }
  __builtin_memcpy(record->inputs, bytes, sizeof(bytes));
  record->scale = scale.scale;
  record->sums[0] = scale.scale * static_cast<float>(sums[0]);
  record->sums[1] = scale.scale * static_cast<float>(sums[1]);
  record->sum = scale.scale * static_cast<float>(sums[0] + sums[1]);
  record->begins[0] = -128 * sums[0];
  record->begins[1] = -128 * sums[1];
  record->begin = record->begins[0] + record->begins[1];
  record->unused = 0;
}

template <typename V>
void PrepareRecords(const PrepareArgs& args) {
  const uint32_t num_groups = NumCodeGroups(args.depth);
  for (uint32_t row = args.begin_row; row < args.end_row; ++row) {
    const float* const input = args.inputs + row * args.input_stride;
    auto* const records = static_cast<InputRecord*>(args.prepared) + size_t{row} * num_groups;
    for (uint32_t column = args.begin_column; column < args.end_column; column += kCodeGroup) {
      const uint32_t left = args.end_column - column;
      if (left >= kCodeGroup) {
        RoundRecord<V>(input + column, records + column / kCodeGroup);
      } else {
        alignas(64) float padded[kCodeGroup] = {};
        for (uint32_t k = 0; k < left; ++k) padded[k] = input[column + k];
        RoundRecord<V>(padded, records + column / kCodeGroup);
      }
    }
  }
}

// The scales and minimums of a superblock of a tile.
struct SuperblockScales {
  alignas(64) float scales[kSuperblockGroups * 2 * kTileOutputs];  // [groups][parts][kTileOutputs]
  alignas(64) float minimums[kSuperblockGroups * 2 * kTileOutputs];
};

template <typename V, typename LoadAt>
TANDEM_INLINE void ReadScales(const FileCodeFormat& format, uint32_t count, LoadAt load,
                              SuperblockScales* to) {
  const V zero_point = V::Broadcast(static_cast<float>(ZeroPoint(format)));
  for (uint32_t at = 0; at < count; at += kLanes) {
    const V scale = load(0, at);
    V::Store(scale, to->scales + at);
    V minimum = V::Multiply(scale, zero_point);
    if (format.has_minimums) minimum = V::Add(minimum, load(1, at));
    V::Store(minimum, to->minimums + at);
  }
}

template <typename V>
TANDEM_INLINE void ReadSuperblock(const FileCodeFormat& format, const char* header, uint32_t groups,
                                  SuperblockScales* to) {
  const uint32_t count = groups * NumParts(format) * kTileOutputs;
  const char* const numbers = header + UnitBytes(format);
  const size_t kind_bytes = count * ScaleBytes(format);
  switch (format.scales) {
    case CodeScales::kFloat:
      return ReadScales<V>(
          format, count,
          [&](uint32_t kind, uint32_t at) TANDEM_INLINE_LAMBDA {
            return V::Load(reinterpret_cast<const float*>(numbers + kind * kind_bytes) + at);
          },
          to);
    case CodeScales::kHalf:
      return ReadScales<V>(
          format, count,
          [&](uint32_t kind, uint32_t at) TANDEM_INLINE_LAMBDA {
            return V::LoadHalf(reinterpret_cast<const uint16_t*>(numbers + kind * kind_bytes) + at);
          },
          to);
    case CodeScales::kBfloat16:
      return ReadScales<V>(
          format, count,
          [&](uint32_t kind, uint32_t at) TANDEM_INLINE_LAMBDA {
            return V::LoadBf16(reinterpret_cast<const uint16_t*>(numbers + kind * kind_bytes) + at);
          },
          to);
    case CodeScales::kUnits:
      break;
  }
  const auto* const units = reinterpret_cast<const float*>(header);
  return ReadScales<V>(
      format, count,
      [&](uint32_t kind, uint32_t at) TANDEM_INLINE_LAMBDA {
        const V unit = V::Load(units + kind * kTileOutputs + at % kTileOutputs);
        return V::Multiply(V::LoadInt8(reinterpret_cast<const int8_t*>(numbers + kind * kind_bytes) + at),
                           unit);
      },
      to);
}

// Bits `kFrom` and up of each byte of a line, `kCount` of them, moved to `kTo`.
template <typename I, int kFrom, int kCount, int kTo>
TANDEM_INLINE typename I::Codes MoveBits(typename I::Codes line) {
  constexpr auto kMask = static_cast<uint8_t>(((1 << kCount) - 1) << kTo);
  if constexpr (kFrom > kTo) line = I::template ShiftRight<kFrom - kTo>(line);
  if constexpr (kFrom < kTo) line = I::template ShiftLeft<kTo - kFrom>(line);
  return I::And(line, kMask);
}

template <int kQuad>
struct QuadIndex {
  static constexpr int kValue = kQuad;
};

template <typename Body>
TANDEM_INLINE void ForQuads(Body body) {
  body(QuadIndex<0>()), body(QuadIndex<1>()), body(QuadIndex<2>()), body(QuadIndex<3>());
  body(QuadIndex<4>()), body(QuadIndex<5>()), body(QuadIndex<6>()), body(QuadIndex<7>());
}

// The planes of two bits and of one, from their lines; bits begin at kTo. Planes at 0 are the first.
template <typename I, int kTo>
TANDEM_INLINE void AddPairs(const char* lines, typename I::Codes (&quads)[kQuads]) {
  using Codes = typename I::Codes;
  const Codes pairs[2] = {I::Load(lines), I::Load(lines + kCodeLineBytes)};
  ForQuads([&](auto quad) TANDEM_INLINE_LAMBDA {
    constexpr int kQuad = decltype(quad)::kValue;
    const Codes bits = MoveBits<I, kQuad % 4 * 2, 2, kTo>(pairs[kQuad / 4]);
    if constexpr (kTo == 0) {
      quads[kQuad] = bits;
    } else {
      quads[kQuad] = I::Or(quads[kQuad], bits);
    }
  });
}

template <typename I, int kTo>
TANDEM_INLINE void AddSingles(const char* line, typename I::Codes (&quads)[kQuads]) {
  const typename I::Codes singles = I::Load(line);
  ForQuads([&](auto quad) TANDEM_INLINE_LAMBDA {
    constexpr int kQuad = decltype(quad)::kValue;
    quads[kQuad] = I::Or(quads[kQuad], MoveBits<I, kQuad, 1, kTo>(singles));
  });
}

// The quads of a group; `lines`: where its lines begin for these outputs.
template <typename I, int kBits>
TANDEM_INLINE void UnpackQuads(const char* lines, typename I::Codes (&quads)[kQuads]) {
  if constexpr (kBits == 8) {
    ForQuads([&](auto quad) TANDEM_INLINE_LAMBDA {
      quads[quad.kValue] = I::Signed(I::Load(lines + quad.kValue * kCodeLineBytes));
    });
  } else if constexpr (kBits >= 4) {
    typename I::Codes nibbles[4];
    for (int line = 0; line < 4; ++line) nibbles[line] = I::Load(lines + line * kCodeLineBytes);
    ForQuads([&](auto quad) TANDEM_INLINE_LAMBDA {
      constexpr int kQuad = decltype(quad)::kValue;
      quads[kQuad] = MoveBits<I, kQuad / 4 * 4, 4, 0>(nibbles[kQuad % 4]);
    });
    if constexpr (kBits == 5) AddSingles<I, 4>(lines + 4 * kCodeLineBytes, quads);
    if constexpr (kBits == 6) AddPairs<I, 4>(lines + 4 * kCodeLineBytes, quads);
  } else {
    AddPairs<I, 0>(lines, quads);
    if constexpr (kBits == 3) AddSingles<I, 2>(lines + 2 * kCodeLineBytes, quads);
  }
}

// Rows whose totals and inputs stay in the nearest caches.
inline constexpr uint32_t kCodeRows = 32;
// How far ahead weights are prefetched.
inline constexpr size_t kCodePrefetchBytes = 4096;

// A group of inputs times the outputs of a tile.
template <typename I, int kBits, bool kIsFine>
TANDEM_INLINE void AddCodeGroup(const char* codes, const float* scales, const float* minimums,
                                const InputRecord* records, size_t row_records, uint32_t num_rows,
                                float* totals) {
  using Floats = typename I::Floats;
  constexpr int kVectors = I::kVectors;
  constexpr int kParts = kIsFine ? 2 : 1;
  constexpr int kPartQuads = kQuads / kParts;
  constexpr size_t kHalfBytes = size_t{kBits} * kCodeLineBytes;
  for (size_t at = 0; at < 2 * kHalfBytes; at += 64) __builtin_prefetch(codes + kCodePrefetchBytes + at);
  for (uint32_t first = 0; first < kTileOutputs; first += kVectors * I::kOutputs) {
    typename I::Codes quads[kVectors][kQuads];
    Floats scale[kParts][kVectors], minimum[kParts][kVectors];
#pragma GCC unroll 2
    for (int vector = 0; vector < kVectors; ++vector) {
      const uint32_t output = first + static_cast<uint32_t>(vector) * I::kOutputs;
      UnpackQuads<I, kBits>(codes + output / kHalfOutputs * kHalfBytes + output % kHalfOutputs * 4,
                            quads[vector]);
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        scale[part][vector] = I::LoadFloats(scales + part * static_cast<int>(kTileOutputs) + output);
        minimum[part][vector] = I::LoadFloats(minimums + part * static_cast<int>(kTileOutputs) + output);
      }
    }
    const InputRecord* record = records;
    float* total = totals + first;
    for (uint32_t row = 0; row < num_rows; ++row, record += row_records, total += kTileOutputs) {
      typename I::Sums sums[kParts][kVectors];
      if constexpr (kIsFine) {
        I::template Dot<kBits, 0, kPartQuads>(quads, record->inputs, record->begins, sums[0]);
        I::template Dot<kBits, kPartQuads, kPartQuads>(quads, record->inputs, record->begins + 1, sums[1]);
      } else {
        I::template Dot<kBits, 0, kPartQuads>(quads, record->inputs, &record->begin, sums[0]);
      }
      const Floats input_scale = I::BroadcastFloat(&record->scale);
#pragma GCC unroll 2
      for (int vector = 0; vector < kVectors; ++vector) {
        float* const at = total + static_cast<uint32_t>(vector) * I::kOutputs;
        Floats next = I::LoadFloats(at);
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          next = I::Fma(I::ToFloats(sums[part][vector]), I::Multiply(scale[part][vector], input_scale), next);
          const float* const sum = kIsFine ? &record->sums[part] : &record->sum;
          next = I::NegativeFma(minimum[part][vector], I::BroadcastFloat(sum), next);
        }
        I::StoreFloats(next, at);
      }
    }
  }
}

template <typename V, typename I, int kBits, bool kIsFine>
void MultiplyCodes(const ProductArgs& args) {
  const FileCodeFormat& format = args.codes;
  constexpr size_t kBytes = size_t{kCodeGroup} * kTileOutputs / 8 * kBits;
  constexpr uint32_t kParts = kIsFine ? 2 : 1;
  const uint32_t num_groups = NumCodeGroups(args.depth);
  const size_t tile_bytes = FileCodeTileBytes(format, args.depth);
  alignas(64) float totals[kCodeRows * kTileOutputs];
  SuperblockScales numbers;
  for (uint32_t tile = 0; tile < args.num_tiles; ++tile) {
    const uint32_t first_output = args.first_output + tile * kTileOutputs;
    for (uint32_t first_row = 0; first_row < args.num_rows; first_row += kCodeRows) {
      const uint32_t left = args.num_rows - first_row;
      const uint32_t num_rows = left < kCodeRows ? left : kCodeRows;
      __builtin_memset(totals, 0, num_rows * kTileOutputs * sizeof(float));
      const auto* const records =
          static_cast<const InputRecord*>(args.prepared) + size_t{first_row} * num_groups;
      const char* from = static_cast<const char*>(args.tiles) + tile * tile_bytes;
      for (uint32_t first = 0; first < num_groups; first += kSuperblockGroups) {
        const uint32_t groups =
            num_groups - first < kSuperblockGroups ? num_groups - first : kSuperblockGroups;
        const size_t header_bytes = HeaderBytes(format, groups);
        for (size_t at = 0; at < header_bytes; at += 64) __builtin_prefetch(from + kCodePrefetchBytes + at);
        ReadSuperblock<V>(format, from, groups, &numbers);
        from += header_bytes;
        for (uint32_t group = 0; group < groups; ++group, from += kBytes) {
          const uint32_t at = group * kParts * kTileOutputs;
          AddCodeGroup<I, kBits, kIsFine>(from, numbers.scales + at, numbers.minimums + at,
                                          records + first + group, num_groups, num_rows, totals);
        }
      }
      for (uint32_t row = 0; row < num_rows; ++row) {
        for (uint32_t output = 0; output < kTileOutputs; output += kLanes) {
          StoreOutputs(V::Load(totals + row * kTileOutputs + output), first_output + output, args.end_output,
                       args.outputs[first_row + row]);
        }
      }
    }
  }
}

template <typename V, typename I, bool kIsFine>
TANDEM_INLINE void MultiplyCodesOf(const ProductArgs& args) {
  switch (args.codes.bits) {
    case 2:
      return MultiplyCodes<V, I, 2, kIsFine>(args);
    case 3:
      return MultiplyCodes<V, I, 3, kIsFine>(args);
    case 4:
      return MultiplyCodes<V, I, 4, kIsFine>(args);
    case 5:
      return MultiplyCodes<V, I, 5, kIsFine>(args);
    case 6:
      return MultiplyCodes<V, I, 6, kIsFine>(args);
    default:
      return MultiplyCodes<V, I, 8, kIsFine>(args);
  }
}

template <typename V, typename I>
void MultiplyFileCodes(const ProductArgs& args) {
  args.codes.is_fine ? MultiplyCodesOf<V, I, true>(args) : MultiplyCodesOf<V, I, false>(args);
}

template <typename V, typename I>
void SetFileCodeProduct(KernelTable* table) {
  ProductKernel& product = table->products[static_cast<int>(WeightFormat::kFileCodes)];
  product.input_bits = 8;
  product.prepared_bytes = RecordBytes<V>;
  product.prepare = PrepareRecords<V>;
  product.multiply = MultiplyFileCodes<V, I>;
}

}  // namespace
}  // namespace tandem

#pragma once

#include <cstddef>

#include "common/engine/cpu/kernel_table.h"

// Weights as the integers, or 8-bit floats, of quantised files, which products convert to numbers on the fly:
// value * scale - minimum (common/model/coded_rows.h). A tile holds, for each kCodedGroup inputs (the last
// group padded with zeros):
//
//   scales    float32 [1 or 2][kTileOutputs]: for all these inputs, or, fine, for each half of them
//   minimums  likewise, where the format has them
//   values    8 bits: [kCodedGroup][kTileOutputs]
//             4 bits: zero points [kTileOutputs] of 8 bits, then codes [kCodedGroup / 2][kTileOutputs], input
//             k in the low half of line k, input k + kCodedGroup / 2 in the high half: value = code - zero
//             point
//
// That makes 5.25 to 12 bits a weight.

namespace tandem {

inline constexpr uint32_t kCodedGroup = 32;

template <int kBits, bool kIsFine, bool kHasMinimums, bool kIsFloat = false>
struct CodedFormat {
  static_assert(kBits == 8 || (kBits == 4 && !kIsFine));
  static constexpr int kValueBits = kBits;
  static constexpr bool kFloats = kIsFloat;
  static constexpr uint32_t kNumScales = kIsFine ? 2 : 1;
  static constexpr bool kMinimums = kHasMinimums;
  static constexpr size_t kScaleBytes = kNumScales * kTileOutputs * sizeof(float);
  static constexpr size_t kValuesOffset = kScaleBytes * (kHasMinimums ? 2 : 1);
  static constexpr size_t kZeroBytes = kBits == 4 ? kTileOutputs : 0;
  static constexpr size_t kGroupBytes =
      kValuesOffset + kZeroBytes + size_t{kCodedGroup} * kTileOutputs * kBits / 8;
};

using Coded4 = CodedFormat<4, false, false>;
using Coded4Minimum = CodedFormat<4, false, true>;
using Coded8 = CodedFormat<8, false, false>;
using Coded8Minimum = CodedFormat<8, false, true>;
using Coded8Fine = CodedFormat<8, true, false>;
using Coded8FineMinimum = CodedFormat<8, true, true>;

using CodedFloat8 = CodedFormat<8, false, false, true>;

// The layout of a format kCoded....
WeightLayout CodedLayout(WeightFormat format);

}  // namespace tandem

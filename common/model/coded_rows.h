#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tandem {

// How a matrix can be stored as small integers, without rounding beyond that of its file format. Number k of
// an output is
//
//   value[k] * scale - minimum
//
// with the product rounded to float32, and the difference where there is one.
struct Coding {
  bool is_coded = false;       // Otherwise it is numbers only, and the rest says nothing.
  bool is_float = false;       // Values are F8_E4M3 (Float8ToFloat), and none of the below is true.
  bool has_four_bits = false;  // Values are 0 to 15 less a zero point that 32 inputs share.
  bool is_fine = false;        // 16 inputs share a scale and a minimum, else 32 do.
  bool has_minimums = false;
  // Values take this many bits, 2 to 8: 0 to 2^bits - 1 if is_unsigned, else -2^(bits - 1) to
  // 2^(bits - 1) - 1.
  int bits = 8;
  bool is_unsigned = false;
  // What can store all scales and minimums.
  enum class Scales : uint8_t {
    kFloat,
    kHalf,      // float16
    kBfloat16,  // bfloat16
    kUnits,     // Small integers, times a unit that kUnitInputs inputs of an output share (CodedRows).
  };
  Scales scales = Scales::kFloat;

  static constexpr int64_t kUnitInputs = 256;
};

// A coding that can hold matrices of both codings; none can hold integers and floats.
inline Coding Join(const Coding& a, const Coding& b) {
  const bool is_unsigned = a.is_unsigned && b.is_unsigned;
  // An unsigned value takes one more bit among signed ones.
  const auto bits = [is_unsigned](const Coding& c) {
    return c.bits + (c.is_unsigned && !is_unsigned ? 1 : 0);
  };
  return {.is_coded = a.is_coded && b.is_coded && a.is_float == b.is_float,
          .is_float = a.is_float,
          .has_four_bits = a.has_four_bits && b.has_four_bits,
          .is_fine = a.is_fine || b.is_fine,
          .has_minimums = a.has_minimums || b.has_minimums,
          .bits = std::max(bits(a), bits(b)),
          .is_unsigned = is_unsigned,
          .scales = a.scales == b.scales ? a.scales : Coding::Scales::kFloat};
}

// Some outputs in the form of Coding, with scales and minimums for every 16 inputs, whatever the Coding.
struct CodedRows {
  static constexpr int64_t kGroup = 16;

  // All zeros.
  CodedRows(int64_t outputs, int64_t inputs)
      : num_inputs(inputs),
        num_groups((inputs + kGroup - 1) / kGroup),
        values(static_cast<size_t>(outputs * num_inputs)),
        zeros(static_cast<size_t>(outputs * num_groups)),
        scales(static_cast<size_t>(outputs * num_groups)),
        minimums(static_cast<size_t>(outputs * num_groups)),
        num_units((inputs + Coding::kUnitInputs - 1) / Coding::kUnitInputs),
        units(static_cast<size_t>(outputs * num_units)),
        minimum_units(static_cast<size_t>(outputs * num_units)) {}

  int64_t num_inputs;
  int64_t num_groups;
  std::vector<int8_t> values;   // [outputs, num_inputs], or is_float the bits of floats.
  std::vector<int8_t> zeros;    // [outputs, num_groups]: what makes values 0 to 15, has_four_bits.
  std::vector<float> scales;    // Likewise.
  std::vector<float> minimums;  // Likewise, 0 where there are none.
  // With Scales::kUnits, [outputs, num_units]: a scale is its unit times an integer of -128 to 127, and a
  // minimum likewise, without rounding. Otherwise they say nothing.
  int64_t num_units;
  std::vector<float> units;
  std::vector<float> minimum_units;
};

}  // namespace tandem

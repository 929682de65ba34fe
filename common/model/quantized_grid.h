#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/quantized_matrix.h"

namespace tandem {

// A matrix [outputs, inputs] of a quantised checkpoint, as stored in its files (Quantization): codes, and a
// scale and a zero point for each output and each group of inputs. A number is
//
//   (code - zero point) * scale
//
// in float32, rounded at most once: the difference is exact. A float code that is NaN (F8_E4M3 has such
// codes) gives NaN.
//
// The creator must have checked that all parts have enough bytes for these sizes, and must keep them mapped.
class QuantizedGrid final : public QuantizedMatrix {
 public:
  // The layout of the codes.
  enum class Codes {
    kWordsAlongOutputs,  // [inputs, outputs / n] words: kAwq, in its order
    kWordsAlongInputs,   // [inputs / n, outputs] words
    kWordsOfOutput,      // [outputs, inputs / n] words, the last one perhaps not full
    kInt8,               // [outputs, inputs]
    kFloat8,             // [outputs, inputs], F8_E4M3
  };
  // The layout of one value per block of outputs and inputs, in elements.
  struct Grid {
    int64_t output_stride = 0;
    int64_t input_stride = 0;
  };
  struct Scales {
    enum class DType { kF32, kF16, kBF16 };
    DType dtype = DType::kF32;
    const char* data = nullptr;
    Grid grid;
  };
  // Zero points: words with those of n consecutive outputs, for which `grid` counts words; or bytes, with the
  // grid of the scales. Without `data`, all are `constant`.
  struct Zeros {
    enum class Kind {
      kConstant,
      kWords,     // Unsigned.
      kAwqWords,  // Likewise, in AWQ's order.
      kInt8,
    };
    Kind kind = Kind::kConstant;
    const char* data = nullptr;
    Grid grid;
    int32_t constant = 0;  // All of them, or added to them.
  };
  struct Parts {
    int64_t num_outputs = 0;
    int64_t num_inputs = 0;
    Codes codes_kind = Codes::kWordsAlongOutputs;
    int32_t bits = 4;  // Of a code or zero point in words, where there are n = 32 / bits.
    const char* codes = nullptr;
    int64_t outputs_per_scale = 1;
    int64_t inputs_per_scale = 1;
    Scales scales;
    Zeros zeros;
    // [inputs], the group of each, below num_groups; empty: in order, inputs_per_scale each.
    std::vector<int32_t> group_of_input;
    int64_t num_groups = 1;
    std::vector<absl::string_view> stored;  // All that lies in files, to count and to let go.
  };

  explicit QuantizedGrid(Parts parts)
      : QuantizedMatrix(parts.num_outputs, parts.num_inputs, parts.codes, parts.stored),
        parts_(std::move(parts)) {}

  // Reading several outputs at once is faster if words hold codes of neighbouring outputs.
  void ReadOutputs(int64_t first, int64_t count, absl::Span<float> numbers) const override;
  Coding coding() const override;
  void ReadCodes(int64_t first, int64_t count, int64_t place, CodedRows* rows) const override;

 private:
  void ReadFloatCodes(int64_t first, int64_t count, absl::Span<float> codes) const;
  void ReadCodesOfAwq(int64_t first, int64_t count, absl::Span<float> codes) const;
  void Scale(int64_t output, absl::Span<float> numbers) const;
  float ScaleOf(int64_t output, int64_t group) const;
  int32_t ZeroOf(int64_t output, int64_t group) const;

  const Parts parts_;
};

// The value of an F8_E4M3: a sign, four bits of exponent, three of mantissa; no infinities; NaN if both
// fields are all ones.
float Float8ToFloat(uint8_t bits);

}  // namespace tandem

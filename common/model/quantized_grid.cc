#include "common/model/quantized_grid.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

// Where the bits of the outputs of a word begin in AWQ's order.
constexpr std::array<uint32_t, 8> kAwqShifts = {0, 16, 4, 20, 8, 24, 12, 28};

uint32_t WordAt(const char* words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words + index * static_cast<int64_t>(sizeof(word)), sizeof(word));
  return word;
}

std::array<float, 256> MakeFloat8Table() {
  std::array<float, 256> table;
  for (uint32_t bits = 0; bits < table.size(); ++bits)
    table[bits] = Float8ToFloat(static_cast<uint8_t>(bits));
  return table;
}

// The codes of so many bits in one word.
template <int kBits>
void UnpackWord(uint32_t word, absl::Span<float> codes) {
  constexpr uint32_t kMask = (1u << kBits) - 1;
  for (float& code : codes) {
    code = static_cast<float>(word & kMask);
    word >>= kBits;
  }
}

// Of each of `codes.size() / inputs` outputs the codes of all inputs, where the word of output o and inputs
// [n * w, n * (w + 1)) is the one in place o * output_stride + w * word_stride.
template <int kBits>
void UnpackWords(const char* words, int64_t output_stride, int64_t word_stride, int64_t inputs,
                 absl::Span<float> codes) {
  constexpr int64_t kPerWord = 32 / kBits;
  const int64_t outputs = static_cast<int64_t>(codes.size()) / inputs;
  for (int64_t begin = 0; begin < inputs; begin += kPerWord) {
    const int64_t place = begin / kPerWord * word_stride;
    const auto count = static_cast<size_t>(std::min(kPerWord, inputs - begin));
    for (int64_t output = 0; output < outputs; ++output) {
      UnpackWord<kBits>(WordAt(words, place + output * output_stride),
                        codes.subspan(static_cast<size_t>(output * inputs + begin), count));
    }
  }
}

}  // namespace

float Float8ToFloat(uint8_t bits) {
  const int exponent = bits >> 3 & 0xf;
  const int mantissa = bits & 7;
  if (exponent == 0xf && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

void QuantizedGrid::ReadFloatCodes(int64_t first, int64_t count, absl::Span<float> codes) const {
  const int64_t per_word = 32 / parts_.bits;
  const int64_t inputs = num_inputs();
  const auto unpack = parts_.bits == 4 ? UnpackWords<4> : UnpackWords<8>;
  constexpr auto kWordBytes = static_cast<int64_t>(sizeof(uint32_t));
  switch (parts_.codes_kind) {
    case Codes::kWordsAlongOutputs:
      return ReadCodesOfAwq(first, count, codes);
    case Codes::kWordsAlongInputs:
      return unpack(parts_.codes + first * kWordBytes, 1, num_outputs(), inputs, codes);
    case Codes::kWordsOfOutput: {
      const int64_t words = (inputs + per_word - 1) / per_word;
      return unpack(parts_.codes + first * words * kWordBytes, words, 1, inputs, codes);
    }
    case Codes::kInt8: {
      const auto* const from = reinterpret_cast<const int8_t*>(parts_.codes + first * inputs);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<float>(from[i]);
      return;
    }
    case Codes::kFloat8: {
      static const std::array<float, 256> table = MakeFloat8Table();
      const auto* const from = reinterpret_cast<const uint8_t*>(parts_.codes + first * inputs);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = table[from[i]];
      return;
    }
  }
}

void QuantizedGrid::ReadCodesOfAwq(int64_t first, int64_t count, absl::Span<float> codes) const {
  constexpr int64_t kPerWord = 8;
  const int64_t inputs = num_inputs();
  const int64_t words = num_outputs() / kPerWord;
  for (int64_t begin = first; begin < first + count;) {
    const int64_t end = std::min(begin / kPerWord * kPerWord + kPerWord, first + count);
    float* const to = codes.data() + (begin - first) * inputs;
    for (int64_t input = 0; input < inputs; ++input) {
      const uint32_t word = WordAt(parts_.codes, input * words + begin / kPerWord);
      for (int64_t output = begin; output < end; ++output) {
        const uint32_t shift = kAwqShifts[static_cast<size_t>(output % kPerWord)];
        to[(output - begin) * inputs + input] = static_cast<float>(word >> shift & 0xf);
      }
    }
    begin = end;
  }
}

float QuantizedGrid::ScaleOf(int64_t output, int64_t group) const {
  const Scales& scales = parts_.scales;
  const int64_t at =
      output / parts_.outputs_per_scale * scales.grid.output_stride + group * scales.grid.input_stride;
  if (scales.dtype == Scales::DType::kF32) return std::bit_cast<float>(WordAt(scales.data, at));
  uint16_t bits;
  std::memcpy(&bits, scales.data + at * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
  return scales.dtype == Scales::DType::kF16 ? HalfToFloat(bits)
                                             : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

int32_t QuantizedGrid::ZeroOf(int64_t output, int64_t group) const {
  const Zeros& zeros = parts_.zeros;
  switch (zeros.kind) {
    case Zeros::Kind::kConstant:
      return zeros.constant;
    case Zeros::Kind::kInt8: {
      const int64_t block = output / parts_.outputs_per_scale;
      const int64_t at = block * zeros.grid.output_stride + group * zeros.grid.input_stride;
      return static_cast<int8_t>(zeros.data[at]) + zeros.constant;
    }
    case Zeros::Kind::kWords:
    case Zeros::Kind::kAwqWords:
      break;
  }
  const int64_t per_word = 32 / parts_.bits;
  const uint32_t word =
      WordAt(zeros.data, output / per_word * zeros.grid.output_stride + group * zeros.grid.input_stride);
  const auto place = static_cast<uint32_t>(output % per_word);
  const uint32_t shift =
      zeros.kind == Zeros::Kind::kAwqWords ? kAwqShifts[place] : place * static_cast<uint32_t>(parts_.bits);
  return static_cast<int32_t>(word >> shift & ((1u << parts_.bits) - 1)) + zeros.constant;
}

void QuantizedGrid::ReadOutputs(int64_t first, int64_t count, absl::Span<float> numbers) const {
  assert(first >= 0 && count >= 0 && first + count <= num_outputs());
  assert(static_cast<int64_t>(numbers.size()) == count * num_inputs());
  ReadFloatCodes(first, count, numbers);
  const auto inputs = static_cast<size_t>(num_inputs());
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    Scale(first + static_cast<int64_t>(i), numbers.subspan(i * inputs, inputs));
  }
}

void QuantizedGrid::Scale(int64_t output, absl::Span<float> numbers) const {
  const auto num_groups = static_cast<size_t>(parts_.num_groups);
  if (parts_.group_of_input.empty()) {
    const auto size = static_cast<size_t>(parts_.inputs_per_scale);
    for (size_t group = 0; group < num_groups; ++group) {
      const float scale = ScaleOf(output, static_cast<int64_t>(group));
      const auto zero = static_cast<float>(ZeroOf(output, static_cast<int64_t>(group)));
      for (float& number : numbers.subspan(group * size, size)) number = (number - zero) * scale;
    }
    return;
  }
  std::vector<float> scales(num_groups), zeros(num_groups);
  for (size_t group = 0; group < num_groups; ++group) {
    scales[group] = ScaleOf(output, static_cast<int64_t>(group));
    zeros[group] = static_cast<float>(ZeroOf(output, static_cast<int64_t>(group)));
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto group = static_cast<size_t>(parts_.group_of_input[i]);
    numbers[i] = (numbers[i] - zeros[group]) * scales[group];
  }
}

Coding QuantizedGrid::coding() const {
  // Inputs in any order have no groups.
  if (!parts_.group_of_input.empty()) return {};
  if (parts_.inputs_per_scale < num_inputs() && parts_.inputs_per_scale % CodedRows::kGroup != 0) return {};
  const bool is_fine =
      parts_.inputs_per_scale < num_inputs() && parts_.inputs_per_scale % (2 * CodedRows::kGroup) != 0;
  if (parts_.codes_kind == Codes::kFloat8) return {.is_coded = !is_fine, .is_float = true};
  const bool has_four_bits = parts_.codes_kind != Codes::kInt8 && parts_.bits == 4;
  if (!has_four_bits) {
    // The difference of two bytes may take nine bits.
    const int32_t middle = parts_.codes_kind == Codes::kInt8 ? 0 : 128;
    if (parts_.zeros.kind != Zeros::Kind::kConstant || parts_.zeros.constant != middle) return {};
  }
  Coding coding = {.is_coded = true, .has_four_bits = has_four_bits && !is_fine, .is_fine = is_fine};
  if (has_four_bits) {
    // Zero points of four bits, to which one may be added, make values of -16 to 15.
    const bool is_middle = parts_.zeros.kind == Zeros::Kind::kConstant && parts_.zeros.constant == 8;
    const bool is_in_words =
        parts_.zeros.kind == Zeros::Kind::kWords || parts_.zeros.kind == Zeros::Kind::kAwqWords;
    coding.bits = is_middle ? 4 : is_in_words && parts_.zeros.constant <= 1 ? 5 : 8;
  }
  switch (parts_.scales.dtype) {
    case Scales::DType::kF32:
      coding.scales = Coding::Scales::kFloat;
      break;
    case Scales::DType::kF16:
      coding.scales = Coding::Scales::kHalf;
      break;
    case Scales::DType::kBF16:
      coding.scales = Coding::Scales::kBfloat16;
      break;
  }
  return coding;
}

void QuantizedGrid::ReadCodes(int64_t first, int64_t count, int64_t place, CodedRows* rows) const {
  assert(coding().is_coded);
  const auto inputs = static_cast<size_t>(num_inputs());
  std::vector<float> codes;
  if (parts_.codes_kind == Codes::kFloat8) {
    std::memcpy(rows->values.data() + place * num_inputs(), parts_.codes + first * num_inputs(),
                static_cast<size_t>(count) * inputs);
  } else {
    codes.resize(static_cast<size_t>(count) * inputs);
    ReadFloatCodes(first, count, absl::MakeSpan(codes));
  }
  const auto groups = static_cast<size_t>(rows->num_groups);
  for (size_t row = 0; row < static_cast<size_t>(count); ++row) {
    const int64_t output = first + static_cast<int64_t>(row);
    const size_t to = static_cast<size_t>(place) + row;
    for (size_t group = 0; group < groups; ++group) {
      const size_t begin = group * CodedRows::kGroup;
      const int64_t scaled = static_cast<int64_t>(begin) / parts_.inputs_per_scale;
      const int32_t zero = ZeroOf(output, scaled);
      rows->scales[to * groups + group] = ScaleOf(output, scaled);
      rows->minimums[to * groups + group] = 0.0f;
      rows->zeros[to * groups + group] = static_cast<int8_t>(zero);
      if (codes.empty()) continue;
      for (size_t k = begin; k < std::min(begin + CodedRows::kGroup, inputs); ++k) {
        rows->values[to * inputs + k] =
            static_cast<int8_t>(static_cast<int32_t>(codes[row * inputs + k]) - zero);
      }
    }
  }
}

}  // namespace tandem

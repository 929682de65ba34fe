#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "common/gguf/gguf_file.h"
#include "common/model/gguf_block.h"
#include "common/model/gguf_codebooks.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

constexpr int kParts = 16;  // Of a block of 256 numbers.

// Eight numbers of two bits each.
template <size_t kSize>
void Expand8(const std::array<uint16_t, kSize>& codebook, uint32_t index, const int8_t (&numbers)[4],
             int8_t* out) {
  const uint32_t entry = codebook[index];
  for (int i = 0; i < 8; ++i) out[i] = numbers[(entry >> (2 * i)) & 3];
}

// Four numbers of three bits each.
template <size_t kSize>
void Expand4(const std::array<uint16_t, kSize>& codebook, uint32_t index, const int8_t (&numbers)[8],
             int8_t* out) {
  const uint32_t entry = codebook[index];
  for (int i = 0; i < 4; ++i) out[i] = numbers[(entry >> (3 * i)) & 7];
}

// Turns around the eight numbers whose bit is set.
void Sign(uint32_t bits, int8_t* numbers) {
  for (int i = 0; i < 8; ++i) {
    if (((bits >> i) & 1) != 0) numbers[i] = static_cast<int8_t>(-numbers[i]);
  }
}

// Eight signs from seven bits: the last makes the number of set bits even.
uint32_t EvenSigns(uint32_t bits) {
  return bits | static_cast<uint32_t>(std::popcount(bits) & 1) << 7;
}

uint32_t Word(const uint8_t* in) {
  uint32_t word;
  std::memcpy(&word, in, sizeof(word));
  return word;
}

constexpr int8_t kIq2Numbers[4] = {8, 25, 43, 0};
constexpr int8_t kIq3XxsNumbers[8] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIq3SNumbers[8] = {1, 3, 5, 7, 9, 11, 13, 15};

// For each 32 numbers: four indices of a byte, four times seven bits of signs, four bits of a scale.
void Iq2Xxs(const uint8_t* in, const GgufBlock& out) {
  const float scale = ReadHalf(in);
  out.SetUnits(scale * 0.125f);
  for (int group = 0; group < kParts / 2; ++group) {
    const uint8_t* const indices = in + 2 + 8 * group;
    const uint32_t rest = Word(indices + 4);
    out.SetGroup(group, scale * (0.5f + static_cast<float>(rest >> 28)) * 0.25f);
    for (int i = 0; i < 4; ++i) {
      int8_t* const to = out.values + 32 * group + 8 * i;
      Expand8(kIq2XxsCodebook, indices[i], kIq2Numbers, to);
      Sign(EvenSigns((rest >> (7 * i)) & 0x7f), to);
    }
  }
}

// Four bits of a scale for each 16 numbers.
void SetFourBitScales(const uint8_t* scales, float scale, const GgufBlock& out) {
  out.SetUnits(scale * 0.125f);
  for (int part = 0; part < kParts; ++part) {
    const int bits = (scales[part / 2] >> (part % 2 * 4)) & 0xF;
    out.SetPart(part, scale * (0.5f + static_cast<float>(bits)) * 0.25f);
  }
}

// For each eight numbers an index of nine bits and seven bits of signs; then the scales.
void Iq2Xs(const uint8_t* in, const GgufBlock& out) {
  SetFourBitScales(in + 66, ReadHalf(in), out);
  for (int i = 0; i < 2 * kParts; ++i) {
    const uint32_t bits = ReadUint16(in + 2 + 2 * i);
    Expand8(kIq2XsCodebook, bits & 511, kIq2Numbers, out.values + 8 * i);
    Sign(EvenSigns(bits >> 9), out.values + 8 * i);
  }
}

// For each eight numbers the low byte of an index and eight signs; then two further bits of each index, and
// the scales.
void Iq2S(const uint8_t* in, const GgufBlock& out) {
  SetFourBitScales(in + 74, ReadHalf(in), out);
  const uint8_t *const low = in + 2, *const signs = in + 34, *const high = in + 66;
  for (int i = 0; i < 2 * kParts; ++i) {
    const uint32_t bits = (high[i / 4] >> (i % 4 * 2)) & 3;
    Expand8(kIq2SCodebook, low[i] | bits << 8, kIq2Numbers, out.values + 8 * i);
    Sign(signs[i], out.values + 8 * i);
  }
}

// For each 32 numbers eight indices of a byte; then four times seven bits of signs and four bits of a scale.
void Iq3Xxs(const uint8_t* in, const GgufBlock& out) {
  const float scale = ReadHalf(in);
  out.SetUnits(scale * 0.25f);
  for (int group = 0; group < kParts / 2; ++group) {
    const uint8_t* const indices = in + 2 + 8 * group;
    const uint32_t rest = Word(in + 66 + 4 * group);
    out.SetGroup(group, scale * (0.5f + static_cast<float>(rest >> 28)) * 0.5f);
    for (int i = 0; i < 4; ++i) {
      int8_t* const to = out.values + 32 * group + 8 * i;
      Expand4(kIq3XxsCodebook, indices[2 * i], kIq3XxsNumbers, to);
      Expand4(kIq3XxsCodebook, indices[2 * i + 1], kIq3XxsNumbers, to + 4);
      Sign(EvenSigns((rest >> (7 * i)) & 0x7f), to);
    }
  }
}

// For each four numbers the low byte of an index; then the ninth bits, the signs, and four bits of a scale
// for each 32 numbers.
void Iq3S(const uint8_t* in, const GgufBlock& out) {
  const float scale = ReadHalf(in);
  out.SetUnits(scale);
  const uint8_t *const low = in + 2, *const high = in + 66, *const signs = in + 74, *const scales = in + 106;
  for (int group = 0; group < kParts / 2; ++group) {
    const int bits = (scales[group / 2] >> (group % 2 * 4)) & 0xF;
    out.SetGroup(group, scale * static_cast<float>(1 + 2 * bits));
    for (int i = 0; i < 8; ++i) {
      const uint32_t ninth = (high[group] >> i) & 1;
      Expand4(kIq3SCodebook, low[8 * group + i] | ninth << 8, kIq3SNumbers, out.values + 32 * group + 4 * i);
    }
    for (int i = 0; i < 4; ++i) Sign(signs[4 * group + i], out.values + 32 * group + 8 * i);
  }
}

// For each 32 numbers three further bits of four indices, three bits of a scale, and the sign of an eighth
// that is added to each number: as a minimum, which the scale multiplies without rounding.
void Iq1S(const uint8_t* in, const GgufBlock& out) {
  constexpr int8_t kNumbers[4] = {-1, 0, 1, 0};
  const float scale = ReadHalf(in);
  out.SetUnits(scale, scale * 0.125f);
  for (int group = 0; group < kParts / 2; ++group) {
    const uint32_t high = ReadUint16(in + 34 + 2 * group);
    const float of_group = scale * static_cast<float>(2 * ((high >> 12) & 7) + 1);
    out.SetGroup(group, of_group, (high & 0x8000) == 0 ? -0.125f * of_group : 0.125f * of_group, 1);
    for (int i = 0; i < 4; ++i) {
      const uint32_t index = in[2 + 4 * group + i] | ((high >> (3 * i)) & 7) << 8;
      Expand8(kIq1Codebook, index, kNumbers, out.values + 32 * group + 8 * i);
    }
  }
}

// The same with a scale for each 16 numbers, and the sign of the eighth for each eight, so that values are
// eighths. The common scale's 16 bits lie in the highest four of each word of scales.
void Iq1M(const uint8_t* in, const GgufBlock& out) {
  constexpr int8_t kNumbers[4] = {-8, 0, 8, 0};
  const uint8_t* const scales = in + 48;
  uint16_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= static_cast<uint16_t>((ReadUint16(scales + 2 * i) >> 12) << (4 * i));
  const float scale = HalfToFloat(bits);
  out.SetUnits(scale * 0.125f);
  for (int part = 0; part < kParts; ++part) {
    const int of_part = (ReadUint16(scales + part / 4 * 2) >> (part % 4 * 3)) & 7;
    out.SetPart(part, scale * static_cast<float>(2 * of_part + 1) * 0.125f);
    for (int i = 0; i < 2; ++i) {
      const uint32_t high = (in[32 + part] >> (4 * i)) & 0xF;
      int8_t* const to = out.values + 16 * part + 8 * i;
      Expand8(kIq1Codebook, in[2 * part + i] | (high & 7) << 8, kNumbers, to);
      const int added = (high & 8) == 0 ? 1 : -1;
      for (int k = 0; k < 8; ++k) to[k] = static_cast<int8_t>(to[k] + added);
    }
  }
}

}  // namespace

void ReadCodebookBlock(GgufType type, const uint8_t* in, const GgufBlock& out) {
  switch (type) {
    case GgufType::kIq1S:
      return Iq1S(in, out);
    case GgufType::kIq1M:
      return Iq1M(in, out);
    case GgufType::kIq2Xxs:
      return Iq2Xxs(in, out);
    case GgufType::kIq2Xs:
      return Iq2Xs(in, out);
    case GgufType::kIq2S:
      return Iq2S(in, out);
    case GgufType::kIq3Xxs:
      return Iq3Xxs(in, out);
    case GgufType::kIq3S:
      return Iq3S(in, out);
    default:
      assert(false);
  }
}

}  // namespace tandem

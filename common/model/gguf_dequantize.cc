#include "common/model/gguf_dequantize.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "common/model/gguf_block.h"

namespace tandem {
namespace {

// Twice the numbers that four bits of MXFP4 (E2M1) stand for.
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(exponent - 128), half of what E8M0 stands for; the two smallest are subnormal.
float HalfOfPower(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : static_cast<uint32_t>(exponent - 1) << 23;
  return std::bit_cast<float>(bits);
}

// Loops go from local arrays to local arrays: of those the compiler knows that they do not overlap.

void Q8_0(const uint8_t* in, const GgufBlock& out) {
  out.SetGroup(0, ReadHalf(in));
  std::memcpy(out.values, in + 2, 32);
}

// Of 16 pairs the low halves, then the high ones, less `zero`.
void Unpair(const uint8_t* in, int zero, int8_t* out) {
  uint8_t pairs[16];
  int8_t values[32];
  std::memcpy(pairs, in, sizeof(pairs));
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<int8_t>((pairs[i] & 0xF) - zero);
    values[i + 16] = static_cast<int8_t>((pairs[i] >> 4) - zero);
  }
  std::memcpy(out, values, sizeof(values));
}

void Q4_0(const uint8_t* in, const GgufBlock& out) {
  out.SetGroup(0, ReadHalf(in), 0.0f, 8);
  Unpair(in + 2, 8, out.values);
}

void Q4_1(const uint8_t* in, const GgufBlock& out) {
  // The minimum is added.
  out.SetGroup(0, ReadHalf(in), -ReadHalf(in + 2));
  Unpair(in + 4, 0, out.values);
}

// Fifth bits of 32 values, in one word, and the other four of 16 pairs; less `zero`.
void UnpairFive(const uint8_t* in, int zero, int8_t* out) {
  uint32_t word;
  uint8_t pairs[16];
  int8_t values[32];
  std::memcpy(&word, in, sizeof(word));
  std::memcpy(pairs, in + 4, sizeof(pairs));
  for (uint32_t i = 0; i < 16; ++i) {
    const int low = (pairs[i] & 0xF) | static_cast<int>((word >> i) & 1) << 4;
    const int high = (pairs[i] >> 4) | static_cast<int>((word >> (i + 16)) & 1) << 4;
    values[i] = static_cast<int8_t>(low - zero);
    values[i + 16] = static_cast<int8_t>(high - zero);
  }
  std::memcpy(out, values, sizeof(values));
}

void Q5_0(const uint8_t* in, const GgufBlock& out) {
  out.SetGroup(0, ReadHalf(in));
  UnpairFive(in + 2, 16, out.values);
}

void Q5_1(const uint8_t* in, const GgufBlock& out) {
  out.SetGroup(0, ReadHalf(in), -ReadHalf(in + 2));
  UnpairFive(in + 4, 0, out.values);
}

// A group of 32 values, which codes of four bits choose.
void FromTable(const int8_t (&values)[16], const uint8_t* in, int8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = values[in[i] & 0xF];
    out[i + 16] = values[in[i] >> 4];
  }
}

void Iq4Nl(const uint8_t* in, const GgufBlock& out) {
  out.SetGroup(0, ReadHalf(in));
  FromTable(kIq4Values, in + 2, out.values);
}

void Mxfp4(const uint8_t* in, const GgufBlock& out) {
  out.SetGroup(0, HalfOfPower(in[0]));
  FromTable(kMxfp4Values, in + 1, out.values);
}

// Each group's scale has six bits: two in a word for all, four in a byte of two groups.
void Iq4Xs(const uint8_t* in, const GgufBlock& out) {
  const float scale = ReadHalf(in);
  const int high = ReadUint16(in + 2);
  out.SetUnits(scale);
  for (int group = 0; group < 8; ++group) {
    const int low = (in[4 + group / 2] >> (group % 2 * 4)) & 0xF;
    const int bits = low | ((high >> (2 * group)) & 3) << 4;
    out.SetGroup(group, scale * static_cast<float>(bits - 32));
    FromTable(kIq4Values, in + 8 + 16 * group, out.values + 32 * group);
  }
}

// Codes of two bits less `zero`: four in each byte, 32 apart.
void UnpackTwoBits(const uint8_t* in, int zero, int8_t* out) {
  for (int half = 0; half < 2; ++half) {
    uint8_t bytes[32];
    std::memcpy(bytes, in + 32 * half, sizeof(bytes));
    for (int place = 0; place < 4; ++place) {
      int8_t values[32];
      for (int i = 0; i < 32; ++i) values[i] = static_cast<int8_t>(((bytes[i] >> (2 * place)) & 3) - zero);
      std::memcpy(out + 128 * half + 32 * place, values, sizeof(values));
    }
  }
}

void Q2_K(const uint8_t* in, const GgufBlock& out) {
  const float scale = ReadHalf(in + 80);
  const float min = ReadHalf(in + 82);
  out.SetUnits(scale, min);
  for (int i = 0; i < 16; ++i) {
    out.SetPart(i, scale * static_cast<float>(in[i] & 0xF), min * static_cast<float>(in[i] >> 4));
  }
  UnpackTwoBits(in + 16, 0, out.values);
}

// Third bits of all values, which mean 4 where they are not set; the two others; scales of six bits for each
// 16 values, of which four lie in a nibble and two in the last four bytes.
void Q3_K(const uint8_t* in, const GgufBlock& out) {
  const uint8_t *const high = in, *const low = in + 32, *const scales = in + 96;
  const float scale = ReadHalf(in + 108);
  out.SetUnits(scale);
  for (int i = 0; i < 16; ++i) {
    const int nibble = (scales[i % 8] >> (i / 8 * 4)) & 0xF;
    const int bits = nibble | ((scales[8 + i % 4] >> (i / 4 * 2)) & 3) << 4;
    out.SetPart(i, scale * static_cast<float>(bits - 32));
  }
  UnpackTwoBits(low, 4, out.values);
  uint8_t bits[32];
  std::memcpy(bits, high, sizeof(bits));
  for (int group = 0; group < 8; ++group) {
    int8_t values[32];
    std::memcpy(values, out.values + 32 * group, sizeof(values));
    for (int i = 0; i < 32; ++i) values[i] = static_cast<int8_t>(values[i] + ((bits[i] >> group) & 1) * 4);
    std::memcpy(out.values + 32 * group, values, sizeof(values));
  }
}

void SetScaleOfTernary(float scale, const GgufBlock& out) {
  for (int group = 0; group < 8; ++group) out.SetGroup(group, scale, 0.0f, 1);
}

// `count` bytes of up to five digits to the base of 3, the first one in the highest place: a byte is the
// number as a share of 3^5, in 256ths. Digits of the same place lie next to one another.
void UnpackDigits(const uint8_t* in, int count, int digits, int8_t* out) {
  for (int power = 1, place = 0; place < digits; ++place, power *= 3) {
    for (int i = 0; i < count; ++i) {
      const int left = (in[i] * power) & 0xFF;
      out[place * count + i] = static_cast<int8_t>(left * 3 / 256 - 1);
    }
  }
}

void Tq1_0(const uint8_t* in, const GgufBlock& out) {
  SetScaleOfTernary(ReadHalf(in + 52), out);
  UnpackDigits(in, 32, 5, out.values);
  UnpackDigits(in + 32, 16, 5, out.values + 160);
  UnpackDigits(in + 48, 4, 4, out.values + 240);
}

void Tq2_0(const uint8_t* in, const GgufBlock& out) {
  SetScaleOfTernary(ReadHalf(in + 64), out);
  UnpackTwoBits(in, 1, out.values);
}

// The scale and the minimum of each of eight groups of 32 numbers, in six bits each.
struct ScaleAndMin {
  uint8_t scale;
  uint8_t min;
};
ScaleAndMin GroupOf(int group, const uint8_t* packed) {
  if (group < 4)
    return {static_cast<uint8_t>(packed[group] & 63), static_cast<uint8_t>(packed[group + 4] & 63)};
  return {static_cast<uint8_t>((packed[group + 4] & 0xF) | ((packed[group - 4] >> 6) << 4)),
          static_cast<uint8_t>((packed[group + 4] >> 4) | ((packed[group] >> 6) << 4))};
}

// Q4_K, and with the fifth bits in `high` Q5_K.
void QK(const uint8_t* in, const uint8_t* high, const uint8_t* low, const GgufBlock& out) {
  const float scale = ReadHalf(in);
  const float min = ReadHalf(in + 2);
  out.SetUnits(scale, min);
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin of = GroupOf(group, in + 4);
    out.SetGroup(group, scale * static_cast<float>(of.scale), min * static_cast<float>(of.min));
    uint8_t values[32];
    std::memcpy(values, low + group / 2 * 32, sizeof(values));
    for (uint8_t& value : values) value = group % 2 == 0 ? value & 0xF : value >> 4;
    if (high != nullptr) {
      uint8_t bits[32];
      std::memcpy(bits, high, sizeof(bits));
      for (int i = 0; i < 32; ++i)
        values[i] = static_cast<uint8_t>(values[i] + ((bits[i] >> group) & 1) * 16);
    }
    std::memcpy(out.values + group * 32, values, sizeof(values));
  }
}

void Q6_K(const uint8_t* in, const GgufBlock& out) {
  const float scale = ReadHalf(in + 208);
  out.SetUnits(scale);
  const auto* const scales = reinterpret_cast<const int8_t*>(in + 192);
  for (int i = 0; i < 16; ++i) out.SetPart(i, scale * static_cast<float>(scales[i]));
  for (int half = 0; half < 2; ++half) {
    const uint8_t* const low = in + half * 64;
    const uint8_t* const high = in + 128 + half * 32;
    for (int part = 0; part < 4; ++part) {
      uint8_t pairs[32], bits[32];
      int8_t values[32];
      std::memcpy(pairs, low + part % 2 * 32, sizeof(pairs));
      std::memcpy(bits, high, sizeof(bits));
      for (int i = 0; i < 32; ++i) {
        const int value = (part < 2 ? pairs[i] & 0xF : pairs[i] >> 4) | ((bits[i] >> (2 * part)) & 3) << 4;
        values[i] = static_cast<int8_t>(value - 32);
      }
      std::memcpy(out.values + half * 128 + part * 32, values, sizeof(values));
    }
  }
}

void ReadBlock(GgufType type, const uint8_t* in, const GgufBlock& out) {
  switch (type) {
    case GgufType::kQ8_0:
      return Q8_0(in, out);
    case GgufType::kQ4_0:
      return Q4_0(in, out);
    case GgufType::kQ4_1:
      return Q4_1(in, out);
    case GgufType::kQ5_0:
      return Q5_0(in, out);
    case GgufType::kQ5_1:
      return Q5_1(in, out);
    case GgufType::kIq4Nl:
      return Iq4Nl(in, out);
    case GgufType::kIq4Xs:
      return Iq4Xs(in, out);
    case GgufType::kMxfp4:
      return Mxfp4(in, out);
    case GgufType::kQ2_K:
      return Q2_K(in, out);
    case GgufType::kQ3_K:
      return Q3_K(in, out);
    case GgufType::kQ4_K:
      return QK(in, nullptr, in + 16, out);
    case GgufType::kQ5_K:
      return QK(in, in + 16, in + 48, out);
    case GgufType::kQ6_K:
      return Q6_K(in, out);
    case GgufType::kTq1_0:
      return Tq1_0(in, out);
    case GgufType::kTq2_0:
      return Tq2_0(in, out);
    case GgufType::kIq1S:
    case GgufType::kIq1M:
    case GgufType::kIq2Xxs:
    case GgufType::kIq2Xs:
    case GgufType::kIq2S:
    case GgufType::kIq3Xxs:
    case GgufType::kIq3S:
      return ReadCodebookBlock(type, in, out);
    case GgufType::kF32:
    case GgufType::kF16:
    case GgufType::kBF16:
      assert(false);
  }
}

}  // namespace

Coding CodingOf(GgufType type) {
  using Scales = Coding::Scales;
  const auto with_signs = [](int bits, Scales scales) {
    return Coding{.is_coded = true, .bits = bits, .scales = scales};
  };
  const auto with_minimums = [](int bits, Scales scales) {
    return Coding{
        .is_coded = true, .has_minimums = true, .bits = bits, .is_unsigned = true, .scales = scales};
  };
  Coding coding = {.is_coded = true};
  switch (type) {
    case GgufType::kQ4_0:
      coding = with_signs(4, Scales::kHalf);
      coding.has_four_bits = true;
      break;
    case GgufType::kTq1_0:
      coding = with_signs(2, Scales::kHalf);
      coding.has_four_bits = true;
      break;
    case GgufType::kTq2_0:
      // No quantiser writes its fourth code, which means 2.
      coding = with_signs(3, Scales::kHalf);
      coding.has_four_bits = true;
      break;
    case GgufType::kQ4_1:
      coding = with_minimums(4, Scales::kHalf);
      coding.has_four_bits = true;
      break;
    case GgufType::kQ4_K:
      coding = with_minimums(4, Scales::kUnits);
      coding.has_four_bits = true;
      break;
    case GgufType::kQ5_0:
      coding = with_signs(5, Scales::kHalf);
      break;
    case GgufType::kQ5_1:
      coding = with_minimums(5, Scales::kHalf);
      break;
    case GgufType::kQ5_K:
      coding = with_minimums(5, Scales::kUnits);
      break;
    case GgufType::kQ8_0:
    case GgufType::kIq4Nl:
      coding = with_signs(8, Scales::kHalf);
      break;
    case GgufType::kIq4Xs:
      coding = with_signs(8, Scales::kUnits);
      break;
    case GgufType::kMxfp4:
      coding = with_signs(5, Scales::kBfloat16);
      break;
    case GgufType::kQ2_K:
      coding = with_minimums(2, Scales::kUnits);
      coding.is_fine = true;
      break;
    case GgufType::kQ3_K:
      coding = with_signs(3, Scales::kUnits);
      coding.is_fine = true;
      break;
    case GgufType::kQ6_K:
      coding = with_signs(6, Scales::kUnits);
      coding.is_fine = true;
      break;
    case GgufType::kIq1S:
      coding = with_signs(2, Scales::kUnits);
      coding.has_four_bits = coding.has_minimums = true;
      break;
    case GgufType::kIq1M:
      coding = with_signs(5, Scales::kUnits);
      coding.is_fine = true;
      break;
    case GgufType::kIq2Xs:
    case GgufType::kIq2S:
      coding = with_signs(8, Scales::kUnits);
      coding.is_fine = true;
      break;
    case GgufType::kIq2Xxs:
    case GgufType::kIq3Xxs:
      coding = with_signs(8, Scales::kUnits);
      break;
    case GgufType::kIq3S:
      coding = with_signs(5, Scales::kUnits);
      break;
    case GgufType::kF32:
    case GgufType::kF16:
    case GgufType::kBF16:
      assert(false);
  }
  return coding;
}

void ReadBlocks(GgufType type, absl::string_view bytes, int64_t row, CodedRows* rows) {
  const GgufTypeInfo& info = InfoOf(type);
  const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
  assert(static_cast<int64_t>(bytes.size()) / info.block_bytes * info.block_size == rows->num_inputs);
  const int64_t groups = info.block_size / CodedRows::kGroup;
  for (int64_t block = 0; block < rows->num_inputs / info.block_size; ++block, in += info.block_bytes) {
    const int64_t group = row * rows->num_groups + block * groups;
    const int64_t unit = row * rows->num_units + block * info.block_size / Coding::kUnitInputs;
    ReadBlock(type, in,
              {.values = rows->values.data() + row * rows->num_inputs + block * info.block_size,
               .scales = rows->scales.data() + group,
               .minimums = rows->minimums.data() + group,
               .zeros = rows->zeros.data() + group,
               .unit = rows->units.data() + unit,
               .minimum_unit = rows->minimum_units.data() + unit});
  }
}

void DequantizeBlocks(GgufType type, absl::string_view bytes, absl::Span<float> out) {
  CodedRows rows(1, static_cast<int64_t>(out.size()));
  ReadBlocks(type, bytes, 0, &rows);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t group = i / CodedRows::kGroup;
    out[i] = static_cast<float>(rows.values[i]) * rows.scales[group] - rows.minimums[group];
  }
}

}  // namespace tandem

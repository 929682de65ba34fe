#include "common/model/gguf_dequantize.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

constexpr int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
// Twice the numbers that four bits of MXFP4 (E2M1) stand for.
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float Half(const uint8_t* in) {
  uint16_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return HalfToFloat(bits);
}

// 2^(exponent - 128), half of what E8M0 stands for; the two smallest are subnormal.
float HalfOfPower(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : static_cast<uint32_t>(exponent - 1) << 23;
  return std::bit_cast<float>(bits);
}

// Of one block: where its values go, and the scales and minimums of each 16 of them.
struct Block {
  int8_t* values;
  float* scales;
  float* minimums;
  int8_t* zeros;

  // Of a group of 32 values.
  void SetGroup(int group, float scale, float minimum = 0.0f) const {
    for (int i = 2 * group; i < 2 * group + 2; ++i) {
      scales[i] = scale;
      minimums[i] = minimum;
      zeros[i] = 0;
    }
  }
};

// Loops go from local arrays to local arrays: of those the compiler knows that they do not overlap.

void Q8_0(const uint8_t* in, const Block& out) {
  out.SetGroup(0, Half(in));
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

void Q4_0(const uint8_t* in, const Block& out) {
  out.SetGroup(0, Half(in));
  out.zeros[0] = out.zeros[1] = 8;
  Unpair(in + 2, 8, out.values);
}

void FromTable(const int8_t (&values)[16], float scale, const uint8_t* in, const Block& out) {
  out.SetGroup(0, scale);
  for (int i = 0; i < 16; ++i) {
    out.values[i] = values[in[i] & 0xF];
    out.values[i + 16] = values[in[i] >> 4];
  }
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
void QK(const uint8_t* in, const uint8_t* high, const uint8_t* low, const Block& out) {
  const float scale = Half(in);
  const float min = Half(in + 2);
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

void Q6_K(const uint8_t* in, const Block& out) {
  const float scale = Half(in + 208);
  const auto* const scales = reinterpret_cast<const int8_t*>(in + 192);
  for (int i = 0; i < 16; ++i) {
    out.scales[i] = scale * static_cast<float>(scales[i]);
    out.minimums[i] = 0.0f;
    out.zeros[i] = 0;
  }
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

void ReadBlock(GgufType type, const uint8_t* in, const Block& out) {
  switch (type) {
    case GgufType::kQ8_0:
      return Q8_0(in, out);
    case GgufType::kQ4_0:
      return Q4_0(in, out);
    case GgufType::kIq4Nl:
      return FromTable(kIq4NlValues, Half(in), in + 2, out);
    case GgufType::kMxfp4:
      return FromTable(kMxfp4Values, HalfOfPower(in[0]), in + 1, out);
    case GgufType::kQ4_K:
      return QK(in, nullptr, in + 16, out);
    case GgufType::kQ5_K:
      return QK(in, in + 16, in + 48, out);
    case GgufType::kQ6_K:
      return Q6_K(in, out);
    case GgufType::kF32:
    case GgufType::kF16:
    case GgufType::kBF16:
      assert(false);
  }
}

}  // namespace

Coding CodingOf(GgufType type) {
  Coding coding = {.is_coded = true};
  coding.has_four_bits = type == GgufType::kQ4_0 || type == GgufType::kQ4_K;
  coding.is_fine = type == GgufType::kQ6_K;
  coding.has_minimums = type == GgufType::kQ4_K || type == GgufType::kQ5_K;
  return coding;
}

void ReadBlocks(GgufType type, absl::string_view bytes, int64_t row, CodedRows* rows) {
  const GgufTypeInfo& info = InfoOf(type);
  const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
  assert(static_cast<int64_t>(bytes.size()) / info.block_bytes * info.block_size == rows->num_inputs);
  const int64_t groups = info.block_size / CodedRows::kGroup;
  for (int64_t block = 0; block < rows->num_inputs / info.block_size; ++block, in += info.block_bytes) {
    const int64_t group = row * rows->num_groups + block * groups;
    ReadBlock(type, in,
              {.values = rows->values.data() + row * rows->num_inputs + block * info.block_size,
               .scales = rows->scales.data() + group,
               .minimums = rows->minimums.data() + group,
               .zeros = rows->zeros.data() + group});
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

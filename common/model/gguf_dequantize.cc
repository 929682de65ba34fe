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

void Q8_0(const uint8_t* in, float* out) {
  const float scale = Half(in);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * scale;
}

void Q4_0(const uint8_t* in, float* out) {
  const float scale = Half(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((in[2 + i] & 0xF) - 8) * scale;
    out[i + 16] = static_cast<float>((in[2 + i] >> 4) - 8) * scale;
  }
}

void FromTable(const int8_t (&values)[16], float scale, const uint8_t* in, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(values[in[i] & 0xF]);
    out[i + 16] = scale * static_cast<float>(values[in[i] >> 4]);
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
void QK(const uint8_t* in, const uint8_t* high, const uint8_t* low, float* out) {
  const float scale = Half(in);
  const float min = Half(in + 2);
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin of = GroupOf(group, in + 4);
    const float group_scale = scale * static_cast<float>(of.scale);
    const float group_min = min * static_cast<float>(of.min);
    const uint8_t* const from = low + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      int value = group % 2 == 0 ? from[i] & 0xF : from[i] >> 4;
      if (high != nullptr) value += ((high[i] >> group) & 1) * 16;
      out[group * 32 + i] = group_scale * static_cast<float>(value) - group_min;
    }
  }
}

void Q6_K(const uint8_t* in, float* out) {
  const float scale = Half(in + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* const low = in + half * 64;
    const uint8_t* const high = in + 128 + half * 32;
    const auto* const scales = reinterpret_cast<const int8_t*>(in + 192 + half * 8);
    for (int part = 0; part < 4; ++part) {
      for (int i = 0; i < 32; ++i) {
        const uint8_t pair = low[i + part % 2 * 32];
        const int value = ((part < 2 ? pair & 0xF : pair >> 4) | (((high[i] >> (2 * part)) & 3) << 4)) - 32;
        out[half * 128 + part * 32 + i] =
            scale * static_cast<float>(scales[part * 2 + i / 16]) * static_cast<float>(value);
      }
    }
  }
}

}  // namespace

void DequantizeBlocks(GgufType type, absl::string_view bytes, absl::Span<float> out) {
  const GgufTypeInfo& info = InfoOf(type);
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  const auto block_size = static_cast<size_t>(info.block_size);
  assert(bytes.size() / block_bytes * block_size == out.size());
  const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t at = 0; at < out.size(); at += block_size, in += block_bytes) {
    float* const to = out.data() + at;
    switch (type) {
      case GgufType::kQ8_0:
        Q8_0(in, to);
        break;
      case GgufType::kQ4_0:
        Q4_0(in, to);
        break;
      case GgufType::kIq4Nl:
        FromTable(kIq4NlValues, Half(in), in + 2, to);
        break;
      case GgufType::kMxfp4:
        FromTable(kMxfp4Values, HalfOfPower(in[0]), in + 1, to);
        break;
      case GgufType::kQ4_K:
        QK(in, nullptr, in + 16, to);
        break;
      case GgufType::kQ5_K:
        QK(in, in + 16, in + 48, to);
        break;
      case GgufType::kQ6_K:
        Q6_K(in, to);
        break;
      case GgufType::kF32:
      case GgufType::kF16:
      case GgufType::kBF16:
        assert(false);
    }
  }
}

}  // namespace tandem

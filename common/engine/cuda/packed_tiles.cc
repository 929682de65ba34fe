#include "common/engine/cuda/packed_tiles.h"

#include <algorithm>
#include <bit>

#include "common/engine/cpu/weight_quantizer.h"

namespace tandem {
namespace {

// [16 outputs][64]
void PackInt8(const QuantizedGroup& group, uint32_t output, uint32_t* words) {
  uint32_t* const to = words + output * (kInputGroup / 4);
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    to[k / 4] |= uint32_t{static_cast<uint8_t>(group.values[k])} << (k % 4 * 8);
  }
}

// [16 outputs][4][8 bytes]
void PackInt4(const QuantizedGroup& group, uint32_t output, uint32_t* words) {
  uint32_t* const to = words + output * (kInputGroup / 8);
  for (uint32_t k = 0; k < kInputGroup; ++k) {
    const uint32_t byte = k / 16 * 8 + k % 8;
    const uint32_t shift = byte % 4 * 8 + (k % 16 < 8 ? 0 : 4);
    to[byte / 4] |= (static_cast<uint32_t>(group.values[k]) & 0xfu) << shift;
  }
}

}  // namespace

uint32_t PackedGroupWords(DeviceFormat format) {
  switch (format) {
    case DeviceFormat::kBf16:
      break;
    case DeviceFormat::kInt8:
      return kInt8GroupWords;
    case DeviceFormat::kInt4:
      return kInt4GroupWords;
  }
  return 0;
}

void PackOutput(DeviceFormat format, absl::Span<const float> weights, uint32_t output, uint32_t* words,
                Bf16* scales) {
  for (size_t begin = 0; begin < weights.size(); begin += kInputGroup) {
    float padded[kInputGroup] = {};
    const absl::Span<const float> inputs = weights.subspan(begin, kInputGroup);
    std::copy(inputs.begin(), inputs.end(), padded);
    const QuantizedGroup group = format == DeviceFormat::kInt4 ? QuantizeInt4(padded) : QuantizeInt8(padded);
    if (format == DeviceFormat::kInt4) {
      PackInt4(group, output, words);
    } else {
      PackInt8(group, output, words);
    }
    scales[output] = {static_cast<uint16_t>(std::bit_cast<uint32_t>(group.scale) >> 16)};
    words += PackedGroupWords(format);
    scales += kPackedOutputs;
  }
}

}  // namespace tandem

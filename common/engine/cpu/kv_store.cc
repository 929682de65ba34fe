#include "common/engine/cpu/kv_store.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/kernel_table.h"

// Compiled without contraction of multiplications and additions, so that the integers are the same on every
// machine.

namespace tandem {
namespace {

static_assert(kBlockTokens == kLanes, "a vector holds one element of a block's keys");

// Parts of blocks begin on cache lines.
constexpr uint64_t kLineBytes = 64;

KvFormat KvFormatOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      break;
    case KvType::kAuto:
    case KvType::kBf16:
      return KvFormat::kBf16;
    case KvType::kInt8:
      return KvFormat::kInt8;
  }
  return KvFormat::kF32;
}

uint64_t NumberBytes(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return sizeof(float);
    case KvFormat::kBf16:
      return sizeof(uint16_t);
    case KvFormat::kInt8:
      return sizeof(int8_t);
  }
  return 0;
}

constexpr size_t kScaleBytes = kBlockTokens * sizeof(float);

// The bytes before the numbers of one head's part of a block.
size_t HeaderBytes(KvFormat format) {
  return format == KvFormat::kInt8 ? kScaleBytes : 0;
}

// The bytes of one head's part of a block with `width` numbers for each position.
uint64_t PartBytes(KvFormat format, uint64_t width) {
  const uint64_t bytes = HeaderBytes(format) + width * kBlockTokens * NumberBytes(format);
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

uint64_t ValueStride(const ModelConfig& config) {
  return (static_cast<uint64_t>(config.value_dim()) + kLanes - 1) / kLanes * kLanes;
}

// Rounds to the nearest, ties to even; a NaN stays a NaN.
uint16_t ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>((is_nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct Int8Scale {
  float scale = 0.0f;
  float inverse = 0.0f;
};

// If no magnitude is above 2^-100, all numbers become zeros, because the scale's inverse would leave float's
// range. If a number is not finite, all become NaN.
Int8Scale ScaleOf(const float* numbers, uint32_t count) {
  constexpr float kSmallest = 0x1p-100f;
  constexpr float kGreatestInt8 = 127.0f;
  uint32_t greatest_bits = 0;  // NaNs become greater than all numbers.
  for (uint32_t i = 0; i < count; ++i) {
    greatest_bits = std::max(greatest_bits, std::bit_cast<uint32_t>(numbers[i]) & 0x7fffffffu);
  }
  const auto greatest = std::bit_cast<float>(greatest_bits);
  if (greatest < kSmallest) return {};
  if (!(greatest < std::numeric_limits<float>::infinity())) {
    return {.scale = std::numeric_limits<float>::quiet_NaN()};
  }
  return {.scale = greatest / kGreatestInt8, .inverse = kGreatestInt8 / greatest};
}

// Writes `count` numbers to `to`, `stride` apart, in the store's format.
void Store(const float* numbers, uint32_t count, size_t stride, float* to) {
  for (uint32_t i = 0; i < count; ++i) to[i * stride] = numbers[i];
}
void Store(const float* numbers, uint32_t count, size_t stride, uint16_t* to) {
  for (uint32_t i = 0; i < count; ++i) to[i * stride] = ToBf16(numbers[i]);
}
void Store(const float* numbers, uint32_t count, size_t stride, float inverse_scale, int8_t* to) {
  // Adding 1.5 * 2^23 rounds to an integer, ties to even, in the low bits of the sum.
  constexpr float kRounder = 12582912.0f;
  for (uint32_t i = 0; i < count; ++i) {
    const float scaled = inverse_scale == 0.0f ? 0.0f : numbers[i] * inverse_scale;
    to[i * stride] = static_cast<int8_t>(std::bit_cast<uint32_t>(scaled + kRounder));
  }
}

}  // namespace

std::optional<uint64_t> KvStore::BytesPerBlock(const ModelConfig& config, KvType type) {
  const KvFormat format = KvFormatOf(type);
  const uint64_t per_head =
      PartBytes(format, static_cast<uint64_t>(config.head_dim)) + PartBytes(format, ValueStride(config));
  const auto per_layer = CheckedMultiply(per_head, static_cast<uint64_t>(config.num_kv_heads));
  if (!per_layer.has_value()) return std::nullopt;
  return CheckedMultiply(*per_layer, static_cast<uint64_t>(config.num_layers));
}

absl::StatusOr<KvStore> KvStore::Create(const ModelConfig& config, KvType type, uint32_t num_blocks) {
  const std::optional<uint64_t> block_bytes = BytesPerBlock(config, type);
  if (num_blocks == 0 || num_blocks > std::numeric_limits<SlotId>::max() / kBlockTokens ||
      !block_bytes.has_value() || !CheckedMultiply(*block_bytes, uint64_t{num_blocks}).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot hold ", num_blocks, " blocks of keys and values: expected 1 to ",
                     std::numeric_limits<SlotId>::max() / kBlockTokens, ", and a size that fits 64 bits"));
  }
  KvStore store;
  store.format_ = KvFormatOf(type);
  store.num_layers_ = static_cast<uint32_t>(config.num_layers);
  store.num_heads_ = static_cast<uint32_t>(config.num_kv_heads);
  store.head_dim_ = static_cast<uint32_t>(config.head_dim);
  store.value_dim_ = static_cast<uint32_t>(config.value_dim());
  store.value_stride_ = ValueStride(config);
  store.key_bytes_ = PartBytes(store.format_, store.head_dim_);
  store.value_bytes_ = PartBytes(store.format_, store.value_stride_);
  store.keys_per_layer_ = store.key_bytes_ * store.num_heads_ * num_blocks;
  store.values_per_layer_ = store.value_bytes_ * store.num_heads_ * num_blocks;
  TANDEM_ASSIGN_OR_RETURN(store.keys_,
                          AlignedBuffer::Allocate(store.keys_per_layer_ * store.num_layers_, 1, "keys"));
  TANDEM_ASSIGN_OR_RETURN(store.values_,
                          AlignedBuffer::Allocate(store.values_per_layer_ * store.num_layers_, 1, "values"));
  store.keys_.SpreadOverNodes();
  store.values_.SpreadOverNodes();
  return store;
}

void KvStore::Write(uint32_t layer, SlotId slot, const float* key, const float* value) {
  const uint32_t offset = slot % kBlockTokens;
  for (uint32_t head = 0; head < num_heads_; ++head, key += head_dim_, value += value_dim_) {
    char* const keys = KeysAt(layer, head, slot / kBlockTokens);
    char* const values = ValuesAt(layer, head, slot / kBlockTokens);
    const size_t value_at = offset * value_stride_;
    switch (format_) {
      case KvFormat::kF32:
        Store(key, head_dim_, kBlockTokens, reinterpret_cast<float*>(keys) + offset);
        Store(value, value_dim_, 1, reinterpret_cast<float*>(values) + value_at);
        break;
      case KvFormat::kBf16:
        Store(key, head_dim_, kBlockTokens, reinterpret_cast<uint16_t*>(keys) + offset);
        Store(value, value_dim_, 1, reinterpret_cast<uint16_t*>(values) + value_at);
        break;
      case KvFormat::kInt8: {
        const Int8Scale key_scale = ScaleOf(key, head_dim_);
        const Int8Scale value_scale = ScaleOf(value, value_dim_);
        reinterpret_cast<float*>(keys)[offset] = key_scale.scale;
        reinterpret_cast<float*>(values)[offset] = value_scale.scale;
        auto* const key_integers = reinterpret_cast<int8_t*>(keys + kScaleBytes);
        auto* const value_integers = reinterpret_cast<int8_t*>(values + kScaleBytes);
        Store(key, head_dim_, kBlockTokens, key_scale.inverse, key_integers + offset);
        Store(value, value_dim_, 1, value_scale.inverse, value_integers + value_at);
        break;
      }
    }
  }
}

template <typename Number>
void KvStore::CopyNumbers(const char* keys_from, char* keys_to, const char* values_from, char* values_to,
                          uint32_t offset_from, uint32_t offset_to) const {
  const auto* const key_from = reinterpret_cast<const Number*>(keys_from) + offset_from;
  auto* const key_to = reinterpret_cast<Number*>(keys_to) + offset_to;
  for (size_t i = 0; i < size_t{head_dim_} * kBlockTokens; i += kBlockTokens) key_to[i] = key_from[i];
  std::copy_n(reinterpret_cast<const Number*>(values_from) + offset_from * value_stride_, value_dim_,
              reinterpret_cast<Number*>(values_to) + offset_to * value_stride_);
}

void KvStore::Copy(SlotId from, SlotId to) {
  if (from == to) return;
  const uint32_t offset_from = from % kBlockTokens;
  const uint32_t offset_to = to % kBlockTokens;
  for (uint32_t layer = 0; layer < num_layers_; ++layer) {
    for (uint32_t head = 0; head < num_heads_; ++head) {
      const char* keys_from = KeysAt(layer, head, from / kBlockTokens);
      const char* values_from = ValuesAt(layer, head, from / kBlockTokens);
      char* keys_to = KeysAt(layer, head, to / kBlockTokens);
      char* values_to = ValuesAt(layer, head, to / kBlockTokens);
      if (format_ == KvFormat::kInt8) {
        reinterpret_cast<float*>(keys_to)[offset_to] = reinterpret_cast<const float*>(keys_from)[offset_from];
        reinterpret_cast<float*>(values_to)[offset_to] =
            reinterpret_cast<const float*>(values_from)[offset_from];
        CopyNumbers<int8_t>(keys_from + kScaleBytes, keys_to + kScaleBytes, values_from + kScaleBytes,
                            values_to + kScaleBytes, offset_from, offset_to);
      } else if (format_ == KvFormat::kBf16) {
        CopyNumbers<uint16_t>(keys_from, keys_to, values_from, values_to, offset_from, offset_to);
      } else {
        CopyNumbers<float>(keys_from, keys_to, values_from, values_to, offset_from, offset_to);
      }
    }
  }
}

void KvStore::Locate(uint32_t layer, uint32_t head, AttentionArgs* args) const {
  args->format = format_;
  args->keys = keys_.data<char>() + layer * keys_per_layer_ + head * key_bytes_;
  args->values = values_.data<char>() + layer * values_per_layer_ + head * value_bytes_;
  args->key_block_bytes = key_bytes_ * num_heads_;
  args->value_block_bytes = value_bytes_ * num_heads_;
  args->value_stride = value_stride_;
}

char* KvStore::KeysAt(uint32_t layer, uint32_t head, BlockId block) {
  return keys_.data<char>() + layer * keys_per_layer_ + (size_t{block} * num_heads_ + head) * key_bytes_;
}

char* KvStore::ValuesAt(uint32_t layer, uint32_t head, BlockId block) {
  return values_.data<char>() + layer * values_per_layer_ +
         (size_t{block} * num_heads_ + head) * value_bytes_;
}

}  // namespace tandem

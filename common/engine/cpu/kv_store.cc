#include "common/engine/cpu/kv_store.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/checked_math.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/kernel_table.h"

namespace tandem {
namespace {

static_assert(kBlockTokens == kLanes, "a vector holds one element of a block's keys");

size_t ValueStride(const ModelConfig& config) {
  return (static_cast<size_t>(config.head_dim) + kLanes - 1) / kLanes * kLanes;
}

}  // namespace

std::optional<uint64_t> KvStore::BytesPerBlock(const ModelConfig& config) {
  const uint64_t per_head = (static_cast<uint64_t>(config.head_dim) + ValueStride(config)) * kBlockTokens;
  const auto per_layer = CheckedMultiply(per_head, static_cast<uint64_t>(config.num_kv_heads));
  if (!per_layer.has_value()) return std::nullopt;
  const auto all = CheckedMultiply(*per_layer, static_cast<uint64_t>(config.num_layers));
  if (!all.has_value()) return std::nullopt;
  return CheckedMultiply(*all, uint64_t{sizeof(float)});
}

absl::StatusOr<KvStore> KvStore::Create(const ModelConfig& config, uint32_t num_blocks, ThreadTeam* team) {
  const std::optional<uint64_t> block_bytes = BytesPerBlock(config);
  if (num_blocks == 0 || num_blocks > std::numeric_limits<SlotId>::max() / kBlockTokens ||
      !block_bytes.has_value() || !CheckedMultiply(*block_bytes, uint64_t{num_blocks}).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot hold ", num_blocks, " blocks of keys and values: expected 1 to ",
                     std::numeric_limits<SlotId>::max() / kBlockTokens, ", and a size that fits 64 bits"));
  }
  KvStore store;
  store.num_layers_ = static_cast<uint32_t>(config.num_layers);
  store.num_heads_ = static_cast<uint32_t>(config.num_kv_heads);
  store.head_dim_ = static_cast<uint32_t>(config.head_dim);
  store.value_stride_ = ValueStride(config);
  store.key_size_ = size_t{store.head_dim_} * kBlockTokens;
  store.value_size_ = store.value_stride_ * kBlockTokens;
  store.keys_per_layer_ = store.key_size_ * store.num_heads_ * num_blocks;
  store.values_per_layer_ = store.value_size_ * store.num_heads_ * num_blocks;
  TANDEM_ASSIGN_OR_RETURN(
      store.keys_, AlignedBuffer::Allocate(store.keys_per_layer_ * store.num_layers_, sizeof(float), "keys"));
  TANDEM_ASSIGN_OR_RETURN(store.values_, AlignedBuffer::Allocate(store.values_per_layer_ * store.num_layers_,
                                                                 sizeof(float), "values"));
  store.keys_.TouchFirst(team);
  store.values_.TouchFirst(team);
  return store;
}

void KvStore::Write(uint32_t layer, SlotId slot, const float* key, const float* value) {
  for (uint32_t head = 0; head < num_heads_; ++head) {
    float* key_to = KeyAt(layer, head, slot);
    for (uint32_t d = 0; d < head_dim_; ++d) key_to[size_t{d} * kBlockTokens] = key[d];
    std::copy_n(value, head_dim_, ValueAt(layer, head, slot));
    key += head_dim_;
    value += head_dim_;
  }
}

void KvStore::Copy(SlotId from, SlotId to) {
  if (from == to) return;
  for (uint32_t layer = 0; layer < num_layers_; ++layer) {
    for (uint32_t head = 0; head < num_heads_; ++head) {
      const float* key_from = KeyAt(layer, head, from);
      float* key_to = KeyAt(layer, head, to);
      for (size_t i = 0; i < key_size_; i += kBlockTokens) key_to[i] = key_from[i];
      std::copy_n(ValueAt(layer, head, from), head_dim_, ValueAt(layer, head, to));
    }
  }
}

void KvStore::Locate(uint32_t layer, uint32_t head, AttentionArgs* args) const {
  args->keys = keys_.data<float>() + layer * keys_per_layer_ + head * key_size_;
  args->values = values_.data<float>() + layer * values_per_layer_ + head * value_size_;
  args->key_block_stride = key_size_ * num_heads_;
  args->value_block_stride = value_size_ * num_heads_;
  args->value_stride = value_stride_;
}

float* KvStore::KeyAt(uint32_t layer, uint32_t head, SlotId slot) {
  const size_t part = size_t{slot / kBlockTokens} * num_heads_ + head;
  return keys_.data<float>() + layer * keys_per_layer_ + part * key_size_ + slot % kBlockTokens;
}

float* KvStore::ValueAt(uint32_t layer, uint32_t head, SlotId slot) {
  const size_t part = size_t{slot / kBlockTokens} * num_heads_ + head;
  return values_.data<float>() + layer * values_per_layer_ + part * value_size_ +
         slot % kBlockTokens * value_stride_;
}

}  // namespace tandem

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/attention_args.h"
#include "common/engine/engine.h"
#include "common/engine/kv_type.h"
#include "common/model/config/model_config.h"

namespace tandem {

// The memory behind slots: keys and values, per layer, block and head, in the layout of KvFormat. Keys are
// stored [head_dim][slot] so that one vector holds an element of 16 positions' keys, values [slot][value_dim]
// so that one vector holds 16 elements of one position's value; both are then read without a sum across lanes
// (law 1).
class KvStore {
 public:
  KvStore() = default;
  // Takes address space only: a page costs memory from the first token that is written to it.
  static absl::StatusOr<KvStore> Create(const ModelConfig& config, KvType type, uint32_t num_blocks);

  // Bytes of all layers together; nullopt if the number does not fit in 64 bits.
  static std::optional<uint64_t> BytesPerBlock(const ModelConfig& config, KvType type);

  // `key` is [num_kv_heads, head_dim], `value` [num_kv_heads, value_dim]. They are rounded to `type`.
  void Write(uint32_t layer, SlotId slot, const float* key, const float* value);
  void Copy(SlotId from, SlotId to);

  // Sets where attention with KV head `head` finds its keys and values.
  void Locate(uint32_t layer, uint32_t head, AttentionArgs* args) const;

 private:
  // One head's part of a block.
  char* KeysAt(uint32_t layer, uint32_t head, BlockId block);
  char* ValuesAt(uint32_t layer, uint32_t head, BlockId block);

  template <typename Number>
  void CopyNumbers(const char* keys_from, char* keys_to, const char* values_from, char* values_to,
                   uint32_t offset_from, uint32_t offset_to) const;

  KvFormat format_ = KvFormat::kF32;
  uint32_t num_layers_ = 0;
  uint32_t num_heads_ = 0;
  uint32_t head_dim_ = 0;
  uint32_t value_dim_ = 0;
  size_t value_stride_ = 0;
  // Bytes of one head's part of a block, and of one layer.
  size_t key_bytes_ = 0;
  size_t value_bytes_ = 0;
  size_t keys_per_layer_ = 0;
  size_t values_per_layer_ = 0;
  AlignedBuffer keys_;    // [num_layers][num_blocks][num_kv_heads][key_bytes]
  AlignedBuffer values_;  // [num_layers][num_blocks][num_kv_heads][value_bytes]
};

}  // namespace tandem

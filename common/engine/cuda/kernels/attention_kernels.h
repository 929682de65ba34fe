#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/row_kernels.h"
#include "common/engine/cuda/kernels/splits.h"
#include "common/engine/cuda/kernels/step_words.h"

// The kernels that write, fold and copy keys and values, or what was made of them. attend_kernel.h reads
// them. Keys and values of all slots are bfloat16, [layers][blocks][kv_heads][16][KvVectorSize(head_dim)]
// each.

namespace tandem {

inline constexpr uint32_t kKvBlockTokens = 16;
inline constexpr uint32_t kMaxQueriesPerItem = 16;  // A query is a row and a head.
inline constexpr float kNoKey = -3.4028234663852886e38f;

// The room of a vector of keys or values, such that each begins where 16 bytes can be loaded at once. Behind
// its numbers are zeros.
TANDEM_BOTH uint32_t KvVectorSize(uint32_t head_dim) {
  return (head_dim + 7) / 8 * 8;
}

// One layer's keys or values.
struct KvLayout {
  uint32_t num_blocks = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;

  // The number of the vector of one slot and head, and where it begins, in elements.
  TANDEM_DEVICE uint64_t VectorOf(uint32_t slot, uint32_t kv_head) const {
    return (uint64_t{slot / kKvBlockTokens} * num_kv_heads + kv_head) * kKvBlockTokens +
           slot % kKvBlockTokens;
  }
  TANDEM_DEVICE uint64_t At(uint32_t slot, uint32_t kv_head) const {
    return VectorOf(slot, kv_head) * KvVectorSize(head_dim);
  }
};

// Adds the bias, normalises queries and keys where the model does, rotates them, and stores keys and values.
// One warp for each head: grid (rows, ceil((num_heads + 2 * num_kv_heads) / warps of a block)).
struct PrepareKernel {
  StepWords step;
  // [rows, num_heads + 2 * num_kv_heads, head_dim], queries first; rotated in place.
  DeviceSpan<float> projected;
  DeviceSpan<const float> bias;        // [the width of a row], or empty.
  DeviceSpan<const float> query_norm;  // [head_dim], or empty.
  DeviceSpan<const float> key_norm;
  DeviceSpan<const float> rotations;  // [positions][cosines, sines][numbers turned / 2]
  DeviceSpan<Bf16> keys;              // Of the layer.
  DeviceSpan<Bf16> values;
  KvLayout layout;
  uint32_t num_heads = 0;
  float epsilon = 0.0f;
  uint32_t num_unturned = 0;    // At the end of each head: not rotated.
  bool pairs_adjacent = false;  // Number 2i turns with 2i + 1, not i with i + half.

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint64_t row = block.index_x();
    if (row >= step.num_rows()) return;
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t head =
        block.index_y() * (block.num_threads() / kWarpThreads) + block.thread() / kWarpThreads;
    const uint32_t num_all = num_heads + 2 * layout.num_kv_heads;
    if (head >= num_all) return;
    const uint64_t at = (row * num_all + head) * layout.head_dim;
    if (bias.size > 0) {
      for (uint32_t i = lane; i < layout.head_dim; i += kWarpThreads) {
        projected[at + i] = projected[at + i] + bias[uint64_t{head} * layout.head_dim + i];
      }
    }
    const uint32_t slot = step.slot(static_cast<uint32_t>(row));
    if (head >= num_heads + layout.num_kv_heads) {
      const uint64_t to = layout.At(slot, head - num_heads - layout.num_kv_heads);
      for (uint32_t i = lane; i < layout.head_dim; i += kWarpThreads)
        values[to + i] = ToBf16(projected[at + i]);
      return;
    }
    const bool is_key = head >= num_heads;
    const DeviceSpan<const float> norm = is_key ? key_norm : query_norm;
    float factor = 1.0f;
    if (norm.size > 0) {
      float squares = 0.0f;
      for (uint32_t i = lane; i < layout.head_dim; i += kWarpThreads) {
        squares = Fma(projected[at + i], projected[at + i], squares);
      }
      const float mean = WarpSum(block, squares) / static_cast<float>(layout.head_dim);
      factor = 1.0f / SquareRoot(mean + epsilon);
      for (uint32_t i = lane; i < layout.head_dim; i += kWarpThreads) {
        projected[at + i] = norm[i] * (projected[at + i] * factor);
      }
    }
    // Lanes are about to read what other lanes wrote.
    block.SyncWarp();
    Rotate(lane, step.position(static_cast<uint32_t>(row)), at,
           is_key ? layout.At(slot, head - num_heads) : 0, is_key);
  }

 private:
  TANDEM_DEVICE void Rotate(uint32_t lane, uint32_t position, uint64_t at, uint64_t key_at,
                            bool is_key) const {
    const uint32_t turned = layout.head_dim - num_unturned;
    const uint32_t half = turned / 2;
    const uint64_t turn = uint64_t{position} * turned;
    for (uint32_t i = lane; i < half; i += kWarpThreads) {
      const float cosine = rotations[turn + i];
      const float sine = rotations[turn + half + i];
      const uint32_t first_at = pairs_adjacent ? 2 * i : i;
      const uint32_t second_at = pairs_adjacent ? 2 * i + 1 : half + i;
      const float first = projected[at + first_at];
      const float second = projected[at + second_at];
      const float turned_first = first * cosine - second * sine;
      const float turned_second = second * cosine + first * sine;
      if (is_key) {
        keys[key_at + first_at] = ToBf16(turned_first);
        keys[key_at + second_at] = ToBf16(turned_second);
      } else {
        projected[at + first_at] = turned_first;
        projected[at + second_at] = turned_second;
      }
    }
    if (!is_key) return;
    for (uint32_t i = turned + lane; i < layout.head_dim; i += kWarpThreads) {
      keys[key_at + i] = ToBf16(projected[at + i]);
    }
  }
};

// Which query heads read which keys. This GPU has heads [first_head, first_head + num_heads) of the model,
// and the KV heads from first_kv_head on. Head h of the model reads KV head h / heads_per_kv. A rank of
// tensor parallelism may hold only some of the heads of a KV head.
struct HeadMap {
  uint32_t first_head = 0;
  uint32_t num_heads = 0;
  uint32_t heads_per_kv = 1;
  uint32_t first_kv_head = 0;
  uint32_t heads_per_part = 1;  // Heads that one item computes together: at most kMaxQueriesPerItem.
  uint32_t parts_per_kv = 1;
};

// Where the result of a split of a row and head is stored: [row][head][split] of greatest, total, and sums
// [head_dim].
struct SplitParts {
  DeviceSpan<float> data;
  uint32_t num_heads = 0;
  uint32_t max_splits = 0;
  uint32_t head_dim = 0;

  TANDEM_DEVICE uint64_t At(uint64_t row, uint32_t head, uint32_t split) const {
    return ((row * num_heads + head) * max_splits + split) * (head_dim + 2);
  }
};

// Folds the splits of a row and head, from first to last, and then the head's sink, a score without a value.
// Grid (rows, num_heads).
struct FoldKernel {
  StepWords step;
  SplitParts parts;
  DeviceSpan<Bf16> attended;           // [rows, num_heads, head_dim]
  uint32_t first_row = 0;              // The row that parts are counted from.
  DeviceSpan<const float> sinks = {};  // [num_heads], or empty.

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t row = first_row + block.index_x();
    if (row >= step.num_rows()) return;
    constexpr uint32_t kAhead = 4;
    const uint32_t head = block.index_y();
    const uint32_t first_split = SplitOf(step.row(row, StepWords::kFirstPosition));
    const uint32_t last_split = SplitOf(step.row(row, StepWords::kLength) - 1);
    for (uint32_t d = block.thread(); d < parts.head_dim; d += block.num_threads()) {
      float greatest = kNoKey;
      float total = 0.0f;
      float sum = 0.0f;
      // Loads first: they do not wait for one another.
      for (uint32_t begin = first_split; begin <= last_split; begin += kAhead) {
        float split_greatest[kAhead] = {};
        float split_total[kAhead] = {};
        float split_sum[kAhead] = {};
        TANDEM_UNROLL
        for (uint32_t i = 0; i < kAhead; ++i) {
          if (begin + i > last_split) break;
          const uint64_t at = parts.At(block.index_x(), head, begin + i);
          split_greatest[i] = parts.data[at];
          split_total[i] = parts.data[at + 1];
          split_sum[i] = parts.data[at + 2 + d];
        }
        TANDEM_UNROLL
        for (uint32_t i = 0; i < kAhead; ++i) {
          if (begin + i > last_split) break;
          const float now = Greater(greatest, split_greatest[i]);
          const float before_factor = greatest > kNoKey ? Exponential(greatest - now) : 0.0f;
          const float split_factor = Exponential(split_greatest[i] - now);
          total = Fma(total, before_factor, split_total[i] * split_factor);
          sum = Fma(sum, before_factor, split_sum[i] * split_factor);
          greatest = now;
        }
      }
      if (sinks.size > 0) {
        const float now = Greater(greatest, sinks[head]);
        const float factor = Exponential(greatest - now);
        total = Fma(total, factor, Exponential(sinks[head] - now));
        sum = sum * factor;
      }
      const uint64_t to = (uint64_t{row} * parts.num_heads + head) * parts.head_dim + d;
      attended[to] = ToBf16(sum / total);
    }
  }
};

// Copies the keys and values of slots in every layer, one copy after the other. Grid: any. Each thread owns
// some elements and goes through all copies. `pool` holds keys and values: [2 *
// layers][blocks][kv_heads][16][KvVectorSize(head_dim)].
struct CopyKvKernel {
  DeviceSpan<const uint32_t> copies;  // [num_copies][from, to]
  DeviceSpan<Bf16> pool;
  KvLayout layout;
  uint64_t layer_size = 0;  // Elements of one layer's keys, or of its values.
  uint32_t num_layers = 0;  // Twice the model's.
  uint32_t num_copies = 0;

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const uint32_t width = layout.num_kv_heads * layout.head_dim;
    const uint64_t count = uint64_t{num_layers} * width;
    const uint64_t stride = uint64_t{block.num_x()} * block.num_threads();
    for (uint64_t i = uint64_t{block.index_x()} * block.num_threads() + block.thread(); i < count;
         i += stride) {
      const auto element = static_cast<uint32_t>(i % width);
      const uint64_t base = i / width * layer_size + element % layout.head_dim;
      for (uint32_t copy = 0; copy < num_copies; ++copy) {
        const uint64_t from = base + layout.At(copies[2 * copy], element / layout.head_dim);
        const uint64_t to = base + layout.At(copies[2 * copy + 1], element / layout.head_dim);
        pool[to] = pool[from];
      }
    }
  }
};

}  // namespace tandem

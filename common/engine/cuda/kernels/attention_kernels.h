#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/row_kernels.h"
#include "common/engine/cuda/kernels/splits.h"
#include "common/engine/cuda/kernels/step_words.h"

// The kernels that write, read and copy keys and values. Keys and values of all slots are bfloat16,
// [layers][blocks][kv_heads][16][head_dim] each. One routine serves prompts, plain decoding and trees. It
// computes each row and head by itself, whatever else is in the step:
//
//   score[p]  = scale * (one chain of fused multiply-adds over head_dim ascending), capped if there is a cap,
//               and lowered by slope times distance if there is a slope
//   for each chunk of 256 positions of a split (splits.h):
//     greatest = the greatest score so far; if it rose, sums and totals are multiplied by exp(before - after)
//     weight[p] = exp(score[p] - greatest)
//     total += the weights, summed by lanes of a warp (position mod 32 of the chunk), then over the warp
//     sum[d] = one chain of fused multiply-adds of weight[p] * value[p][d] over p ascending
//   and the splits are folded into one another from first to last.
//
// CPU reference: cpu/attention_templates.h, which sums in another order. For equal (bfloat16) keys and
// values, both agree within 1e-5 of the greatest value.

namespace tandem {

inline constexpr uint32_t kKvBlockTokens = 16;
inline constexpr uint32_t kAttendChunk = 256;  // Positions whose scores are kept at once.
inline constexpr uint32_t kAttendTile = 32;    // Positions whose keys or values are in shared memory at once.
inline constexpr uint32_t kMaxQueriesPerItem = 16;  // A query is a row and a head.
inline constexpr float kNoKey = -3.4028234663852886e38f;

// One layer's keys or values.
struct KvLayout {
  uint32_t num_blocks = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;

  // Where the vector of one slot and head begins, in elements.
  TANDEM_DEVICE uint64_t At(uint32_t slot, uint32_t kv_head) const {
    return ((uint64_t{slot / kKvBlockTokens} * num_kv_heads + kv_head) * kKvBlockTokens +
            slot % kKvBlockTokens) *
           head_dim;
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

// Computes the step's work items (StepWords). Each is a group of rows that share a split's slots up to
// shared_end. Grid (any, KV heads * parts_per_kv): blocks take the items in turn, so a captured grid fits
// every step.
struct AttendKernel {
  StepWords step;
  DeviceSpan<const float> projected;  // As PrepareKernel leaves it.
  DeviceSpan<const Bf16> keys;
  DeviceSpan<const Bf16> values;
  SplitParts parts;
  KvLayout layout;
  HeadMap heads;
  uint32_t row_width = 0;  // Floats of a row of `projected`.
  // A launch computes items of rows [first_row, first_row + num_part_rows). Parts are counted from first_row.
  uint32_t first_row = 0;
  uint32_t num_part_rows = 0;
  float scale = 1.0f;
  float score_cap = 0.0f;          // score = cap * tanh(score / cap); 0: none.
  DeviceSpan<const float> slopes;  // [heads here]: score -= slope * distance (ALiBi); empty: none.
  // This layer's window; 0 sees everything. Only if layers differ: the step's first positions then hold for
  // no layer.
  uint32_t window = 0;

  // Shared memory, in floats unless said otherwise.
  struct Shared {
    DeviceSpan<float> queries;   // [kMaxQueriesPerItem, head_dim]
    DeviceSpan<float> sums;      // [kMaxQueriesPerItem, head_dim]
    DeviceSpan<float> scores;    // [kMaxQueriesPerItem, kAttendChunk]
    DeviceSpan<float> greatest;  // [kMaxQueriesPerItem]
    DeviceSpan<float> totals;    // [kMaxQueriesPerItem]
    DeviceSpan<float> factors;   // [kMaxQueriesPerItem]
    DeviceSpan<Bf16> tile;       // [kAttendTile, head_dim + 2]: the padding spreads rows over banks.
  };
  // Consecutive positions, and the queries that see them.
  struct Piece {
    uint32_t slots_of;  // The row whose context gives the slots.
    uint32_t begin;
    uint32_t end;
    uint32_t first_query;
    uint32_t end_query;
  };
  struct Item {
    uint32_t index;
    uint32_t num_rows;
    uint32_t num_heads;   // Of each row.
    uint32_t first_head;  // Among the heads of this GPU.
    uint32_t kv_head;
    uint32_t shared_end;
    uint32_t split;
  };

  template <typename Block>
  TANDEM_DEVICE void operator()(Block& block) const {
    const Shared shared = Layout(block);
    const uint32_t kv_head = block.index_y() / heads.parts_per_kv;
    const uint32_t part = block.index_y() % heads.parts_per_kv;
    // This block computes part number `part` of those heads of this KV head that are on this GPU.
    const uint32_t group = (heads.first_kv_head + kv_head) * heads.heads_per_kv;
    const uint32_t begin = Most(group, heads.first_head) - heads.first_head + part * heads.heads_per_part;
    const uint32_t end =
        Least(group + heads.heads_per_kv, heads.first_head + heads.num_heads) - heads.first_head;
    if (begin >= end) return;
    for (uint32_t index = block.index_x(); index < step.num_items(); index += block.num_x()) {
      const uint32_t first = step.item(index, StepWords::kItemRows);
      if (first < first_row || first >= first_row + num_part_rows) continue;
      const Item item = {index,
                         step.item(index, StepWords::kItemNumRows),
                         Least(heads.heads_per_part, end - begin),
                         begin,
                         kv_head,
                         step.item(index, StepWords::kItemSharedEnd),
                         step.item(index, StepWords::kItemSplit)};
      AttendItem(block, shared, item);
    }
  }

 private:
  template <typename Block>
  TANDEM_DEVICE Shared Layout(Block& block) const {
    const uint32_t vectors = kMaxQueriesPerItem * layout.head_dim;
    Shared shared;
    uint32_t at = 0;
    const auto take = [&](uint32_t count) {
      const auto span = block.template Shared<float>(at, count);
      at += count * 4;
      return span;
    };
    shared.queries = take(vectors);
    shared.sums = take(vectors);
    shared.scores = take(kMaxQueriesPerItem * kAttendChunk);
    shared.greatest = take(kMaxQueriesPerItem);
    shared.totals = take(kMaxQueriesPerItem);
    shared.factors = take(kMaxQueriesPerItem);
    shared.tile = block.template Shared<Bf16>(at, kAttendTile * (layout.head_dim + 2));
    return shared;
  }

  TANDEM_DEVICE uint32_t RowOf(const Item& item, uint32_t query) const {
    return step.item(item.index, StepWords::kItemRows + query / item.num_heads);
  }

  template <typename Block>
  TANDEM_DEVICE void AttendItem(Block& block, const Shared& shared, const Item& item) const {
    const uint32_t num_queries = item.num_rows * item.num_heads;
    const uint32_t head_dim = layout.head_dim;
    for (uint32_t i = block.thread(); i < num_queries * head_dim; i += block.num_threads()) {
      const uint64_t row = RowOf(item, i / head_dim);
      const uint32_t head = item.first_head + i / head_dim % item.num_heads;
      shared.queries[i] = projected[row * row_width + uint64_t{head} * head_dim + i % head_dim];
      shared.sums[i] = 0.0f;
    }
    for (uint32_t query = block.thread(); query < num_queries; query += block.num_threads()) {
      shared.greatest[query] = kNoKey;
      shared.totals[query] = 0.0f;
    }
    block.Sync();
    uint32_t end = 0;
    for (uint32_t i = 0; i < item.num_rows; ++i) end = Most(end, LengthOf(item, i));
    end = Least(end, SplitBegin(item.split + 1));
    for (uint32_t chunk = SplitBegin(item.split); chunk < end; chunk += kAttendChunk) {
      AttendChunk(block, shared, item, chunk, Least(end, chunk + kAttendChunk));
    }
    for (uint32_t i = block.thread(); i < num_queries * (head_dim + 2); i += block.num_threads()) {
      const uint32_t query = i / (head_dim + 2);
      const uint32_t field = i % (head_dim + 2);
      const uint64_t to =
          parts.At(RowOf(item, query) - first_row, item.first_head + query % item.num_heads, item.split);
      parts.data[to + field] = field == 0   ? shared.greatest[query]
                               : field == 1 ? shared.totals[query]
                                            : shared.sums[uint64_t{query} * head_dim + field - 2];
    }
    block.Sync();
  }

  TANDEM_DEVICE uint32_t LengthOf(const Item& item, uint32_t i) const {
    return step.row(step.item(item.index, StepWords::kItemRows + i), StepWords::kLength);
  }

  // Piece 0 is what all rows share. The others are the rest of each row.
  TANDEM_DEVICE Piece PieceOf(const Item& item, uint32_t number, uint32_t chunk, uint32_t chunk_end) const {
    if (number == 0) {
      return {step.item(item.index, StepWords::kItemRows), chunk, Least(chunk_end, item.shared_end), 0,
              item.num_rows * item.num_heads};
    }
    const uint32_t i = number - 1;
    return {step.item(item.index, StepWords::kItemRows + i), Most(chunk, item.shared_end),
            Least(chunk_end, LengthOf(item, i)), i * item.num_heads, (i + 1) * item.num_heads};
  }

  template <typename Block>
  TANDEM_DEVICE void AttendChunk(Block& block, const Shared& shared, const Item& item, uint32_t chunk,
                                 uint32_t chunk_end) const {
    for (uint32_t number = 0; number <= item.num_rows; ++number) {
      const Piece piece = PieceOf(item, number, chunk, chunk_end);
      for (uint32_t tile = piece.begin; tile < piece.end; tile += kAttendTile) {
        LoadTile(block, shared, item, piece, tile, keys);
        Score(block, shared, piece, tile, chunk);
        block.Sync();
      }
    }
    Weigh(block, shared, item, chunk, chunk_end);
    block.Sync();
    for (uint32_t number = 0; number <= item.num_rows; ++number) {
      const Piece piece = PieceOf(item, number, chunk, chunk_end);
      for (uint32_t tile = piece.begin; tile < piece.end; tile += kAttendTile) {
        LoadTile(block, shared, item, piece, tile, values);
        AddValues(block, shared, piece, tile, chunk);
        block.Sync();
      }
    }
  }

  // The tile is complete when this returns.
  template <typename Block>
  TANDEM_DEVICE void LoadTile(Block& block, const Shared& shared, const Item& item, const Piece& piece,
                              uint32_t tile, DeviceSpan<const Bf16> from) const {
    const uint32_t count = Least(kAttendTile, piece.end - tile);
    const uint32_t pairs = layout.head_dim / 2;
    for (uint32_t i = block.thread(); i < count * pairs; i += block.num_threads()) {
      const uint32_t slot = step.SlotOf(piece.slots_of, tile + i / pairs);
      const uint64_t at = layout.At(slot, item.kv_head) + i % pairs * 2;
      const uint32_t to = i / pairs * (layout.head_dim + 2) + i % pairs * 2;
      StorePair(shared.tile, to, LoadPair(from, at));
    }
    block.Sync();
  }

  template <typename Block>
  TANDEM_DEVICE void Score(Block& block, const Shared& shared, const Piece& piece, uint32_t tile,
                           uint32_t chunk) const {
    // Each thread has one position and every n-th query: a warp's lanes read the same element of a query.
    const uint32_t count = Least(kAttendTile, piece.end - tile);
    const uint32_t place = block.thread() % kAttendTile;
    if (place >= count) return;
    const uint32_t key = place * (layout.head_dim + 2);
    const uint32_t step_queries = block.num_threads() / kAttendTile;
    for (uint32_t query = piece.first_query + block.thread() / kAttendTile; query < piece.end_query;
         query += step_queries) {
      const uint32_t at = query * layout.head_dim;
      float sum = 0.0f;
      for (uint32_t d = 0; d < layout.head_dim; d += 2) {
        const Bf16Pair pair = LoadPair(shared.tile, key + d);
        sum = Fma(shared.queries[at + d], FirstOf(pair), sum);
        sum = Fma(shared.queries[at + d + 1], SecondOf(pair), sum);
      }
      shared.scores[query * kAttendChunk + tile - chunk + place] = scale * sum;
    }
  }

  // Turns scores into weights; one warp for each query.
  template <typename Block>
  TANDEM_DEVICE void Weigh(Block& block, const Shared& shared, const Item& item, uint32_t chunk,
                           uint32_t chunk_end) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t num_queries = item.num_rows * item.num_heads;
    for (uint32_t query = block.thread() / kWarpThreads; query < num_queries;
         query += block.num_threads() / kWarpThreads) {
      const uint32_t row = RowOf(item, query);
      const uint32_t end = Least(chunk_end, step.row(row, StepWords::kLength));
      const uint32_t length = step.row(row, StepWords::kLength);
      const uint32_t first = window > 0 && length > window ? length - window : 0;
      const uint32_t begin = Most(chunk, Most(first, step.row(row, StepWords::kFirstPosition)));
      const uint32_t at = query * kAttendChunk;
      if (score_cap != 0.0f || slopes.size > 0) {
        const uint32_t head = item.first_head + query % item.num_heads;
        for (uint32_t p = chunk + lane; p < end; p += kWarpThreads) {
          float& score = shared.scores[at + p - chunk];
          if (score_cap != 0.0f) score = Capped(score_cap, score);
          if (slopes.size > 0) {
            score = Fma(slopes[head], static_cast<float>(p) - static_cast<float>(length - 1), score);
          }
        }
      }
      const float before = shared.greatest[query];
      float greatest = before;
      for (uint32_t p = chunk + lane; p < end; p += kWarpThreads) {
        if (p >= begin) greatest = Greater(greatest, shared.scores[at + p - chunk]);
      }
      greatest = WarpGreatest(block, greatest);
      float total = 0.0f;
      for (uint32_t p = chunk + lane; p < chunk_end; p += kWarpThreads) {
        const bool is_seen = p >= begin && p < end;
        const float weight = is_seen ? Exponential(shared.scores[at + p - chunk] - greatest) : 0.0f;
        shared.scores[at + p - chunk] = weight;
        total += weight;
      }
      total = WarpSum(block, total);
      if (lane == 0) {
        const float factor = before > kNoKey ? Exponential(before - greatest) : 0.0f;
        shared.greatest[query] = greatest;
        shared.factors[query] = factor;
        shared.totals[query] = Fma(shared.totals[query], factor, total);
      }
    }
    block.Sync();
    for (uint32_t i = block.thread(); i < num_queries * layout.head_dim; i += block.num_threads()) {
      shared.sums[i] = shared.sums[i] * shared.factors[i / layout.head_dim];
    }
  }

  // Skips weights of zero, so that a row never depends on values that it does not see.
  template <typename Block>
  TANDEM_DEVICE void AddValues(Block& block, const Shared& shared, const Piece& piece, uint32_t tile,
                               uint32_t chunk) const {
    const uint32_t count = Least(kAttendTile, piece.end - tile);
    const uint32_t first = piece.first_query * layout.head_dim;
    const uint32_t num = (piece.end_query - piece.first_query) * layout.head_dim;
    for (uint32_t i = first + block.thread(); i < first + num; i += block.num_threads()) {
      const uint32_t weights = i / layout.head_dim * kAttendChunk + tile - chunk;
      const uint32_t d = i % layout.head_dim;
      float sum = shared.sums[i];
      for (uint32_t p = 0; p < count; ++p) {
        const float weight = shared.scores[weights + p];
        const float value = ToFloat(shared.tile[p * (layout.head_dim + 2) + d]);
        if (weight != 0.0f) sum = Fma(weight, value, sum);
      }
      shared.sums[i] = sum;
    }
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
    const uint32_t head = block.index_y();
    const uint32_t first_split = SplitOf(step.row(row, StepWords::kFirstPosition));
    const uint32_t last_split = SplitOf(step.row(row, StepWords::kLength) - 1);
    for (uint32_t d = block.thread(); d < parts.head_dim; d += block.num_threads()) {
      float greatest = kNoKey;
      float total = 0.0f;
      float sum = 0.0f;
      for (uint32_t split = first_split; split <= last_split; ++split) {
        const uint64_t at = parts.At(block.index_x(), head, split);
        const float split_greatest = parts.data[at];
        const float now = Greater(greatest, split_greatest);
        const float before_factor = greatest > kNoKey ? Exponential(greatest - now) : 0.0f;
        const float split_factor = Exponential(split_greatest - now);
        total = Fma(total, before_factor, parts.data[at + 1] * split_factor);
        sum = Fma(sum, before_factor, parts.data[at + 2 + d] * split_factor);
        greatest = now;
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
// layers][blocks][kv_heads][16][head_dim].
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

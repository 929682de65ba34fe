#pragma once

#include <cstdint>
#include <type_traits>

#include "common/engine/cuda/kernels/attention_kernels.h"
#include "common/engine/cuda/kernels/block.h"
#include "common/engine/cuda/kernels/row_kernels.h"
#include "common/engine/cuda/kernels/splits.h"
#include "common/engine/cuda/kernels/step_words.h"

// Attention. One routine serves prompts, plain decoding and trees. It computes each row and head by itself,
// whatever else is in the step:
//
//   score[p]  = scale * (a sum over head_dim: matrix units, 16 numbers at a time, ascending), capped if there
//               is a cap, and lowered by slope times distance if there is a slope
//   for each chunk of 256 positions of a split (splits.h):
//     greatest = the greatest score so far; if it rose, sums and totals are multiplied by exp(before - after)
//     weight[p] = exp(score[p] - greatest)
//     total += the weights, summed by lanes of a warp (position mod 32 of the chunk), then over the warp
//     sum[d] += weight[p] * value[p][d]: matrix units, 16 positions at a time (multiples of 16), ascending
//   and FoldKernel folds the splits into one another from first to last.
//
// Matrix units multiply bfloat16. Queries and weights are float32, so each is the sum of two bfloat16, which
// are multiplied one after the other: 16 bits of their fractions take part.
//
// CPU reference: cpu/attention_templates.h, which sums in another order. For equal (bfloat16) keys and
// values, both agree within 2e-5 of the greatest value.

namespace tandem {

inline constexpr uint32_t kAttendChunk = 256;  // Positions whose scores are kept at once; a multiple of 32.
inline constexpr uint32_t kAttendWarps = 4;
inline constexpr uint32_t kAttendThreads = kAttendWarps * kWarpThreads;
inline constexpr uint32_t kLongestHead = 256;
// Shared memory of queries, for each 64 numbers of a head, and the distance between two queries' scores,
// which spreads them over banks; in words.
inline constexpr uint32_t kQueryWords = 2 * kMaxQueriesPerItem * 64 / 2;
inline constexpr uint32_t kItemScoreStride = kAttendChunk + 8;

// Computes the step's work items (StepWords). Each is a group of rows that share a split's slots up to
// shared_end. Grid (any, KV heads * parts_per_kv): blocks take the items in turn, so a captured grid fits
// every step. For heads of up to 64 * kWords numbers.
//
// Queries are the rows of matrix products, so no query's sums see another query. Loads go straight to
// registers, in the order in which matrix units take them: the numbers of a head, and the columns of the
// sums, are permuted so that a lane's numbers are neighbours in memory.
template <uint32_t kWords>
struct AttendKernel {
  static constexpr uint32_t kMostThreads = kAttendThreads;
  static constexpr uint32_t kLeastBlocks = kWords == 4 ? 2 : 3;  // On a multiprocessor, by registers.

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
      const uint32_t num_heads = Least(heads.heads_per_part, end - begin);
      const Item item = {index,
                         step.item(index, StepWords::kItemNumRows),
                         num_heads,
                         (65536 + num_heads - 1) / num_heads,
                         begin,
                         kv_head,
                         step.item(index, StepWords::kItemSharedEnd),
                         step.item(index, StepWords::kItemSplit)};
      AttendItem(block, shared, item);
    }
  }

 private:
  // Numbers of a head in a group, of which each of four lanes has sixteen; a head has kWords groups.
  static constexpr uint32_t kGroup = 64;
  // Numbers of a head whose sums a warp computes.
  static constexpr uint32_t kWarpNumbers = kGroup * kWords / kAttendWarps;
  static constexpr uint32_t kScoreTiles = 4;  // Of 8 positions each, which a warp scores together.
  static constexpr uint32_t kScored = 8 * kScoreTiles;
  static constexpr uint32_t kWeighed = 16;  // Positions that a matrix product adds up at once.

  static constexpr uint32_t kMostPieces = kMaxQueriesPerItem + 1;

  struct Shared {
    // [kWords][high, low][4 pieces][32 lanes][4]: the parts of queries as matrix units take them.
    DeviceSpan<uint32_t> queries;
    // [kMaxQueriesPerItem][kItemScoreStride]: scores, and then weights, as two bfloat16: high and low parts.
    DeviceSpan<uint32_t> scores;
    DeviceSpan<uint32_t> vectors;  // [kMostPieces][kAttendChunk]: of a piece's positions, see VectorOf.
    DeviceSpan<uint32_t> ends;     // [kMostPieces]: of pieces.
    DeviceSpan<float> greatest;    // [kMaxQueriesPerItem]
    DeviceSpan<float> totals;      // [kMaxQueriesPerItem]
    DeviceSpan<float> factors;     // [kMaxQueriesPerItem]
  };
  struct Item {
    uint32_t index;
    uint32_t num_rows;
    uint32_t num_heads;   // Of each row.
    uint32_t inverse;     // 65536 / num_heads, rounded up: divisions are long, and kernels short.
    uint32_t first_head;  // Among the heads of this GPU.
    uint32_t kv_head;
    uint32_t shared_end;
    uint32_t split;

    TANDEM_DEVICE uint32_t num_queries() const { return num_rows * num_heads; }
    // Among the item's rows, and among its heads. Exact, for up to kMaxQueriesPerItem queries.
    TANDEM_DEVICE uint32_t RowOf(uint32_t query) const { return query * inverse >> 16; }
    TANDEM_DEVICE uint32_t HeadOf(uint32_t query) const {
      return first_head + query - RowOf(query) * num_heads;
    }
    // A single row shares everything with itself.
    TANDEM_DEVICE uint32_t num_pieces() const { return num_rows == 1 ? 1 : num_rows + 1; }
    // Whether the query sees the positions of a piece.
    TANDEM_DEVICE bool Sees(uint32_t query, uint32_t piece) const {
      return piece == 0 ? query < num_queries() : RowOf(query) + 1 == piece;
    }
  };
  // Up to kAttendChunk positions of an item's split.
  struct Chunk {
    uint32_t begin;
    uint32_t end;
    uint32_t own_begin;  // Of the pieces that are not shared; a multiple of kWeighed.

    TANDEM_DEVICE uint32_t BeginOf(uint32_t piece) const { return piece == 0 ? begin : own_begin; }
  };
  // A lane's sums of queries g and g + 8 (g = lane / 4), columns 2 t and 2 t + 1 (t = lane % 4) of each of
  // 2 * kWords products. Column c of product j is number c * 2 * kWords + j of the warp's numbers.
  struct Sums {
    float of[2 * kWords][4];
  };

  template <typename Block>
  TANDEM_DEVICE Shared Layout(Block& block) const {
    Shared shared;
    uint32_t at = 0;
    const auto take = [&](auto& span, uint32_t count) {
      span = block.template Shared<std::remove_reference_t<decltype(span[0])>>(at, count);
      at += count * 4;
    };
    take(shared.queries, kWords * kQueryWords);
    take(shared.scores, kMaxQueriesPerItem * kItemScoreStride);
    take(shared.vectors, kMostPieces * kAttendChunk);
    take(shared.ends, kMostPieces);
    take(shared.greatest, kMaxQueriesPerItem);
    take(shared.totals, kMaxQueriesPerItem);
    take(shared.factors, kMaxQueriesPerItem);
    return shared;
  }

  TANDEM_DEVICE uint32_t RowOf(const Item& item, uint32_t query) const {
    return step.item(item.index, StepWords::kItemRows + item.RowOf(query));
  }
  TANDEM_DEVICE uint32_t LengthOf(const Item& item, uint32_t i) const {
    return step.row(step.item(item.index, StepWords::kItemRows + i), StepWords::kLength);
  }

  template <typename Block>
  TANDEM_DEVICE void AttendItem(Block& block, const Shared& shared, const Item& item) const {
    SplitQueries(block, shared, item);
    for (uint32_t query = block.thread(); query < item.num_queries(); query += block.num_threads()) {
      shared.greatest[query] = kNoKey;
      shared.totals[query] = 0.0f;
    }
    Sums sums = {};
    uint32_t end = 0;
    TANDEM_ROLLED
    for (uint32_t i = 0; i < item.num_rows; ++i) end = Most(end, LengthOf(item, i));
    end = Least(end, SplitBegin(item.split + 1));
    const uint32_t split_begin = SplitBegin(item.split);
    for (uint32_t begin = split_begin; begin < end; begin += kAttendChunk) {
      if (begin > split_begin) block.Sync();  // All warps have read the last chunk's vectors.
      const Chunk chunk = {begin, Least(end, begin + kAttendChunk), Most(begin, item.shared_end)};
      FindVectors(block, shared, item, chunk);
      block.Sync();  // Also: queries are there.
      Score(block, shared, item, chunk);
      block.Sync();
      Weigh(block, shared, item, chunk);
      block.Sync();
      AddValues(block, shared, item, chunk, sums);
    }
    for (uint32_t query = block.thread(); query < item.num_queries(); query += block.num_threads()) {
      const uint64_t to = PartOf(item, query);
      parts.data[to] = shared.greatest[query];
      parts.data[to + 1] = shared.totals[query];
    }
    StoreSums(block, item, sums);
    block.Sync();  // The next item writes to shared memory.
  }

  TANDEM_DEVICE uint64_t PartOf(const Item& item, uint32_t query) const {
    return parts.At(RowOf(item, query) - first_row, item.HeadOf(query), item.split);
  }

  template <typename Block>
  TANDEM_DEVICE void StoreSums(Block& block, const Item& item, const Sums& sums) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t first = block.thread() / kWarpThreads * kWarpNumbers + lane % 4 * 4 * kWords;
    TANDEM_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t query = lane / 4 + 8 * half;
      if (query >= item.num_queries()) continue;
      const uint64_t to = PartOf(item, query) + 2 + first;
      TANDEM_UNROLL
      for (uint32_t i = 0; i < 4 * kWords; i += 2) {
        if (first + i >= layout.head_dim) break;
        const uint32_t product = i % (2 * kWords);
        const uint32_t column = 2 * half + i / (2 * kWords);
        StoreFloats<2>(parts.data, to + i, {sums.of[product][column], sums.of[product + 1][column]});
      }
    }
  }

  // The high part of a float is the nearest bfloat16, the low part that of the rest: together they have 16
  // bits of its fraction or more.
  static TANDEM_DEVICE uint32_t SplitFloat(float value) {
    const Bf16 high = ToBf16(value);
    const Bf16 low = ToBf16(value - ToFloat(high));
    return static_cast<uint32_t>(high.bits) << 16 | low.bits;
  }
  static TANDEM_DEVICE uint32_t HighParts(uint32_t first, uint32_t second) {
    return first >> 16 | (second & 0xffff0000u);
  }
  static TANDEM_DEVICE uint32_t LowParts(uint32_t first, uint32_t second) {
    return (first & 0xffffu) | second << 16;
  }

  // Queries that the item does not have are zeros. Each query is split by kThreadsEach threads.
  template <typename Block>
  TANDEM_DEVICE void SplitQueries(Block& block, const Shared& shared, const Item& item) const {
    constexpr uint32_t kThreadsEach = kAttendThreads / kMaxQueriesPerItem;
    const uint32_t query = block.thread() / kThreadsEach;
    const bool exists = query < item.num_queries();
    const uint64_t from =
        exists ? uint64_t{RowOf(item, query)} * row_width + uint64_t{item.HeadOf(query)} * layout.head_dim
               : 0;
    const bool whole = layout.head_dim % 4 == 0;
    TANDEM_UNROLL
    for (uint32_t i = 0; i < kGroup * kWords / (4 * kThreadsEach); ++i) {
      const uint32_t number = (i * kThreadsEach + block.thread() % kThreadsEach) * 4;
      Floats<4> floats = {};
      if (exists && whole && number < layout.head_dim) floats = LoadFloats<4>(projected, from + number);
      if (exists && !whole) {
        for (uint32_t j = 0; j < 4 && number + j < layout.head_dim; ++j) {
          floats.at[j] = projected[from + number + j];
        }
      }
      uint32_t parts_of[4];
      TANDEM_UNROLL
      for (uint32_t j = 0; j < 4; ++j) parts_of[j] = SplitFloat(floats.at[j]);
      const uint32_t lane = query % 8 * 4 + number % kGroup / 16;
      const uint32_t to =
          number / kGroup * kQueryWords + (number % 16 / 4 * kWarpThreads + lane) * 4 + query / 8;
      shared.queries[to] = HighParts(parts_of[0], parts_of[1]);
      shared.queries[to + 2] = HighParts(parts_of[2], parts_of[3]);
      shared.queries[to + kQueryWords / 2] = LowParts(parts_of[0], parts_of[1]);
      shared.queries[to + kQueryWords / 2 + 2] = LowParts(parts_of[2], parts_of[3]);
    }
  }

  // The number of a slot's vector among those of the layer. It fits: CudaEngine::Load checks that.
  TANDEM_DEVICE uint32_t VectorOf(uint32_t row, uint32_t position, uint32_t kv_head) const {
    return static_cast<uint32_t>(layout.VectorOf(step.SlotOf(row, position), kv_head));
  }

  // Piece 0 is what all rows share. The others are the rest of each row, one warp for each.
  template <typename Block>
  TANDEM_DEVICE void FindVectors(Block& block, const Shared& shared, const Item& item,
                                 const Chunk& chunk) const {
    const uint32_t sharing_row = step.item(item.index, StepWords::kItemRows);
    const uint32_t shared_end = Least(chunk.end, item.shared_end);
    TANDEM_ROLLED
    for (uint32_t p = chunk.begin + block.thread(); p < shared_end; p += block.num_threads()) {
      shared.vectors[p - chunk.begin] = VectorOf(sharing_row, p, item.kv_head);
    }
    if (block.thread() == 0) shared.ends[0] = shared_end;
    TANDEM_ROLLED
    for (uint32_t piece = 1 + block.thread() / kWarpThreads; piece < item.num_pieces();
         piece += kAttendWarps) {
      const uint32_t row = step.item(item.index, StepWords::kItemRows + piece - 1);
      const uint32_t end = Least(chunk.end, step.row(row, StepWords::kLength));
      const uint32_t lane = block.thread() % kWarpThreads;
      TANDEM_ROLLED
      for (uint32_t p = chunk.own_begin + lane; p < end; p += kWarpThreads) {
        shared.vectors[piece * kAttendChunk + p - chunk.begin] = VectorOf(row, p, item.kv_head);
      }
      if (lane == 0) shared.ends[piece] = end;
    }
  }

  // The `kCount` words (2 * kCount numbers) of a key or value from number `first` on; zeros behind its end.
  template <uint32_t kCount>
  TANDEM_DEVICE Words<kCount> LoadNumbers(DeviceSpan<const Bf16> from, uint32_t vector,
                                          uint32_t first) const {
    const uint32_t size = KvVectorSize(layout.head_dim);
    if (first >= size) return {};
    return LoadWords<kCount>(from, uint64_t{vector} * size + first);
  }

  // A group of a lane's numbers of the keys of kScoreTiles positions.
  struct Keys {
    Words<4> of[kScoreTiles][2];
  };
  TANDEM_DEVICE Keys LoadKeys(const uint32_t (&vectors)[kScoreTiles], uint32_t valid, uint32_t first) const {
    Keys loaded = {};
    TANDEM_UNROLL
    for (uint32_t tile = 0; tile < kScoreTiles; ++tile) {
      if ((valid >> tile & 1u) == 0) continue;
      loaded.of[tile][0] = LoadNumbers<4>(keys, vectors[tile], first);
      loaded.of[tile][1] = LoadNumbers<4>(keys, vectors[tile], first + 8);
    }
    return loaded;
  }

  // Warps take kScored positions in turn.
  template <typename Block>
  TANDEM_DEVICE void Score(Block& block, const Shared& shared, const Item& item, const Chunk& chunk) const {
    const uint32_t warp = block.thread() / kWarpThreads;
    uint32_t turn = 0;
    TANDEM_ROLLED
    for (uint32_t piece = 0; piece < item.num_pieces(); ++piece) {
      TANDEM_ROLLED
      for (uint32_t begin = chunk.BeginOf(piece); begin < shared.ends[piece]; begin += kScored, ++turn) {
        if (turn % kAttendWarps == warp) ScorePositions(block, shared, item, chunk, piece, begin);
      }
    }
  }

  template <typename Block>
  TANDEM_DEVICE void ScorePositions(Block& block, const Shared& shared, const Item& item, const Chunk& chunk,
                                    uint32_t piece, uint32_t begin) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t end = shared.ends[piece];
    uint32_t vectors[kScoreTiles] = {};
    uint32_t valid = 0;
    TANDEM_UNROLL
    for (uint32_t tile = 0; tile < kScoreTiles; ++tile) {
      const uint32_t position = begin + tile * 8 + lane / 4;
      if (position >= end) continue;
      vectors[tile] = shared.vectors[piece * kAttendChunk + position - chunk.begin];
      valid |= 1u << tile;
    }
    const uint32_t num_tiles = Least(kScoreTiles, (end - begin + 7) / 8);
    float scores[kScoreTiles][4] = {};
    Keys next = LoadKeys(vectors, valid, lane % 4 * 16);
    TANDEM_UNROLL
    for (uint32_t group = 0; group < kWords; ++group) {
      const Keys now = next;
      if (group + 1 < kWords) next = LoadKeys(vectors, valid, (group + 1) * kGroup + lane % 4 * 16);
      // Low parts first: the sum grows from small to large.
      TANDEM_UNROLL
      for (uint32_t part = 2; part-- > 0;) {
        TANDEM_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t at = (((group * 2 + part) * 4 + i) * kWarpThreads + lane) * 4;
          const Words<4> query = LoadWords<4>(DeviceSpan<const uint32_t>(shared.queries), at);
          TANDEM_UNROLL
          for (uint32_t tile = 0; tile < kScoreTiles; ++tile) {
            if (tile >= num_tiles) break;
            const Words<4>& key = now.of[tile][i / 2];
            block.MultiplyAddBf16(query.word, key.word[i % 2 * 2], key.word[i % 2 * 2 + 1], scores[tile]);
          }
        }
      }
    }
    TANDEM_UNROLL
    for (uint32_t tile = 0; tile < kScoreTiles; ++tile) {
      TANDEM_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t query = lane / 4 + i / 2 * 8;
        const uint32_t position = begin + tile * 8 + lane % 4 * 2 + i % 2;
        if (position >= end || !item.Sees(query, piece)) continue;
        shared.scores[query * kItemScoreStride + position - chunk.begin] =
            BitsAs<uint32_t>(scale * scores[tile][i]);
      }
    }
  }

  // The positions that a query sees, and its row's length.
  struct Range {
    uint32_t begin;
    uint32_t end;
    uint32_t length;
  };
  TANDEM_DEVICE Range RangeOf(const Item& item, uint32_t query, const Chunk& chunk) const {
    if (query >= item.num_queries()) return {0, 0, 0};
    const uint32_t row = RowOf(item, query);
    const uint32_t length = step.row(row, StepWords::kLength);
    const uint32_t first = window > 0 && length > window ? length - window : 0;
    return {Most(first, step.row(row, StepWords::kFirstPosition)), Least(chunk.end, length), length};
  }

  // Caps a lane's scores of a query, and lowers them with the distance.
  TANDEM_DEVICE void CapAndLower(const Shared& shared, const Item& item, const Chunk& chunk, uint32_t query,
                                 const Range& seen, uint32_t lane) const {
    const uint32_t at = query * kItemScoreStride;
    TANDEM_ROLLED
    for (uint32_t p = chunk.begin + lane; p < seen.end; p += kWarpThreads) {
      float score = BitsAs<float>(shared.scores[at + p - chunk.begin]);
      if (score_cap != 0.0f) score = Capped(score_cap, score);
      if (slopes.size > 0) {
        const float distance = static_cast<float>(p) - static_cast<float>(seen.length - 1);
        score = Fma(slopes[item.HeadOf(query)], distance, score);
      }
      shared.scores[at + p - chunk.begin] = BitsAs<uint32_t>(score);
    }
  }

  // Turns scores into weights. Weights of positions that a query does not see are zeros, up to a multiple of
  // kWeighed.
  template <typename Block>
  TANDEM_DEVICE void Weigh(Block& block, const Shared& shared, const Item& item, const Chunk& chunk) const {
    constexpr uint32_t kEach = kAttendChunk / kWarpThreads;
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t padded_end = (chunk.end + kWeighed - 1) / kWeighed * kWeighed;
    TANDEM_ROLLED
    for (uint32_t query = block.thread() / kWarpThreads; query < kMaxQueriesPerItem; query += kAttendWarps) {
      const uint32_t at = query * kItemScoreStride;
      const Range seen = RangeOf(item, query, chunk);
      if (score_cap != 0.0f || slopes.size > 0) CapAndLower(shared, item, chunk, query, seen, lane);
      const float before = query < item.num_queries() ? shared.greatest[query] : kNoKey;
      float scores[kEach];
      float greatest = before;
      TANDEM_UNROLL
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t p = chunk.begin + i * kWarpThreads + lane;
        scores[i] = kNoKey;
        if (p >= seen.begin && p < seen.end) scores[i] = BitsAs<float>(shared.scores[at + p - chunk.begin]);
        greatest = Greater(greatest, scores[i]);
      }
      greatest = WarpGreatest(block, greatest);
      float total = 0.0f;
      TANDEM_UNROLL
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t p = chunk.begin + i * kWarpThreads + lane;
        if (p >= padded_end) break;
        const float weight = p >= seen.begin && p < seen.end ? Exponential(scores[i] - greatest) : 0.0f;
        shared.scores[at + p - chunk.begin] = SplitFloat(weight);
        total += weight;
      }
      total = WarpSum(block, total);
      block.SyncWarp();  // All lanes have read what the first one writes.
      if (lane == 0 && query < item.num_queries()) {
        const float factor = before > kNoKey ? Exponential(before - greatest) : 0.0f;
        shared.greatest[query] = greatest;
        shared.factors[query] = factor;
        shared.totals[query] = Fma(shared.totals[query], factor, total);
      }
    }
  }

  // kWeighed positions of a piece.
  struct Sixteen {
    uint32_t piece;
    uint32_t begin;
  };
  // The first of the next piece that has positions in the chunk, from `piece` on.
  TANDEM_DEVICE Sixteen FirstFrom(const Shared& shared, const Item& item, const Chunk& chunk,
                                  uint32_t piece) const {
    TANDEM_ROLLED
    while (piece < item.num_pieces() && chunk.BeginOf(piece) >= shared.ends[piece]) ++piece;
    return {piece, chunk.BeginOf(piece)};
  }
  TANDEM_DEVICE Sixteen After(const Shared& shared, const Item& item, const Chunk& chunk,
                              const Sixteen& sixteen) const {
    if (sixteen.begin + kWeighed < shared.ends[sixteen.piece]) {
      return {sixteen.piece, sixteen.begin + kWeighed};
    }
    return FirstFrom(shared, item, chunk, sixteen.piece + 1);
  }

  // A lane's numbers of the values of four of kWeighed positions: 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. Zeros if
  // there are none.
  struct Values {
    Words<kWords> of[4];
  };
  TANDEM_DEVICE Values LoadValues(const Shared& shared, const Item& item, const Chunk& chunk,
                                  const Sixteen& sixteen, uint32_t lane, uint32_t first) const {
    Values loaded = {};
    if (sixteen.piece >= item.num_pieces()) return loaded;
    const uint32_t end = shared.ends[sixteen.piece];
    TANDEM_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t position = sixteen.begin + lane % 4 * 2 + i % 2 + i / 2 * 8;
      if (position >= end) continue;
      const uint32_t vector = shared.vectors[sixteen.piece * kAttendChunk + position - chunk.begin];
      loaded.of[i] = LoadNumbers<kWords>(values, vector, first);
    }
    return loaded;
  }

  // Every warp adds up its own numbers, over all positions. Two groups of positions are loaded ahead.
  template <typename Block>
  TANDEM_DEVICE void AddValues(Block& block, const Shared& shared, const Item& item, const Chunk& chunk,
                               Sums& sums) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    const uint32_t of_warp = block.thread() / kWarpThreads * kWarpNumbers;
    if (of_warp >= layout.head_dim) return;
    const uint32_t first = of_warp + lane / 4 * 2 * kWords;
    TANDEM_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t query = lane / 4 + i / 2 * 8;
      const float factor = query < item.num_queries() ? shared.factors[query] : 0.0f;
      TANDEM_UNROLL
      for (uint32_t j = 0; j < 2 * kWords; ++j) sums.of[j][i] = sums.of[j][i] * factor;
    }
    const Sixteen none = {item.num_pieces(), 0};
    Sixteen now = none;
    Sixteen next = none;
    Sixteen later = FirstFrom(shared, item, chunk, 0);
    Values now_values = {};
    Values next_values = {};
    // The first two turns only load.
    TANDEM_ROLLED
    do {
      const Values later_values = LoadValues(shared, item, chunk, later, lane, first);
      if (now.piece < item.num_pieces()) AddSixteen(block, shared, item, chunk, now, now_values, sums);
      now = next;
      now_values = next_values;
      next = later;
      next_values = later_values;
      if (later.piece < item.num_pieces()) later = After(shared, item, chunk, later);
    } while (now.piece < item.num_pieces() || next.piece < item.num_pieces());
  }

  template <typename Block>
  TANDEM_DEVICE void AddSixteen(Block& block, const Shared& shared, const Item& item, const Chunk& chunk,
                                const Sixteen& sixteen, const Values& values_of, Sums& sums) const {
    const uint32_t lane = block.thread() % kWarpThreads;
    uint32_t high[4];
    uint32_t low[4];
    TANDEM_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t query = lane / 4 + i % 2 * 8;
      const uint32_t at = query * kItemScoreStride + sixteen.begin - chunk.begin + lane % 4 * 2 + i / 2 * 8;
      const Words<2> weights = LoadWords<2>(DeviceSpan<const uint32_t>(shared.scores), at);
      high[i] = HighParts(weights.word[0], weights.word[1]);
      low[i] = LowParts(weights.word[0], weights.word[1]);
    }
    // The other rows' sums stay as they are: zero times another row's infinity is no zero.
    const bool sees[2] = {item.Sees(lane / 4, sixteen.piece), item.Sees(lane / 4 + 8, sixteen.piece)};
    TANDEM_UNROLL
    for (uint32_t j = 0; j < 2 * kWords; ++j) {
      uint32_t columns[2];
      TANDEM_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t one = values_of.of[2 * i].word[j / 2];
        const uint32_t other = values_of.of[2 * i + 1].word[j / 2];
        columns[i] = j % 2 == 0 ? LowParts(one, other) : HighParts(one, other);
      }
      float sum[4];
      TANDEM_UNROLL
      for (uint32_t i = 0; i < 4; ++i) sum[i] = sums.of[j][i];
      block.MultiplyAddBf16(low, columns[0], columns[1], sum);
      block.MultiplyAddBf16(high, columns[0], columns[1], sum);
      TANDEM_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        if (sees[i / 2]) sums.of[j][i] = sum[i];
      }
    }
  }
};
using Attend64Kernel = AttendKernel<1>;
using Attend128Kernel = AttendKernel<2>;
using Attend256Kernel = AttendKernel<4>;

}  // namespace tandem

#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

// Softmax weights are rescaled to the greatest score so far once per chunk of this many positions. Chunks
// begin at fixed positions. The number is a multiple of kLanes, and small enough that a chunk's scores, keys
// and values stay in the second-level cache.
inline constexpr uint32_t kAttentionChunk = 256;
// The distance between the scores of two queries, in floats: a vector may extend beyond the chunk.
inline constexpr uint32_t kScoreStride = kAttentionChunk + 16;
// The most queries (a row and a head) of one call.
inline constexpr uint32_t kMaxQueries = 128;
// Blocks of keys or values that stay in the first-level cache for all queries.
inline constexpr uint32_t kAttentionBlocks = 4;

// How keys and values are stored. A head's part of a block is a sequence of vectors of 16 numbers. For keys,
// there is one vector for each element, with that element of 16 positions. For values, each position has its
// own vectors, one for every 16 elements. With kInt8, a line of 16 float32 scales precedes them, one for each
// position: a number is its integer times its position's scale.
enum class KvFormat : uint8_t { kF32, kBf16, kInt8 };

// A row and its context: position p is in block blocks[p / 16] at offset p % 16 below num_committed, then in
// slot tail[p - num_committed].
struct AttentionRow {
  const float* queries = nullptr;  // [all query heads, head_dim], heads `query_stride` floats apart
  float* outputs = nullptr;        // [all query heads, value_dim], heads `output_stride` floats apart
  const uint32_t* blocks = nullptr;
  const uint32_t* tail = nullptr;
  uint32_t num_committed = 0;
  uint32_t num_tail = 0;
  uint32_t first_position = 0;  // Positions before it are not attended to (sliding window).
  // How many blocks at the start of its context the row shares with the row before it in the array.
  uint32_t num_shared_blocks = 0;
};

// Arguments of softmax(score) v, with score = scale * q k modified by the fields below, for rows and
// `num_heads` query heads that all read the keys and values of one KV head. Neighbouring rows with the same
// blocks go through these blocks together.
struct AttentionArgs {
  const AttentionRow* rows = nullptr;
  uint32_t num_rows = 0;
  uint32_t first_head = 0;  // Of queries and outputs.
  uint32_t num_heads = 0;   // num_rows * num_heads <= kMaxQueries.
  uint32_t head_dim = 0;    // Of queries and keys.
  uint32_t value_dim = 0;   // Of values and outputs.
  size_t query_stride = 0;
  size_t output_stride = 0;
  float scale = 1.0f;
  float score_cap = 0.0f;         // score = cap * tanh(score / cap); 0: none.
  const float* slopes = nullptr;  // [num_heads]: score -= slope * distance (ALiBi); null: none.
  const float* sinks = nullptr;   // [num_heads]: scores beside those of positions (kernel); null: none.
  KvFormat format = KvFormat::kF32;
  const char* keys = nullptr;    // [num_blocks][head_dim][16], blocks `key_block_bytes` apart.
  const char* values = nullptr;  // [num_blocks][16][value_stride], the same.
  size_t key_block_bytes = 0;
  size_t value_block_bytes = 0;
  size_t value_stride = 0;  // value_dim rounded up to 16; the padding holds numbers.
  // Scratch memory. Keys and values of kAttentionBlocks blocks in float32; only for other formats.
  float* wide_keys = nullptr;
  float* wide_values = nullptr;
  // With q = row * num_heads + head:
  float* scores = nullptr;    // [kMaxQueries, kScoreStride], of the current chunk.
  float* sums = nullptr;      // [kMaxQueries, value_stride], of weighted values.
  float* totals = nullptr;    // [kMaxQueries, 16], partial sums of weights.
  float* greatest = nullptr;  // [kMaxQueries], scores so far.
};

}  // namespace tandem

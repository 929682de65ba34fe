#include "common/engine/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/attention_args.h"
#include "common/engine/cpu/testing/kernels_test_data.h"
#include "common/engine/cpu/weight_quantizer.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr float kUntouched = 12345.0f;

// Rows over keys and values of one KV head in a pool of blocks.
struct AttentionCase {
  struct Row {
    uint32_t num_committed = 0;
    uint32_t num_tail = 0;
    uint32_t first_position = 0;
    // Blocks at the start that all rows share; the others are the row's own.
    uint32_t num_shared_blocks = 1000;
  };
  uint32_t num_heads = 1;
  uint32_t head_dim = 16;
  std::vector<Row> rows;
  KvFormat format = KvFormat::kF32;
  uint32_t value_dim = 0;  // 0: head_dim.
  uint32_t apart = 0;      // Numbers between a row's heads, of queries and of outputs.
};

// Keys or values of some blocks, [blocks][..][16], as a format has them, and what it makes of them.
struct KvNumbers {
  std::vector<char> bytes;
  size_t block_bytes = 0;
  std::vector<float> rounded;
};

// `scale_of(i)`: which of a block's 16 positions its number i belongs to.
template <typename PositionOf>
KvNumbers InFormat(KvFormat format, const std::vector<float>& numbers, size_t block_size,
                   PositionOf position_of) {
  const size_t num_blocks = numbers.size() / block_size;
  KvNumbers kept = {.rounded = numbers};
  const size_t header = format == KvFormat::kInt8 ? kLanes * sizeof(float) : 0;
  const size_t number_bytes = format == KvFormat::kF32 ? 4 : format == KvFormat::kBf16 ? 2 : 1;
  kept.block_bytes = (header + block_size * number_bytes + 63) / 64 * 64;
  kept.bytes.resize(num_blocks * kept.block_bytes + 64);
  const std::vector<float> scales = Random(num_blocks * kLanes, 6, 0.01f);
  for (size_t block = 0; block < num_blocks; ++block) {
    char* const to = kept.bytes.data() + block * kept.block_bytes;
    if (header > 0) std::memcpy(to, &scales[block * kLanes], header);
    for (size_t i = 0; i < block_size; ++i) {
      float& number = kept.rounded[block * block_size + i];
      char* const at = to + header + i * number_bytes;
      if (format == KvFormat::kF32) {
        std::memcpy(at, &number, sizeof(number));
      } else if (format == KvFormat::kBf16) {
        const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16);
        std::memcpy(at, &half, sizeof(half));
        number = std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
      } else {
        const auto integer = static_cast<int8_t>(number * 127.0f);
        std::memcpy(at, &integer, sizeof(integer));
        number = static_cast<float>(integer) * scales[block * kLanes + position_of(i)];
      }
    }
  }
  return kept;
}

class AttentionInputs {
 public:
  explicit AttentionInputs(const AttentionCase& shape) : shape_(shape) {
    if (shape_.value_dim == 0) shape_.value_dim = shape.head_dim;
    value_stride_ = (shape_.value_dim + kLanes - 1) / kLanes * kLanes;
    query_stride_ = shape.head_dim + shape.apart;
    output_stride_ = shape_.value_dim + shape.apart;
    constexpr uint32_t kNumBlocks = 128;
    queries_ = Random(shape.rows.size() * shape.num_heads * query_stride_, 3);
    const size_t value_stride = value_stride_;
    keys_ = InFormat(shape.format, Random(size_t{kNumBlocks} * shape.head_dim * kLanes, 4),
                     size_t{shape.head_dim} * kLanes, [](size_t i) { return i % kLanes; });
    values_ = InFormat(shape.format, Random(kNumBlocks * kLanes * value_stride_, 5), kLanes * value_stride_,
                       [value_stride](size_t i) { return i / value_stride; });
    for (uint32_t r = 0; r < shape.rows.size(); ++r) {
      const AttentionCase::Row& row = shape.rows[r];
      std::vector<uint32_t> blocks;
      for (uint32_t i = 0; i * kLanes < row.num_committed; ++i) {
        blocks.push_back((i < row.num_shared_blocks ? i * 7 + 3 : i * 5 + r * 11 + 1) % kNumBlocks);
      }
      blocks_.push_back(blocks);
      std::vector<uint32_t> tail;
      for (uint32_t i = 0; i < row.num_tail; ++i) tail.push_back((i * 37 + r + 5) % (kNumBlocks * kLanes));
      tails_.push_back(tail);
    }
  }

  // Rows from `begin` to `end` in one call; of `rounded`, with what the format makes of keys and values, in
  // float32.
  std::vector<float> Attend(const KernelTable& kernels, size_t begin, size_t end,
                            bool rounded = false) const {
    const size_t row_size = shape_.num_heads * output_stride_;
    std::vector<float> outputs((end - begin) * row_size + 1, kUntouched);
    std::vector<AttentionRow> rows;
    for (size_t r = begin; r < end; ++r) {
      AttentionRow row;
      row.queries = queries_.data() + r * shape_.num_heads * query_stride_;
      row.outputs = outputs.data() + (r - begin) * row_size;
      row.blocks = blocks_[r].data();
      row.tail = tails_[r].data();
      row.num_committed = shape_.rows[r].num_committed;
      row.num_tail = shape_.rows[r].num_tail;
      row.first_position = shape_.rows[r].first_position;
      if (r > begin) {
        while (row.num_shared_blocks < std::min(blocks_[r - 1].size(), blocks_[r].size()) &&
               blocks_[r - 1][row.num_shared_blocks] == blocks_[r][row.num_shared_blocks]) {
          ++row.num_shared_blocks;
        }
      }
      rows.push_back(row);
    }
    // What an earlier call left behind must not matter.
    std::vector<float> scores(size_t{kMaxQueries} * kScoreStride, 1e30f);
    std::vector<float> sums(kMaxQueries * value_stride_, 1e30f);
    std::vector<float> totals(size_t{kMaxQueries} * kLanes, 1e30f);
    std::vector<float> greatest(kMaxQueries, 1e30f);
    std::vector<float> wide_keys(size_t{kAttentionBlocks} * kLanes * shape_.head_dim, 1e30f);
    std::vector<float> wide_values(size_t{kAttentionBlocks} * kLanes * value_stride_, 1e30f);
    AttentionArgs args;
    args.rows = rows.data();
    args.num_rows = static_cast<uint32_t>(rows.size());
    args.num_heads = shape_.num_heads;
    args.head_dim = shape_.head_dim;
    args.value_dim = shape_.value_dim;
    args.query_stride = query_stride_;
    args.output_stride = output_stride_;
    args.scale = 0.25f;
    args.format = rounded ? KvFormat::kF32 : shape_.format;
    args.keys = rounded ? reinterpret_cast<const char*>(keys_.rounded.data()) : keys_.bytes.data();
    args.values = rounded ? reinterpret_cast<const char*>(values_.rounded.data()) : values_.bytes.data();
    args.key_block_bytes = rounded ? size_t{shape_.head_dim} * kLanes * sizeof(float) : keys_.block_bytes;
    args.value_block_bytes = rounded ? kLanes * value_stride_ * sizeof(float) : values_.block_bytes;
    args.value_stride = value_stride_;
    args.wide_keys = wide_keys.data();
    args.wide_values = wide_values.data();
    args.scores = scores.data();
    args.sums = sums.data();
    args.totals = totals.data();
    args.greatest = greatest.data();
    kernels.attend(args);
    EXPECT_EQ(outputs.back(), kUntouched);
    outputs.pop_back();
    std::vector<float> dense;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (i % output_stride_ < shape_.value_dim) {
        dense.push_back(outputs[i]);
      } else {
        EXPECT_EQ(outputs[i], kUntouched);
      }
    }
    return dense;
  }

  // The textbook, in double precision, for row `r`.
  std::vector<double> Exact(size_t r) const {
    std::vector<double> outputs;
    const AttentionCase::Row& row = shape_.rows[r];
    for (uint32_t head = 0; head < shape_.num_heads; ++head) {
      const float* query = queries_.data() + (r * shape_.num_heads + head) * query_stride_;
      double total = 0;
      std::vector<double> sums(shape_.value_dim);
      for (uint32_t p = row.first_position; p < row.num_committed + row.num_tail; ++p) {
        const uint32_t slot = p < row.num_committed ? blocks_[r][p / kLanes] * kLanes + p % kLanes
                                                    : tails_[r][p - row.num_committed];
        double score = 0;
        for (uint32_t d = 0; d < shape_.head_dim; ++d) {
          score += double{query[d]} *
                   keys_.rounded[(slot / kLanes * shape_.head_dim + d) * kLanes + slot % kLanes];
        }
        const double weight = std::exp(score * 0.25);
        total += weight;
        for (uint32_t d = 0; d < shape_.value_dim; ++d)
          sums[d] += weight * values_.rounded[slot * value_stride_ + d];
      }
      for (double sum : sums) outputs.push_back(sum / total);
    }
    return outputs;
  }

 private:
  AttentionCase shape_;
  size_t value_stride_ = 0;
  size_t query_stride_ = 0;
  size_t output_stride_ = 0;
  std::vector<float> queries_;
  KvNumbers keys_;
  KvNumbers values_;
  std::vector<std::vector<uint32_t>> blocks_;
  std::vector<std::vector<uint32_t>> tails_;
};

// Every row right, and with the same bits alone, among others and on every instruction set.
void ExpectRightAndSame(const AttentionCase& shape) {
  const AttentionInputs inputs(shape);
  std::vector<float> expected;
  for (size_t r = 0; r < shape.rows.size(); ++r) {
    SCOPED_TRACE(testing::Message() << "row " << r << ": " << shape.num_heads << " heads of "
                                    << shape.head_dim << ", " << shape.rows[r].num_committed << " + "
                                    << shape.rows[r].num_tail << " positions from "
                                    << shape.rows[r].first_position);
    const std::vector<float> alone = inputs.Attend(PortableKernels(), r, r + 1);
    const std::vector<double> exact = inputs.Exact(r);
    for (size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(alone[i], exact[i], 3e-6) << i;
    for (const KernelTable* kernels : AllKernels()) {
      EXPECT_TRUE(SameBits(inputs.Attend(*kernels, r, r + 1), alone)) << kernels->name;
    }
    expected.insert(expected.end(), alone.begin(), alone.end());
  }
  for (const KernelTable* kernels : AllKernels()) {
    EXPECT_TRUE(SameBits(inputs.Attend(*kernels, 0, shape.rows.size()), expected))
        << kernels->name << ", " << shape.rows.size() << " rows together";
  }
}

TEST(Kernels, AttentionIsRightAndTheSameEverywhere) {
  for (uint32_t head_dim : {2u, 8u, 16u, 20u, 64u, 80u, 128u, 150u}) {
    ExpectRightAndSame({.head_dim = head_dim, .rows = {{37, 5}}});
  }
  for (uint32_t heads = 1; heads <= 9; ++heads) {
    ExpectRightAndSame({.num_heads = heads, .head_dim = 24, .rows = {{161, 17}}});
  }
  const std::vector<AttentionCase::Row> rows = {
      {1, 0},       {0, 1},         {0, 40},       {192, 0},       {100, 3, 37},    {100, 3, 101},
      {32, 20, 40}, {255, 2},       {256, 1},      {257, 0},       {250, 20},       {0, 600},
      {700, 3},     {1000, 0, 511}, {530, 5, 512}, {520, 10, 519}, {520, 300, 525}, {768, 0, 256},
  };
  for (const AttentionCase::Row& row : rows) {
    ExpectRightAndSame({.rows = {row}});
    ExpectRightAndSame({.num_heads = 3, .head_dim = 40, .rows = {row}});
  }
}

// Keys with more numbers than values or fewer, as of latent attention, and heads that lie apart.
TEST(Kernels, AttentionTakesValuesOfAnotherSize) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
    for (const auto& [head_dim, value_dim] : {std::pair(28u, 20u), {24u, 16u}, {8u, 40u}, {72u, 64u}}) {
      ExpectRightAndSame({.num_heads = 5,
                          .head_dim = head_dim,
                          .rows = {{161, 17}, {170, 3}, {300, 1, 20}, {0, 30}},
                          .format = format,
                          .value_dim = value_dim,
                          .apart = 48});
    }
  }
}

TEST(Kernels, AttentionOfRowsThatShareBlocksIsThatOfEachRow) {
  for (uint32_t heads : {1u, 2u, 3u, 4u, 6u}) {
    // The nodes of a tree, a chunk of a prompt, the latter with a sliding window.
    AttentionCase tree = {.num_heads = heads, .head_dim = 24, .rows = {}};
    AttentionCase chunk = tree;
    AttentionCase window = tree;
    for (uint32_t i = 0; i < 13; ++i) {
      tree.rows.push_back({.num_committed = 509, .num_tail = 1 + i * 5 % 7});
      chunk.rows.push_back({.num_committed = 505 + i});
      window.rows.push_back({.num_committed = 505 + i, .first_position = 245 + i});
    }
    ExpectRightAndSame(tree);
    ExpectRightAndSame(chunk);
    ExpectRightAndSame(window);
    // Sessions that share a prefix, or just less, or nothing; short ones between long ones.
    AttentionCase sessions = tree;
    std::mt19937_64 random(heads);
    for (AttentionCase::Row& row : sessions.rows) {
      row.num_committed = static_cast<uint32_t>(random() % 700);
      row.num_tail = static_cast<uint32_t>(random() % 40) + 1;
      row.num_shared_blocks = static_cast<uint32_t>(random() % 5) * 8;
      if (random() % 4 == 0) row.first_position = static_cast<uint32_t>(random() % row.num_committed);
    }
    ExpectRightAndSame(sessions);
  }
}

// Of other formats than float32 the result is that of the numbers that they hold.
TEST(Kernels, AttentionWidensKeysAndValues) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kInt8}) {
    for (const uint32_t head_dim : {2u, 20u, 64u}) {
      AttentionCase shape = {.num_heads = 3, .head_dim = head_dim, .rows = {}, .format = format};
      std::mt19937_64 random(head_dim);
      for (uint32_t i = 0; i < 9; ++i) {
        shape.rows.push_back({.num_committed = static_cast<uint32_t>(random() % 600),
                              .num_tail = static_cast<uint32_t>(random() % 90) + 1,
                              .num_shared_blocks = static_cast<uint32_t>(random() % 5) * 8});
      }
      shape.rows[4].first_position = shape.rows[4].num_committed / 2;
      shape.rows[5].first_position = shape.rows[5].num_committed + shape.rows[5].num_tail / 2;
      ExpectRightAndSame(shape);
      const AttentionInputs inputs(shape);
      EXPECT_TRUE(SameBits(inputs.Attend(PortableKernels(), 0, shape.rows.size()),
                           inputs.Attend(PortableKernels(), 0, shape.rows.size(), /*rounded=*/true)))
          << head_dim;
    }
  }
}

}  // namespace
}  // namespace tandem

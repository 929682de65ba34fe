#include "common/engine/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/attention_args.h"
#include "common/engine/cpu/kernels_test_data.h"
#include "common/engine/cpu/weight_quantizer.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

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
};

class AttentionInputs {
 public:
  explicit AttentionInputs(const AttentionCase& shape) : shape_(shape) {
    value_stride_ = (shape.head_dim + kLanes - 1) / kLanes * kLanes;
    constexpr uint32_t kNumBlocks = 128;
    queries_ = Random(shape.rows.size() * shape.num_heads * shape.head_dim, 3);
    keys_ = Random(size_t{kNumBlocks} * shape.head_dim * kLanes, 4);
    values_ = Random(kNumBlocks * kLanes * value_stride_, 5);
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

  // Rows from `begin` to `end` in one call.
  std::vector<float> Attend(const KernelTable& kernels, size_t begin, size_t end) const {
    const size_t row_size = size_t{shape_.num_heads} * shape_.head_dim;
    std::vector<float> outputs((end - begin) * row_size + 1, 12345.0f);
    std::vector<AttentionRow> rows;
    for (size_t r = begin; r < end; ++r) {
      AttentionRow row;
      row.queries = queries_.data() + r * row_size;
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
    AttentionArgs args;
    args.rows = rows.data();
    args.num_rows = static_cast<uint32_t>(rows.size());
    args.num_heads = shape_.num_heads;
    args.head_dim = shape_.head_dim;
    args.scale = 0.25f;
    args.keys = keys_.data();
    args.values = values_.data();
    args.key_block_stride = size_t{shape_.head_dim} * kLanes;
    args.value_block_stride = kLanes * value_stride_;
    args.value_stride = value_stride_;
    args.scores = scores.data();
    args.sums = sums.data();
    args.totals = totals.data();
    args.greatest = greatest.data();
    kernels.attend(args);
    EXPECT_EQ(outputs.back(), 12345.0f);
    outputs.pop_back();
    return outputs;
  }

  // The textbook, in double precision, for row `r`.
  std::vector<double> Exact(size_t r) const {
    std::vector<double> outputs;
    const AttentionCase::Row& row = shape_.rows[r];
    for (uint32_t head = 0; head < shape_.num_heads; ++head) {
      const float* query = queries_.data() + (r * shape_.num_heads + head) * shape_.head_dim;
      double total = 0;
      std::vector<double> sums(shape_.head_dim);
      for (uint32_t p = row.first_position; p < row.num_committed + row.num_tail; ++p) {
        const uint32_t slot = p < row.num_committed ? blocks_[r][p / kLanes] * kLanes + p % kLanes
                                                    : tails_[r][p - row.num_committed];
        double score = 0;
        for (uint32_t d = 0; d < shape_.head_dim; ++d) {
          score += double{query[d]} * keys_[(slot / kLanes * shape_.head_dim + d) * kLanes + slot % kLanes];
        }
        const double weight = std::exp(score * 0.25);
        total += weight;
        for (uint32_t d = 0; d < shape_.head_dim; ++d) sums[d] += weight * values_[slot * value_stride_ + d];
      }
      for (double sum : sums) outputs.push_back(sum / total);
    }
    return outputs;
  }

 private:
  AttentionCase shape_;
  size_t value_stride_ = 0;
  std::vector<float> queries_;
  std::vector<float> keys_;
  std::vector<float> values_;
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

}  // namespace
}  // namespace tandem

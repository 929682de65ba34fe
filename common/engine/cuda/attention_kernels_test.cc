#include "common/engine/cuda/kernels/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/engine/cuda/kernels/attend_kernel.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/cuda/testing/host_block.h"
#include "common/engine/cuda/testing/spans.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

struct AttentionCase {
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t window;
  bool sinks = false;
};

class AttentionKernelsTest : public testing::TestWithParam<AttentionCase> {
 protected:
  static constexpr uint32_t kNumBlocks = 90;

  void SetUp() override {
    const AttentionCase& shape = GetParam();
    layout_ = {kNumBlocks, shape.num_kv_heads, shape.head_dim};
    const size_t size = size_t{kNumBlocks} * 16 * shape.num_kv_heads * KvVectorSize(shape.head_dim);
    for (auto* pool : {&keys_, &values_}) {
      pool->resize(size);
      for (Bf16& value : *pool) value = ToBf16(Normal());
    }
    if (shape.sinks) sinks_ = Normals(shape.num_heads);
  }

  // [rows, heads, head_dim]
  std::vector<Bf16> Attend(const std::vector<StepRow>& rows, const std::vector<float>& projected,
                           uint32_t rows_per_item) {
    switch (AttendWords(GetParam().head_dim)) {
      case 1:
        return AttendWith<Attend64Kernel>(rows, projected, rows_per_item);
      case 2:
        return AttendWith<Attend128Kernel>(rows, projected, rows_per_item);
      default:
        return AttendWith<Attend256Kernel>(rows, projected, rows_per_item);
    }
  }

  template <typename Kernel>
  std::vector<Bf16> AttendWith(const std::vector<StepRow>& rows, const std::vector<float>& projected,
                               uint32_t rows_per_item) {
    const AttentionCase& shape = GetParam();
    const uint32_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
    std::vector<uint32_t> words;
    const auto num_rows = static_cast<uint32_t>(rows.size());
    WriteStepWords(
        rows, {.max_rows = num_rows, .sliding_window = shape.window, .rows_per_item = rows_per_item}, &words);
    uint32_t max_splits = 1;
    for (const StepRow& row : rows) max_splits = std::max(max_splits, SplitOf(row.context.length()) + 1);
    std::vector<float> parts(size_t{kAttendRows} * shape.num_heads * max_splits * (shape.head_dim + 2), NAN);
    std::vector<Bf16> attended(rows.size() * shape.num_heads * shape.head_dim);
    Kernel attend;
    attend.step = {ConstSpanOf(words), num_rows};
    attend.projected = ConstSpanOf(projected);
    attend.keys = ConstSpanOf(keys_);
    attend.values = ConstSpanOf(values_);
    attend.parts = {SpanOf(parts), shape.num_heads, max_splits, shape.head_dim};
    attend.layout = layout_;
    const uint32_t num_parts = (heads_per_kv + kMaxQueriesPerItem - 1) / kMaxQueriesPerItem;
    attend.heads = {.num_heads = shape.num_heads,
                    .heads_per_kv = heads_per_kv,
                    .heads_per_part = (heads_per_kv + num_parts - 1) / num_parts,
                    .parts_per_kv = num_parts};
    attend.row_width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    attend.num_part_rows = kAttendRows;
    attend.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    for (uint32_t first = 0; first < num_rows; first += kAttendRows) {
      attend.first_row = first;
      grid_.Launch(attend, AttendShape(3, shape.num_kv_heads * num_parts, shape.head_dim));
      grid_.Launch(FoldKernel{attend.step, attend.parts, SpanOf(attended), first, ConstSpanOf(sinks_)},
                   FoldShape(std::min(num_rows - first, kAttendRows), shape.num_heads, shape.head_dim));
    }
    return attended;
  }

  // In double precision.
  std::vector<double> Reference(const StepRow& row, const float* query, uint32_t head) const {
    const AttentionCase& shape = GetParam();
    const RowContext& context = row.context;
    const uint32_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const uint32_t length = context.length();
    std::vector<double> sum(shape.head_dim);
    double total = sinks_.empty() ? 0 : std::exp(double{sinks_[head]});
    for (uint32_t p = shape.window > 0 && length > shape.window ? length - shape.window : 0; p < length;
         ++p) {
      const SlotId slot = p < context.num_committed ? context.blocks[p / 16] * 16 + p % 16
                                                    : context.tail[p - context.num_committed];
      const size_t at = ((size_t{slot / 16} * shape.num_kv_heads + kv_head) * 16 + slot % 16) *
                        KvVectorSize(shape.head_dim);
      double score = 0;
      for (uint32_t d = 0; d < shape.head_dim; ++d) score += double{query[d]} * ToFloat(keys_[at + d]);
      const double weight = std::exp(score / std::sqrt(static_cast<double>(shape.head_dim)));
      total += weight;
      for (uint32_t d = 0; d < shape.head_dim; ++d) sum[d] += weight * ToFloat(values_[at + d]);
    }
    for (double& value : sum) value /= total;
    return sum;
  }

  float Normal() { return std::normal_distribution<float>()(random_); }
  std::vector<float> Normals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = Normal();
    return values;
  }

  std::mt19937_64 random_{7};
  HostGrid grid_{11};
  KvLayout layout_;
  std::vector<Bf16> keys_;
  std::vector<Bf16> values_;
  std::vector<float> sinks_;
};

// A prompt's last rows, a tree, and a row by itself, which lie across the ends of splits and of blocks.
TEST_P(AttentionKernelsTest, IsRightAndTheSameInAnyCompany) {
  const AttentionCase& shape = GetParam();
  std::vector<BlockId> first_list;
  std::vector<BlockId> second_list;
  for (BlockId block = 0; block < 40; ++block) {
    first_list.push_back(89 - 2 * block);
    second_list.push_back(block < 17 ? 89 - 2 * block : 2 * block);
  }
  std::vector<std::vector<SlotId>> tails;
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < 7; ++i)
    rows.push_back({.context = {.blocks = first_list, .num_committed = 252 + i}});
  for (uint32_t i = 0; i < 9; ++i) {
    tails.push_back({});
    // Slots of blocks that no list has.
    if (i > 0) tails.back() = i == 1 ? std::vector<SlotId>() : tails[(i - 1) / 2];
    tails.back().push_back(6 * 16 + i);
  }
  for (const auto& tail : tails) {
    rows.push_back({.context = {.blocks = second_list, .num_committed = 509, .tail = tail}});
  }
  rows.push_back({.context = {.tail = tails[3]}});
  rows.push_back({.context = {.blocks = first_list, .num_committed = 1}});
  const uint32_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  const std::vector<float> projected = Normals(rows.size() * width);
  const uint32_t rows_per_item =
      std::max(1u, kMaxQueriesPerItem / std::min(kMaxQueriesPerItem, shape.num_heads / shape.num_kv_heads));
  const std::vector<Bf16> together = Attend(rows, projected, rows_per_item);
  const size_t out_width = size_t{shape.num_heads} * shape.head_dim;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (uint32_t head = 0; head<shape.num_heads; head += shape.num_heads> 4 ? 3 : 1) {
      const auto expected = Reference(rows[i], &projected[i * width + head * shape.head_dim], head);
      for (uint32_t d = 0; d < shape.head_dim; ++d) {
        ASSERT_NEAR(ToFloat(together[i * out_width + head * shape.head_dim + d]), expected[d],
                    std::abs(expected[d]) / 250 + 1e-5)
            << "row " << i << ", head " << head;
      }
    }
    const std::vector<Bf16> alone = Attend({rows[i]},
                                           {projected.begin() + static_cast<ptrdiff_t>(i * width),
                                            projected.begin() + static_cast<ptrdiff_t>((i + 1) * width)},
                                           1);
    ASSERT_EQ(std::memcmp(alone.data(), &together[i * out_width], out_width * sizeof(Bf16)), 0) << i;
  }
}

// Splits far from the beginning have several chunks, which use the same shared memory one after another. Two
// rows end before the last chunk, and for heads of 80 numbers one warp has none.
TEST_P(AttentionKernelsTest, IsRightFarFromTheBeginning) {
  const AttentionCase& shape = GetParam();
  if (shape.head_dim > 80) GTEST_SKIP() << "takes too long";
  std::vector<BlockId> blocks(600);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i * 7 % kNumBlocks);
  std::vector<StepRow> rows;
  const std::vector<SlotId> tails[4] = {{3}, {3, 20}, {3, 20, 21}, {3, 20, 21, 22}};
  for (const auto& tail : tails) {
    rows.push_back({.context = {.blocks = blocks, .num_committed = 8702, .tail = tail}});
  }
  const uint32_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  const std::vector<float> projected = Normals(rows.size() * width);
  const uint32_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
  const std::vector<Bf16> together =
      Attend(rows, projected, std::clamp(kMaxQueriesPerItem / heads_per_kv, 1u, 4u));
  const size_t out_width = size_t{shape.num_heads} * shape.head_dim;
  for (size_t i = 0; i < rows.size(); i += 3) {
    const auto expected = Reference(rows[i], &projected[i * width], 0);
    for (uint32_t d = 0; d < shape.head_dim; ++d) {
      ASSERT_NEAR(ToFloat(together[i * out_width + d]), expected[d], std::abs(expected[d]) / 250 + 1e-5) << i;
    }
    const auto own = projected.begin() + static_cast<ptrdiff_t>(i * width);
    const std::vector<Bf16> alone = Attend({rows[i]}, {own, own + width}, 1);
    ASSERT_EQ(std::memcmp(alone.data(), &together[i * out_width], out_width * sizeof(Bf16)), 0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionKernelsTest,
                         testing::Values(AttentionCase{4, 2, 16, 0}, AttentionCase{3, 3, 6, 0},
                                         AttentionCase{17, 1, 10, 0}, AttentionCase{5, 1, 34, 7},
                                         AttentionCase{2, 1, 8, 300}, AttentionCase{4, 2, 12, 5, true},
                                         AttentionCase{8, 2, 128, 0}, AttentionCase{3, 1, 80, 40},
                                         AttentionCase{2, 2, 256, 0, true}));

}  // namespace
}  // namespace tandem

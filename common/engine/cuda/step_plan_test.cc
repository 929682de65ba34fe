#include "common/engine/cuda/step_plan.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/engine/cuda/choice_words.h"
#include "common/engine/cuda/cuda_module.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/kernels/splits.h"
#include "common/engine/cuda/launch_shape.h"
#include "common/engine/cuda/open_device.h"
#include "common/engine/cuda/shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SplitsTest, CoverPositionsInOrderAndBeginWhereChunksDo) {
  uint32_t split = 0;
  for (uint32_t position = 0; position < 200000; ++position) {
    const uint32_t now = SplitOf(position);
    ASSERT_TRUE(now == split || now == split + 1) << position;
    ASSERT_GE(position, SplitBegin(now));
    ASSERT_LT(position, SplitBegin(now + 1));
    if (now != split) {
      ASSERT_EQ(position, SplitBegin(now));
      ASSERT_EQ(position % kAttendChunk, 0u);
    }
    split = now;
  }
  EXPECT_EQ(SplitOf(131071) + 1, 80u);
}

TEST(BucketTest, HoldsTheRowsInWholeTilesOrPowersOfTwo) {
  EXPECT_EQ(BucketOf(1), 8u);
  EXPECT_EQ(BucketOf(8), 8u);
  EXPECT_EQ(BucketOf(9), 16u);
  EXPECT_EQ(BucketOf(33), 64u);
  EXPECT_EQ(BucketOf(65), 128u);
  EXPECT_EQ(BucketOf(129), 192u);
  for (uint32_t rows = 1; rows < 1000; ++rows) {
    ASSERT_GE(BucketOf(rows), rows);
    ASSERT_EQ(BucketOf(BucketOf(rows)), BucketOf(rows));
    ASSERT_TRUE(kRowTile % BucketOf(rows) == 0 || BucketOf(rows) % kRowTile == 0);
  }
}

TEST(LaunchShapeTest, CoversEveryElementWithWholeWarps) {
  for (uint32_t rows : {1u, 8u, 64u, 512u}) {
    for (uint32_t width : {1u, 31u, 33u, 4096u, 14336u, 151937u}) {
      for (const LaunchShape& shape :
           {EmbedShape(rows, width), NormShape(rows, width), GateShape(rows, width), ChoiceShape(rows, width),
            CopyKvShape(width), FoldShape(rows, 7, width % 512 + 2)}) {
        EXPECT_GE(shape.threads, kWarpThreads);
        EXPECT_LE(shape.threads, 1024u);
        EXPECT_EQ(shape.threads % kWarpThreads, 0u);
        // What every CUDA device allows without being asked.
        EXPECT_LE(shape.shared_bytes, 48u << 10);
        EXPECT_LE(shape.grid_y, 65535u);
      }
      EXPECT_GE(uint64_t{GateShape(rows, width).grid_y} * GateShape(rows, width).threads, width);
    }
  }
  for (uint32_t heads : {1u, 3u, 5u, 48u}) {
    const LaunchShape shape = PrepareShape(9, heads);
    EXPECT_GE(shape.grid_y * shape.threads / kWarpThreads, heads);
  }
  EXPECT_EQ(AttendShape(132, 8, 128),
            (LaunchShape{.grid_x = 66, .grid_y = 8, .threads = 128, .shared_bytes = AttendSharedBytes(128)}));
  EXPECT_EQ(AttendShape(1, 600, 64).grid_x, 1u);
  // Consumer GPUs have 99 KiB.
  EXPECT_LE(AttendSharedBytes(256), 99u << 10);
}

ModelConfig Config(int32_t heads, int32_t kv_heads, int32_t intermediate, int32_t vocab) {
  ModelConfig config;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = 64;
  config.intermediate_size = intermediate;
  config.vocab_size = vocab;
  return config;
}

// Every head, input and token is on exactly one rank, and every rank has the keys its heads read.
TEST(ShardTest, PartsCoverTheModel) {
  for (const ModelConfig& config :
       {Config(32, 8, 14336, 128256), Config(32, 32, 11008, 32000), Config(14, 2, 4864, 151936),
        Config(71, 1, 1000, 50257), Config(9, 3, 1536, 49152)}) {
    const auto heads_per_kv = static_cast<uint32_t>(config.num_heads / config.num_kv_heads);
    for (uint32_t world_size = 1; world_size <= kMostRanks; ++world_size) {
      ShardRange before[3] = {};
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        const auto shard = MakeShard(config, {rank, world_size});
        ASSERT_TRUE(shard.ok()) << shard.status();
        int i = 0;
        for (const ShardRange& range : {shard->heads, shard->intermediate, shard->vocab}) {
          EXPECT_EQ(range.begin, before[i].end);
          EXPECT_GT(range.size(), 0u);
          before[i++] = range;
        }
        EXPECT_EQ(shard->kv_heads.begin, shard->heads.begin / heads_per_kv);
        EXPECT_EQ(shard->kv_heads.end, (shard->heads.end - 1) / heads_per_kv + 1);
        EXPECT_LE(shard->head_map.heads_per_part, kMaxQueriesPerItem);
        EXPECT_GE(shard->head_map.heads_per_part * shard->head_map.parts_per_kv,
                  std::min(heads_per_kv, shard->heads.size()));
      }
      EXPECT_EQ(before[0].end, static_cast<uint32_t>(config.num_heads));
      EXPECT_EQ(before[1].end, static_cast<uint32_t>(config.intermediate_size));
      EXPECT_EQ(before[2].end, static_cast<uint32_t>(config.vocab_size));
    }
  }
}

TEST(ShardTest, CutsWholeKvHeadsWhereTheyDivide) {
  // Llama 3.1 8B on 4, and on more ranks than it has KV heads: two ranks share each.
  const ModelConfig config = Config(32, 8, 14336, 128256);
  EXPECT_EQ(MakeShard(config, {1, 4})->kv_heads, (ShardRange{2, 4}));
  const ModelConfig few = Config(32, 4, 14336, 128256);
  EXPECT_EQ(MakeShard(few, {2, 8})->kv_heads, (ShardRange{1, 2}));
  EXPECT_EQ(MakeShard(few, {3, 8})->kv_heads, (ShardRange{1, 2}));
  EXPECT_EQ(MakeShard(few, {3, 8})->heads, (ShardRange{12, 16}));
}

TEST(ShardTest, RefusesWhatHasNoPartForEachRank) {
  EXPECT_THAT(MakeShard(Config(4, 2, 512, 100), {0, 8}).status().message(), HasSubstr("4 heads"));
  ModelConfig mixture = Config(4, 2, 512, 100);
  mixture.block.experts = {.num_experts = 4, .num_chosen = 2, .intermediate_size = 100, .shared_size = 32};
  const auto second = MakeShard(mixture, {1, 2});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->expert_intermediate, (ShardRange{48, 100}));
  EXPECT_EQ(second->shared_intermediate, (ShardRange{16, 32}));
  EXPECT_THAT(
      MakeShard(mixture, {1, 3}).status().message(),
      HasSubstr("experts of an intermediate size of 100, and a shared one of 32, do not have a part for "
                "each of 3 ranks"));
  EXPECT_FALSE(MakeShard(Config(32, 8, 512, 100), {0, 9}).ok());
  EXPECT_FALSE(MakeShard(Config(32, 8, 512, 100), {2, 2}).ok());
}

TEST(DeviceSpecTest, IsTheProcessorOrANumberedDevice) {
  EXPECT_EQ(*ParseDeviceSpec("cpu"), DeviceSpec{});
  EXPECT_EQ(*ParseDeviceSpec("cuda"), (DeviceSpec{.is_cuda = true}));
  EXPECT_EQ(*ParseDeviceSpec("cuda:3"), (DeviceSpec{.is_cuda = true, .index = 3}));
  for (const char* bad : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999", "cuda:+1", "cuda 1"}) {
    EXPECT_THAT(ParseDeviceSpec(bad).status().message(), HasSubstr("--device")) << bad;
  }
}

// An environment variable for the time of a test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* const name_;
};

TEST(CudaModuleTest, SaysWhereItWasLookedFor) {
  const ScopedVariable path("TANDEM_CUDA_MODULE", "/nonexistent/tandem-cuda.so");
  const absl::Status missing = PrepareDevice({.is_cuda = true});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  EXPECT_THAT(missing.message(), AllOf(HasSubstr("--device"), HasSubstr("/nonexistent/tandem-cuda.so"),
                                       HasSubstr("-DTANDEM_CUDA=ON"), HasSubstr("docs/operate/gpu.md")));
  EXPECT_EQ(OpenCudaDevice({}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MeasureCudaCopyBandwidth(0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(PrepareDevice({.is_cuda = false}).ok());
}

TEST(CudaModuleTest, RefusesWhatIsNoModule) {
  const std::string text = ::testing::TempDir() + "no_module.so";
  std::ofstream(text) << "text";
  for (const std::string& file : {text, ::testing::TempDir()}) {
    const ScopedVariable path("TANDEM_CUDA_MODULE", file);
    const absl::Status refused = PrepareDevice({.is_cuda = true});
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(refused.message(), HasSubstr(file));
  }
}

TEST(CudaModuleTest, RefusesAModuleOfAnotherBuild) {
  CudaModule module;
  EXPECT_TRUE(CheckCudaModule(module, "here").ok());
  ++module.version;
  EXPECT_THAT(CheckCudaModule(module, "here").message(),
              AllOf(HasSubstr("here"), HasSubstr("a different build")));
  module = {};
  ++module.fingerprint;
  EXPECT_EQ(CheckCudaModule(module, "here").code(), absl::StatusCode::kFailedPrecondition);
}

// Rows of some sessions, at random: every slot that kernels would read is the one that the context names, and
// every row is in exactly one item of each of its splits.
TEST(StepPlanTest, WordsSayWhatTheRowsSay) {
  std::mt19937_64 random(3);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  for (int trial = 0; trial < 60; ++trial) {
    const uint32_t num_rows = 1 + below(100);
    const StepPlanOptions options = {.max_rows = 100,
                                     .sliding_window = trial % 3 == 0 ? 1 + below(600) : 0,
                                     .rows_per_item = 1 + below(StepWords::kMaxItemRows)};
    std::vector<std::vector<BlockId>> lists(4);
    for (auto& list : lists) {
      // Sessions share a prefix of 20 blocks.
      for (uint32_t i = 0; i < 60; ++i) list.push_back(i < 20 ? i : below(5000));
    }
    std::vector<std::vector<SlotId>> tails(num_rows);
    std::vector<StepRow> rows;
    float logits = 0;
    const SamplingParameters sampling;
    const SeededChoice choice = {.sampling = &sampling, .position = 77};
    for (uint32_t i = 0; i < num_rows; ++i) {
      const uint32_t num_committed = below(900);
      const uint32_t num_tail = num_committed == 0 ? 1 + below(300) : below(9);
      for (uint32_t j = 0; j < num_tail; ++j) tails[i].push_back(below(80000));
      rows.push_back(
          {.token = static_cast<TokenId>(below(1000)),
           .context = {.blocks = lists[below(4)], .num_committed = num_committed, .tail = tails[i]},
           .logits = below(2) == 0 ? &logits : nullptr});
      if (rows.back().logits == nullptr && below(2) == 0) rows.back().choice = &choice;
    }
    std::vector<uint32_t> words;
    WriteStepWords(rows, options, &words);
    // What the emulation checks, without it.
    const auto at = [&](uint64_t index) { return words.at(index); };
    const uint64_t rows_at = StepWords::kHeaderWords + StepWords::kNumColumns * options.max_rows;
    ASSERT_EQ(at(StepWords::kNumRows), num_rows);
    uint32_t num_wanted = 0;
    for (uint32_t i = 0; i < num_rows; ++i) {
      const RowContext& context = rows[i].context;
      const auto field = [&](uint32_t f) { return at(rows_at + i * StepWords::kRowWords + f); };
      ASSERT_EQ(field(StepWords::kLength), context.length());
      if (rows[i].logits != nullptr) {
        ASSERT_EQ(at(StepWords::kHeaderWords + 3 * options.max_rows + num_wanted++), i);
      }
      for (uint32_t position = 0; position < context.length(); ++position) {
        const uint32_t want = position < context.num_committed
                                  ? context.blocks[position / 16] * 16 + position % 16
                                  : context.tail[position - context.num_committed];
        const uint32_t got = position < field(StepWords::kNumCommitted)
                                 ? at(field(StepWords::kBlocksAt) + position / 16) * 16 + position % 16
                                 : at(field(StepWords::kTailAt) + position - field(StepWords::kNumCommitted));
        ASSERT_EQ(got, want);
      }
      ASSERT_EQ(at(StepWords::kHeaderWords + 2 * options.max_rows + i), SlotWritten(context));
    }
    ASSERT_EQ(at(StepWords::kNumLogits), num_wanted);
    for (uint32_t i = 0; i < num_rows; ++i) {
      if (rows[i].choice == nullptr) continue;
      ASSERT_EQ(at(StepWords::kHeaderWords + 3 * options.max_rows + num_wanted), i);
      const uint32_t place = at(StepWords::kHeaderWords + 4 * options.max_rows + num_wanted++);
      ASSERT_EQ(at(place + StepWords::kPosition), 77u);
    }
    ASSERT_EQ(at(StepWords::kNumWanted), num_wanted);
    for (uint32_t i = 0; i < options.max_rows; ++i) {
      const bool is_choice = i >= at(StepWords::kNumLogits) && i < num_wanted;
      ASSERT_EQ(at(StepWords::kHeaderWords + 4 * options.max_rows + i) != 0, is_choice);
    }
    std::set<std::pair<uint32_t, uint32_t>> seen;  // Row and split.
    for (uint32_t item = 0; item < at(StepWords::kNumItems); ++item) {
      const auto field = [&](uint32_t f) {
        return at(at(StepWords::kItemsAt) + item * StepWords::kItemWords + f);
      };
      const uint32_t count = field(StepWords::kItemNumRows);
      ASSERT_GE(count, 1u);
      ASSERT_LE(count, options.rows_per_item);
      const uint32_t split = field(StepWords::kItemSplit);
      const RowContext& first = rows[field(StepWords::kItemRows)].context;
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t row = field(StepWords::kItemRows + i);
        ASSERT_EQ(row / kAttendRows, field(StepWords::kItemRows) / kAttendRows);
        ASSERT_TRUE(seen.emplace(row, split).second);
        const RowContext& context = rows[row].context;
        for (uint32_t position = SplitBegin(split); position < SplitBegin(split + 1); ++position) {
          if (count == 1 || position >= field(StepWords::kItemSharedEnd)) break;
          ASSERT_LT(position, context.num_committed);
          ASSERT_EQ(context.blocks[position / 16], first.blocks[position / 16]);
        }
      }
    }
    size_t num_splits = 0;
    for (const StepRow& row : rows) {
      const uint32_t length = row.context.length();
      const uint32_t window = options.sliding_window;
      const uint32_t begin = window > 0 && length > window ? length - window : 0;
      num_splits += SplitOf(length - 1) - SplitOf(begin) + 1;
    }
    ASSERT_EQ(seen.size(), num_splits);
  }
}

TEST(ChoiceWriterTest, WritesOnceWhatChoicesShare) {
  SamplingParameters sampling = {.top_k = 9, .min_p = 0.5f, .seed = 0x123456789abcdef0};
  sampling.logit_bias = {{7, 1.0f}, {3, 2.0f}, {7, -4.0f}};
  const std::vector<TokenCount> counts = {{5, 0}, {6, 2}};
  const std::vector<TokenCount> own = {{6, 3}};
  std::vector<uint32_t> words(10);
  ChoiceWriter writer(&words);
  const uint32_t root = writer.Write({.sampling = &sampling, .position = 20, .counts = counts});
  const size_t size = words.size();
  const uint32_t node =
      writer.Write({.sampling = &sampling, .position = 21, .counts = counts, .own_counts = own});
  EXPECT_EQ(words.size(), size + StepWords::kChoiceWords + 2);
  EXPECT_EQ(words[node + StepWords::kAllowedAt], 0u);
  const std::vector<uint32_t> allowed = {0xf0f0f0f0u, 0x12345678u};
  const uint32_t constrained = writer.Write({.sampling = &sampling, .allowed = allowed});
  ASSERT_LE(words[constrained + StepWords::kAllowedAt] + 2, words.size());
  EXPECT_TRUE(
      std::equal(allowed.begin(), allowed.end(), words.begin() + words[constrained + StepWords::kAllowedAt]));
  const auto pairs = [&](uint32_t place, uint32_t at_field, uint32_t size_field) {
    const uint32_t at = words[place + at_field];
    return std::vector<uint32_t>(words.begin() + at, words.begin() + at + 2 * words[place + size_field]);
  };
  const auto bits = [](float value) { return BitsAs<uint32_t>(value); };
  for (const uint32_t place : {root, node}) {
    EXPECT_EQ(words[place + StepWords::kSeed], 0x9abcdef0u);
    EXPECT_EQ(words[place + StepWords::kSeed + 1], 0x12345678u);
    EXPECT_EQ(words[place + StepWords::kTopK], 9u);
    EXPECT_EQ(pairs(place, StepWords::kCountsAt, StepWords::kNumCounts), (std::vector<uint32_t>{5, 0, 6, 2}));
    // By token, and of one token in the order given.
    EXPECT_EQ(pairs(place, StepWords::kBiasesAt, StepWords::kNumBiases),
              (std::vector<uint32_t>{3, bits(2.0f), 7, bits(1.0f), 7, bits(-4.0f)}));
  }
  EXPECT_EQ(words[root + StepWords::kNumOwnCounts], 0u);
  EXPECT_EQ(words[node + StepWords::kPosition], 21u);
  EXPECT_EQ(pairs(node, StepWords::kOwnCountsAt, StepWords::kNumOwnCounts), (std::vector<uint32_t>{6, 3}));
  // Others have others.
  const SamplingParameters other;
  const uint32_t second = writer.Write({.sampling = &other});
  EXPECT_EQ(words[second + StepWords::kNumCounts], 0u);
  EXPECT_EQ(words[second + StepWords::kNumBiases], 0u);
}

}  // namespace
}  // namespace tandem

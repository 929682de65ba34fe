#include "bench/step_work.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Small enough to count by hand: per layer 2 * 16 * 16 (query, output) + 2 * 16 * 16 (key, value)
// + 3 * 32 * 16 = 2560 weights; the output has 10 * 16 = 160.
ModelConfig SmallConfig() {
  ModelConfig config;
  config.hidden_size = 16;
  config.num_layers = 2;
  config.num_heads = 1;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  config.intermediate_size = 32;
  config.vocab_size = 10;
  config.max_context = 100;
  return config;
}

TEST(TreeTest, ParentsComeFirstAndDepthsFollow) {
  EXPECT_THAT(TreeParents(RowTree::kBinary, 6), ElementsAre(-1, 0, 0, 1, 1, 2));
  EXPECT_THAT(TreeDepths(RowTree::kBinary, 6), ElementsAre(1, 2, 2, 3, 3, 3));
  EXPECT_THAT(TreeParents(RowTree::kChain, 3), ElementsAre(-1, 0, 1));
  EXPECT_THAT(TreeDepths(RowTree::kChain, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(TreeDepths(RowTree::kSiblings, 3), ElementsAre(1, 1, 1));
}

TEST(TreeStepWorkTest, ReadsWeightsOnceAndEveryRowComputes) {
  const StepWork one = TreeStepWork(SmallConfig(), WeightDtype::kBf16, 1, 20, RowTree::kChain);
  EXPECT_EQ(one.weight_bytes, 2u * (2 * 2560 + 160 + 16));
  // Keys and values of 16 floats in two layers.
  EXPECT_EQ(one.kv_bytes, 21u * 2 * 2 * 16 * 4);
  EXPECT_EQ(one.operations, 2u * (2 * 2560 + 160 + 2 * 2 * 16 * 21));

  const StepWork three = TreeStepWork(SmallConfig(), WeightDtype::kBf16, 3, 20, RowTree::kChain);
  EXPECT_EQ(three.weight_bytes, 2u * (2 * 2560 + 160 + 3 * 16));
  EXPECT_EQ(three.kv_bytes, 23u * 2 * 2 * 16 * 4);
  EXPECT_EQ(three.operations, 2u * (3 * (2 * 2560 + 160) + 2 * 2 * 16 * (21 + 22 + 23)));
}

TEST(TreeStepWorkTest, DtypesHaveTheirSizes) {
  const auto bytes = [](WeightDtype dtype) {
    return TreeStepWork(SmallConfig(), dtype, 1, 20, RowTree::kChain).weight_bytes;
  };
  EXPECT_EQ(bytes(WeightDtype::kF32), 4u * 5296);
  EXPECT_EQ(bytes(WeightDtype::kInt8), 5296u);
  EXPECT_EQ(bytes(WeightDtype::kInt4), 5296u / 2);
  EXPECT_EQ(bytes(WeightDtype::kW8A8), 5296u);
  EXPECT_EQ(bytes(WeightDtype::kW4A8), 5296u / 2);
  // The output head and the embedding have two bytes.
  const ModelConfig config = SmallConfig();
  const auto of_tokens = static_cast<uint64_t>((config.vocab_size + 1) * config.hidden_size);
  EXPECT_EQ(bytes(WeightDtype::kFp8), 5296u + of_tokens);
}

TEST(PromptStepWorkTest, RowsWithoutLogitsEndWithTheLastKeysAndValues) {
  const StepWork work = PromptStepWork(SmallConfig(), WeightDtype::kBf16, 0, 3, /*with_logits=*/true);
  const uint64_t key_value = 2 * 16 * 16, rest = 2560 - key_value;
  const uint64_t products = 3 * 2 * key_value + (3 + 1) * rest + 160;
  EXPECT_EQ(work.operations, 2 * (products + 2 * 16 * ((1 + 2 + 3) + 3)));
  EXPECT_EQ(work.kv_bytes, 3u * 2 * 2 * 16 * 4);

  const StepWork first = PromptStepWork(SmallConfig(), WeightDtype::kBf16, 0, 3, /*with_logits=*/false);
  EXPECT_EQ(work.weight_bytes - first.weight_bytes, 2u * 160);
  EXPECT_EQ(work.operations - first.operations, 2 * (rest + 160 + 2 * 16 * 3));
}

TEST(HeadStepWorkTest, ReadsStatesBesideTokens) {
  ModelConfig config = SmallConfig();
  config.num_layers = 1;
  config.head = HeadConfig{.kind = HeadConfig::Kind::kEagle3,
                           .feature_layers = {1, 2, 3},
                           .target_hidden_size = 12,
                           .draft_vocab_size = 6};
  // Query, key and value of 16 by 32, output of 16 by 16, feed-forward, 6 tokens.
  const uint64_t layer = 3 * 16 * 32 + 16 * 16 + 3 * 32 * 16;
  const StepWork grows = TreeStepWork(config, WeightDtype::kBf16, 2, 20, RowTree::kChain);
  EXPECT_EQ(grows.weight_bytes, 2u * (layer + 6 * 16 + 2 * 16));
  EXPECT_EQ(grows.operations, 2u * (2 * (layer + 6 * 16) + 2 * 16 * (21 + 22)));
  const StepWork reads = PromptStepWork(config, WeightDtype::kBf16, 0, 1, /*with_logits=*/true);
  EXPECT_EQ(reads.weight_bytes, 2u * (3 * 12 * 16 + layer + 6 * 16 + 16));

  // A second layer reads one vector.
  config.num_layers = 2;
  const uint64_t second = layer - 3 * 16 * 16;
  const StepWork deep = TreeStepWork(config, WeightDtype::kBf16, 2, 20, RowTree::kChain);
  EXPECT_EQ(deep.weight_bytes, 2u * (layer + second + 6 * 16 + 2 * 16));
  EXPECT_EQ(deep.operations, 2u * (2 * (layer + second + 6 * 16) + 2 * 2 * 16 * (21 + 22)));
  config.num_layers = 1;

  config.head->kind = HeadConfig::Kind::kEagle;
  const uint64_t narrow = 4 * 16 * 16 + 3 * 32 * 16;
  EXPECT_EQ(TreeStepWork(config, WeightDtype::kBf16, 1, 20, RowTree::kChain).weight_bytes,
            2u * (2 * 16 * 16 + narrow + 6 * 16 + 16));
}

TEST(ExpertStepWorkTest, ReadsTheExpertsThatRowsTake) {
  ModelConfig config = SmallConfig();
  config.block.experts = {.num_experts = 4, .num_chosen = 2, .intermediate_size = 8, .shared_size = 5};
  config.block.layers.resize(2);
  config.block.layers[0].is_sparse = false;
  // Attention as above; the first layer is dense, the second has a router with a gate for the shared expert.
  const uint64_t attention = 4 * 16 * 16, dense = 3 * 32 * 16;
  const uint64_t every_row = 5 * 16 + 3 * 5 * 16, expert = 3 * 8 * 16;
  EXPECT_EQ(FewestExperts(config), 2u);
  const StepWork fewest = TreeStepWork(config, WeightDtype::kBf16, 3, 20, RowTree::kChain);
  EXPECT_EQ(fewest.weight_bytes,
            2 * (2 * attention + dense + every_row + 2 * expert + 160 + uint64_t{3} * 16));
  const StepWork measured =
      TreeStepWork(config, WeightDtype::kBf16, 3, 20, RowTree::kChain, KvType::kF32, /*experts_read=*/4);
  EXPECT_EQ(measured.weight_bytes - fewest.weight_bytes, 2 * 2 * expert);
  // Every row computes its own two, however many others read.
  EXPECT_EQ(measured.operations, fewest.operations);
  EXPECT_EQ(measured.operations, 2 * (3 * (2 * attention + dense + every_row + 2 * expert + 160) +
                                      uint64_t{2} * 2 * 16 * (21 + 22 + 23)));
}

TEST(LatentStepWorkTest, ReadsOneLatentOfEachToken) {
  ModelConfig config = SmallConfig();
  config.num_heads = 2;
  config.head_dim = 12;
  config.block.latent = {.kv_rank = 8, .query_rank = 6, .unturned_dim = 5, .turned_dim = 4, .value_dim = 3};
  // Down and up to queries of 9, down to 8 and 4, of each head up to 5 and 3, and the output's 2 * 3 inputs.
  const uint64_t attention = 16 * 6 + 6 * 2 * 9 + 16 * 12 + 8 * 2 * (5 + 3) + 6 * 16;
  const StepWork work = TreeStepWork(config, WeightDtype::kBf16, 1, 20, RowTree::kChain);
  const uint64_t weights = 2 * (attention + 3 * 32 * 16) + 160;
  EXPECT_EQ(work.weight_bytes, 2 * (weights + 16));
  // In whole vectors, 12 numbers as key and 8, of 16 that have room, as value.
  EXPECT_EQ(work.kv_bytes, 21u * 2 * (12 + 16) * 4);
  EXPECT_EQ(work.operations, 2 * (weights + uint64_t{2} * 2 * (12 + 8) * 21));
  config.block.latent.query_rank = 0;
  const StepWork direct = TreeStepWork(config, WeightDtype::kBf16, 1, 20, RowTree::kChain);
  EXPECT_EQ(direct.weight_bytes - work.weight_bytes, 2u * 2 * (16 * 2 * 9 - (16 * 6 + 6 * 2 * 9)));
}

TEST(FloorSecondsTest, TheScarcerRateDecides) {
  const StepWork work = {.weight_bytes = 900, .kv_bytes = 100, .operations = 5000};
  EXPECT_DOUBLE_EQ(FloorSeconds(work, 10.0, 1e9), 100.0);
  EXPECT_DOUBLE_EQ(FloorSeconds(work, 1e9, 10.0), 500.0);
}

TEST(ParseTest, NamesOfDtypesAndTrees) {
  EXPECT_EQ(*ParseWeightDtype("int8"), WeightDtype::kInt8);
  EXPECT_EQ(*ParseWeightDtype("fp8"), WeightDtype::kFp8);
  EXPECT_THAT(std::string(ParseWeightDtype("fp4").status().message()),
              HasSubstr("\"fp4\", expected bf16, int8, int4, w8a8, w4a8, fp8, auto or exact"));
  EXPECT_EQ(*ParseRowTree("chain"), RowTree::kChain);
  EXPECT_THAT(std::string(ParseRowTree("star").status().message()),
              HasSubstr("\"star\", expected binary, chain or siblings"));
}

}  // namespace
}  // namespace tandem

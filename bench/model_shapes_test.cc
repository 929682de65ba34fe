#include "bench/model_shapes.h"

#include <map>

#include "bench/step_work.h"
#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Of a decoder with RMSNorm and SwiGLU.
int64_t CountParameters(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t query = config.query_size(), kv = config.kv_size();
  int64_t layer =
      2 * query * hidden + 2 * kv * hidden + 3 * int64_t{config.intermediate_size} * hidden + 2 * hidden;
  if (config.attention_bias) layer += query + 2 * kv;
  if (config.qk_norm) layer += 2 * config.head_dim;
  const int64_t embedding = int64_t{config.vocab_size} * hidden;
  return config.num_layers * layer + hidden + embedding * (config.tied_embeddings ? 1 : 2);
}

TEST(ModelShapesTest, HaveThePublishedNumberOfParameters) {
  const std::map<std::string, int64_t> published = {
      {"llama-68m", 68'030'208},         {"llama-160m", 162'417'408},   {"smollm2-135m", 134'515'008},
      {"tinyllama-1.1b", 1'100'048'384}, {"llama-1b", 1'235'814'400},   {"llama-3b", 3'212'749'824},
      {"llama-8b", 8'030'261'248},       {"qwen2.5-0.5b", 494'032'768}, {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen3-0.6b", 596'049'920}};
  for (const auto& [name, parameters] : published) {
    const auto config = ModelShape(name);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(CountParameters(*config), parameters) << name;
  }
}

TEST(ModelShapesTest, OneLayerOfEightBillion) {
  const auto config = ModelShape("llama-8b-1layer");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 1);
  EXPECT_FALSE(config->tied_embeddings);
  // The published 8,030,261,248 are 32 such layers, the final norm and two embeddings.
  const int64_t outside = 2 * int64_t{128256} * 4096 + 4096;
  EXPECT_EQ(32 * (CountParameters(*config) - outside) + outside, 8'030'261'248);
}

TEST(ModelShapesTest, TwoLayersOfThirtyBillion) {
  const auto config = ModelShape("qwen3-30b-a3b-2layers");
  ASSERT_TRUE(config.ok()) << config.status();
  const ExpertsDescription& experts = config->block.experts;
  ModelConfig without = *config;
  without.intermediate_size = 0;
  const int64_t layer =
      (experts.num_experts * (3 * int64_t{experts.intermediate_size} + 1)) * int64_t{config->hidden_size};
  const int64_t outside = 2 * int64_t{151936} * 2048 + 2048;
  // The published number.
  EXPECT_EQ(24 * (CountParameters(without) - outside + 2 * layer) + outside, 30'532'122'624);
}

TEST(ModelShapesTest, TwoLayersOfSixteenBillionWithLatentAttention) {
  const auto config = ModelShape("deepseek-v2-lite-2layers");
  ASSERT_TRUE(config.ok()) << config.status();
  const LatentDescription& latent = config->block.latent;
  const ExpertsDescription& experts = config->block.experts;
  const int64_t hidden = config->hidden_size;
  const int64_t up = int64_t{config->num_heads} * (latent.unturned_dim + latent.value_dim);
  const int64_t attention =
      hidden * (config->projected_size() + config->attended_size()) + latent.kv_rank * up;
  const int64_t norms = 2 * hidden + latent.kv_rank;
  const int64_t dense = 3 * int64_t{config->intermediate_size} * hidden;
  const int64_t sparse = (experts.num_experts * (3 * int64_t{experts.intermediate_size} + 1) +
                          3 * int64_t{experts.shared_size}) *
                         hidden;
  EXPECT_FALSE(config->block.has_experts(0));
  EXPECT_TRUE(config->block.has_experts(1));
  // The published number.
  EXPECT_EQ(27 * (attention + norms) + dense + 26 * sparse + 2 * int64_t{102400} * hidden + hidden,
            15'706'484'224);
  EXPECT_EQ(config->max_context, 163840);
}

TEST(ModelShapesTest, EveryNameParses) {
  for (const std::string& name : ModelShapeNames()) EXPECT_TRUE(ModelShape(name).ok()) << name;
}

TEST(ModelShapesTest, AnUnknownNameIsToldTheKnownOnes) {
  const absl::Status status = ModelShape("llama-2b").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"llama-2b\", expected one of llama-68m"));
}

}  // namespace
}  // namespace tandem

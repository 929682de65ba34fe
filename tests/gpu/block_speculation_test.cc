// Law 2 with DFlash heads, from a request's submission to its last token, on the CPU: outputs are those
// without drafting, greedy and sampled, and a good part of what the head guesses is right by chance.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/testing/random_model.h"
#include "gtest/gtest.h"
#include "tests/gpu/engine_pair.h"

namespace tandem {
namespace {

ModelConfig BlockHead(bool from_anchor, int32_t draft_vocab_size, bool has_window, int32_t markov_rank) {
  ModelConfig config = TargetOfFewTokens();
  config.num_layers = 2;
  config.head = HeadConfig{.kind = HeadConfig::Kind::kDFlash,
                           .feature_layers = {0, 2, 3},
                           .target_hidden_size = 24,
                           .draft_vocab_size = draft_vocab_size,
                           .block = {.num_slots = 5, .mask_token = 11, .guesses_from_anchor = from_anchor},
                           .num_positions = from_anchor ? 5 : 4};
  config.head->block.markov_rank = markov_rank;
  if (has_window) {
    config.sliding_window = 6;
    config.block.layers = {{.has_window = true}, {.has_window = false}};
  }
  return config;
}

std::unique_ptr<Engine> OnCpu(const std::shared_ptr<const Model>& model, WeightType weight_type) {
  return CreateCpuEngine(model, {.num_blocks = 40, .max_rows = 64, .weight_type = weight_type}).value();
}

struct BlockCase {
  const char* name;
  bool from_anchor = false;
  int32_t draft_vocab_size = 12;
  bool has_window = false;
  WeightType weight_type = WeightType::kAsInFile;
  int32_t markov_rank = 0;
};

class BlockSpeculation : public testing::TestWithParam<BlockCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, BlockSpeculation,
    testing::Values(BlockCase{"Plain"}, BlockCase{"FromAnchor", true}, BlockCase{"SomeTokens", false, 9},
                    BlockCase{"Window", true, 12, true},
                    BlockCase{.name = "Int8", .weight_type = WeightType::kInt8},
                    BlockCase{
                        .name = "DSpark", .from_anchor = true, .draft_vocab_size = 9, .markov_rank = 4}),
    [](const auto& param_info) { return param_info.param.name; });

TEST_P(BlockSpeculation, OutputsAreThoseWithoutIt) {
  const BlockCase& which = GetParam();
  const auto target = MakeRandomModel({.config = TargetOfFewTokens()});
  ASSERT_NE(target, nullptr);
  const auto head = MakeRandomModel(
      {.config = BlockHead(which.from_anchor, which.draft_vocab_size, which.has_window, which.markov_rank),
       .seed = 5});
  ASSERT_NE(head, nullptr);
  EnginePair pair(*target, OnCpu(target, WeightType::kAsInFile), OnCpu(head, which.weight_type));
  std::vector<PairRequest> requests;
  for (const SamplingParameters& sampling : std::vector<SamplingParameters>{
           {.temperature = 0.0f},
           {.temperature = 0.8f, .seed = 7},
           {.temperature = 0.7f, .repetition_penalty = 1.3f, .frequency_penalty = 0.7f, .seed = 9}}) {
    PairRequest request{.prompt = {}, .sampling = sampling};
    for (size_t i = 0; i < 20 + 14 * requests.size(); ++i) {
      request.prompt.push_back(static_cast<TokenId>((i * i + requests.size() / 2) % 12));
    }
    requests.push_back(std::move(request));
  }
  constexpr uint32_t kTokens = 40;
  const PairOutputs plain = pair.Run(requests, kTokens, /*drafted=*/false);
  const PairOutputs drafted = pair.Run(requests, kTokens, /*drafted=*/true);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  for (const TokenIds& tokens : plain.tokens) EXPECT_EQ(tokens.size(), kTokens);
  EXPECT_EQ(plain.feature_bytes, 0u);
  // Three states of all prompts, and of what came.
  EXPECT_GT(drafted.feature_bytes, 3u * (20 + 34 + 48 + 2 * kTokens) * 24 * 2);
  EXPECT_GT(drafted.accepted_tokens, 10u);
  EXPECT_LT(drafted.rounds, plain.rounds);
}

}  // namespace
}  // namespace tandem

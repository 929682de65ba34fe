// Requests from their submission to their last token, where target and draft head both compute on GPUs
// (test_gpu.h): law 2, and features that are worth something to the head.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/engine/cpu/testing/random_model.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/cuda_medusa_engine.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/engine_pair.h"
#include "tests/gpu/test_gpu.h"

namespace tandem {
namespace {

constexpr uint32_t kNumBlocks = 40;

std::string DemoFolder(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/", name);
}

std::unique_ptr<Engine> OpenOnGpu(const Model& model, WeightType weight_type, uint64_t seed) {
  const CudaEngine::Options options = {.num_blocks = kNumBlocks, .max_rows = 64, .weight_type = weight_type};
  auto ops = TestGpu({.seed = seed, .memory_limit = uint64_t{4} << 30});
  if (ops == nullptr) return nullptr;
  absl::StatusOr<std::unique_ptr<Engine>> engine;
  if (const auto& head = model.config().head; head.has_value() && head->kind == HeadConfig::Kind::kMedusa) {
    engine = CudaMedusaEngine::Create(model, options, std::move(ops));
  } else {
    engine = CudaEngine::Create(model, options, std::move(ops));
  }
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

EnginePair GpuPair(const Model& target, const Model& head, WeightType weight_type) {
  return {target, OpenOnGpu(target, weight_type, 1), OpenOnGpu(head, weight_type, 2)};
}

ModelConfig RandomHead(HeadConfig::Kind kind) {
  ModelConfig config = TargetOfFewTokens();
  config.num_layers = 1;
  config.head = HeadConfig{.kind = kind, .target_hidden_size = 24, .draft_vocab_size = 12};
  if (kind == HeadConfig::Kind::kEagle3) {
    config.head->feature_layers = {0, 2, 3};
    config.head->draft_vocab_size = 9;
    return config;
  }
  config.head->feature_final_norm = true;
  config.head->numbered_layer = kind == HeadConfig::Kind::kEagle;
  config.head->own_state_is_normed = kind == HeadConfig::Kind::kMtp;
  if (kind == HeadConfig::Kind::kMedusa) {
    config.num_layers = 0;
    config.head->num_positions = 3;
    config.head->num_blocks = 1;
  }
  return config;
}

std::vector<PairRequest> RandomRequests() {
  std::vector<SamplingParameters> samplings = {
      {.temperature = 0.0f},
      {.temperature = 0.8f, .seed = 7},
      {.temperature = 0.7f, .repetition_penalty = 1.3f, .frequency_penalty = 0.7f, .seed = 9}};
  std::vector<PairRequest> requests;
  for (const SamplingParameters& sampling : samplings) {
    PairRequest request{.prompt = {}, .sampling = sampling};
    for (size_t i = 0; i < 20 + 14 * requests.size(); ++i) {
      request.prompt.push_back(static_cast<TokenId>((i * i + requests.size() / 2) % 12));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

class GpuHeadSpeculation : public testing::TestWithParam<WeightType> {};

INSTANTIATE_TEST_SUITE_P(All, GpuHeadSpeculation,
                         testing::Values(WeightType::kAsInFile, WeightType::kInt8, WeightType::kFp8),
                         [](const auto& param_info) {
                           return std::string(WeightTypeName(param_info.param));
                         });

TEST_P(GpuHeadSpeculation, OutputsAreThoseWithoutIt) {
  const auto target = MakeRandomModel({.config = TargetOfFewTokens(), .dtype = TensorView::DType::kBF16});
  ASSERT_NE(target, nullptr);
  std::vector<HeadConfig::Kind> kinds = {HeadConfig::Kind::kEagle, HeadConfig::Kind::kEagle3};
  if (GetParam() == WeightType::kAsInFile) {
    kinds.insert(kinds.end(), {HeadConfig::Kind::kMtp, HeadConfig::Kind::kMedusa});
  }
  for (const auto kind : kinds) {
    const auto head = MakeRandomModel({.config = RandomHead(kind), .seed = 5});
    ASSERT_NE(head, nullptr);
    EnginePair pair = GpuPair(*target, *head, GetParam());
    const PairOutputs plain = pair.Run(RandomRequests(), 10, /*drafted=*/false);
    const PairOutputs drafted = pair.Run(RandomRequests(), 10, /*drafted=*/true);
    EXPECT_EQ(drafted.tokens, plain.tokens) << HeadKindName(kind);
    EXPECT_EQ(plain.feature_bytes, 0u);
    // Of all prompts, but for Medusa heads, which read what is behind the last token alone.
    const uint64_t feature_rows = kind == HeadConfig::Kind::kMedusa ? 10 : 3 * 25;
    EXPECT_GT(drafted.feature_bytes, feature_rows * 24 * 2) << HeadKindName(kind);
    EXPECT_GT(drafted.accepted_tokens, 2u) << HeadKindName(kind);
    for (const TokenIds& tokens : plain.tokens) EXPECT_EQ(tokens.size(), 10u);
  }
}

// The bundled target and its EAGLE-3 head. Another target's states, or another's place in them, would be
// worth next to nothing to it.
TEST(GpuDemoHead, IsRightAsOftenAsOnACpu) {
  const auto target = Model::Load(DemoFolder("tandem-target-15m"));
  ASSERT_TRUE(target.ok()) << target.status();
  const auto head = Model::LoadHead(DemoFolder("tandem-eagle3-15m"), *target);
  ASSERT_TRUE(head.ok()) << head.status();
  const auto text =
      ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/tandem-target-15m.json"), 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json golden = nlohmann::json::parse(*text);
  EnginePair pair = GpuPair(**target, **head, WeightType::kAsInFile);
  const std::vector<PairRequest> requests = {
      {.prompt = golden["cases"][1]["prompt_ids"].get<TokenIds>(), .sampling = {.temperature = 0.0f}},
      {.prompt = golden["cases"][2]["prompt_ids"].get<TokenIds>(),
       .sampling = {.temperature = 0.8f, .seed = 3}}};
  const PairOutputs plain = pair.Run(requests, 12, /*drafted=*/false);
  const PairOutputs drafted = pair.Run(requests, 12, /*drafted=*/true);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  // 24 tokens in all, and as many rounds without it.
  EXPECT_LT(drafted.rounds, 14u);
  EXPECT_GT(drafted.accepted_tokens, 10u);
}

}  // namespace
}  // namespace tandem

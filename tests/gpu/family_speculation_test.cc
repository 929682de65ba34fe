// Law 2 for every family that there is: with a drafter, and in company, every token is the one without. On
// the processor and, where it runs the family, on a GPU (test_gpu.h).

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/model/testing/family_fixture.h"
#include "common/model/testing/lora_fixture.h"
#include "gtest/gtest.h"
#include "tests/gpu/engine_pair.h"
#include "tests/gpu/test_gpu.h"

namespace tandem {
namespace {

constexpr uint32_t kMaxTokens = 8;

std::unique_ptr<Engine> OnCpu(std::shared_ptr<const Model> model, WeightType weight_type) {
  auto engine = CreateCpuEngine(
      std::move(model), {.num_blocks = 40, .max_rows = 64, .num_threads = 2, .weight_type = weight_type});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::unique_ptr<Engine> OnGpu(const Model& model) {
  auto gpu = TestGpu({.seed = 1});
  if (gpu == nullptr) return nullptr;
  auto engine =
      CudaEngine::Create(model, {.num_blocks = 40, .max_rows = 64, .use_graphs = false}, std::move(gpu));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::vector<PairRequest> Requests(const ModelConfig& config) {
  const std::vector<SamplingParameters> samplings = {
      {.temperature = 0.0f},
      {.temperature = 0.8f, .seed = 7},
      {.temperature = 0.7f, .repetition_penalty = 1.3f, .frequency_penalty = 0.7f, .seed = 9}};
  std::vector<PairRequest> requests;
  for (const SamplingParameters& sampling : samplings) {
    PairRequest request{.prompt = {}, .sampling = sampling};
    // The second goes on from the first: it finds its blocks.
    for (size_t i = 0; i < 17 + 8 * requests.size(); ++i) {
      request.prompt.push_back(
          static_cast<TokenId>((i * i + requests.size() / 2) % static_cast<size_t>(config.vocab_size)));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectSameWithDrafts(EnginePair pair, const std::vector<PairRequest>& requests,
                          uint32_t least_accepted) {
  std::vector<TokenIds> alone;
  for (const PairRequest& request : requests) {
    alone.push_back(pair.Run({request}, kMaxTokens, /*drafted=*/false).tokens.front());
    EXPECT_EQ(alone.back().size(), kMaxTokens);
  }
  const PairOutputs drafted = pair.Run(requests, kMaxTokens, /*drafted=*/true);
  EXPECT_EQ(drafted.tokens, alone);
  // Of 24 tokens, or nothing was tested.
  EXPECT_GT(drafted.accepted_tokens, least_accepted);
}

class FamilySpeculation : public testing::TestWithParam<std::string> {};

// The draft model is the target rounded to 8 bits: nearly always right, and never its bits.
TEST_P(FamilySpeculation, OutputsAreThoseWithoutIt) {
  const auto model = MakeFamilyModel(GetParam(), TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  ExpectSameWithDrafts({*model, OnCpu(model, WeightType::kAsInFile), OnCpu(model, WeightType::kInt8)},
                       Requests(model->config()), /*least_accepted=*/3);
}

TEST_P(FamilySpeculation, OutputsOfAGpuAreThoseWithoutIt) {
  const auto model = MakeFamilyModel(GetParam(), TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  const BlockDescription& block = model->config().block;
  if (!OnlyOnProcessors(block).empty()) GTEST_SKIP() << "refused: docs/reference/models.md";
  auto engine = OnGpu(*model);
  ASSERT_NE(engine, nullptr);
  ExpectSameWithDrafts({*model, std::move(engine), OnCpu(model, WeightType::kInt8)},
                       Requests(model->config()), /*least_accepted=*/3);
}

// Each with its own adapter or none, in each other's company; the draft model has none.
TEST(AdapterSpeculation, OutputsOfAGpuAreThoseWithoutIt) {
  const nlohmann::json golden = AdapterGolden("llama");
  const auto model = MakeAdaptedModel(golden, TensorView::DType::kBF16);
  ASSERT_NE(model, nullptr);
  auto engine = OnGpu(*model);
  ASSERT_NE(engine, nullptr);
  std::vector<PairRequest> requests = Requests(model->config());
  for (size_t i = 0; i < 2; ++i) {
    const auto seed = golden.at("adapters").at(i).at("seed").get<uint64_t>();
    const auto adapter = MakeAdapter(golden, seed, model->config());
    ASSERT_NE(adapter, nullptr);
    const absl::StatusOr<AdapterId> id = engine->AddAdapter(*adapter);
    ASSERT_TRUE(id.ok()) << id.status();
    // The first request has none, and the second the same prompt's beginning.
    requests.at(i + 1).adapter = std::make_shared<const HeldAdapter>(
        HeldAdapter{.name = absl::StrCat("adapter-", i), .id = *id, .fingerprint = adapter->fingerprint()});
  }
  ExpectSameWithDrafts({*model, std::move(engine), OnCpu(model, WeightType::kInt8)}, requests,
                       /*least_accepted=*/0);
}

INSTANTIATE_TEST_SUITE_P(All, FamilySpeculation, testing::ValuesIn(FamilyModelNames()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem

// What the bundled EAGLE-3 head has accepted, counted: without a clock the same counts come again on every
// machine.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/rounds/draft_loop.h"
#include "bench/rounds/loaded_model.h"
#include "bench/rounds/rounds_bench.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

constexpr uint32_t kNewTokens = 48;

const std::string& DemoModels() {
  static const auto* const folder = new std::string(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models"));
  return *folder;
}

class HeadRoundsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string target = DemoModels() + "/tandem-target-15m";
    target_ = new LoadedModel(LoadModel(target, /*threads=*/1).value());
    head_ = new LoadedModel(LoadModel(DemoModels() + "/tandem-eagle3-15m", /*threads=*/1, target).value());
    golden_ = new std::vector<TokenIds>(
        LoadPromptIds(absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/tandem-target-15m.json")).value());
  }
  static void TearDownTestSuite() {
    delete golden_;
    delete head_;
    delete target_;
  }

  static std::unique_ptr<DraftLoop> Loop(DraftLoop::Options options) {
    // Requests are compared that come one after the other: what the first teaches would tell them apart.
    options.calibrated_growth = false;
    options.limits = {.max_depth = 6, .nodes_per_level = 8, .max_nodes = 8, .branching = 4, .lookahead = 0};
    return DraftLoop::Make(options, target_->engine.get(), head_->engine.get(), target_->tokenizer).value();
  }

  // Longer than a few blocks and a few chunks: a golden prompt behind another one, which makes it no other's.
  static std::vector<TokenIds> Prompts() {
    std::vector<TokenIds> prompts;
    for (size_t i = 0; i < 3; ++i) {
      TokenIds prompt;
      while (prompt.size() < 64)
        prompt.insert(prompt.end(), (*golden_)[i + 3].begin(), (*golden_)[i + 3].end());
      prompt.insert(prompt.end(), (*golden_)[i].begin(), (*golden_)[i].end());
      prompts.push_back(prompt);
    }
    return prompts;
  }

  static SamplingParameters SamplingAt(float temperature) { return {.temperature = temperature, .seed = 5}; }

  // Every prompt once.
  static std::vector<DraftLoop::Output> GenerateAll(DraftLoop& loop, float temperature) {
    std::vector<DraftLoop::Output> outputs;
    for (const TokenIds& prompt : Prompts()) {
      outputs.push_back(loop.Generate(prompt, SamplingAt(temperature), kNewTokens).value());
    }
    return outputs;
  }

  // The first request's prompt is prefilled before the head has said what it reads.
  static void WarmUp(DraftLoop& loop) { ASSERT_TRUE(loop.Generate({1, 2, 3}, SamplingAt(0.0f), 4).ok()); }

  static double Length(const std::vector<DraftLoop::Output>& outputs) {
    double accepted = 0.0;
    double rounds = 0.0;
    for (const DraftLoop::Output& output : outputs) {
      accepted += output.accepted_tokens;
      rounds += output.drafted_rounds;
    }
    return 1.0 + accepted / rounds;
  }

  static LoadedModel* target_;
  static LoadedModel* head_;
  static std::vector<TokenIds>* golden_;
};

LoadedModel* HeadRoundsTest::target_ = nullptr;
LoadedModel* HeadRoundsTest::head_ = nullptr;
std::vector<TokenIds>* HeadRoundsTest::golden_ = nullptr;

// The features of cached tokens are kept with their keys and values (ADR 15): what the head has accepted is
// not only within 2 %, but the same, whether it has read the prompt before or another drafter did.
TEST_F(HeadRoundsTest, ACachedPromptIsDraftedForAsAFreshOne) {
  for (const bool drafter_cache : {false, true}) {
    for (const float temperature : {0.0f, 0.8f}) {
      const std::unique_ptr<DraftLoop> loop = Loop({.drafter_prefix_cache = drafter_cache});
      WarmUp(*loop);
      const std::vector<DraftLoop::Output> fresh = GenerateAll(*loop, temperature);
      const std::vector<DraftLoop::Output> cached = GenerateAll(*loop, temperature);
      EXPECT_GT(Length(fresh), 1.5);
      for (size_t i = 0; i < fresh.size(); ++i) {
        EXPECT_EQ(fresh[i].cached_prompt_tokens, 0u);
        EXPECT_GE(cached[i].cached_prompt_tokens, 64u);
        EXPECT_EQ(cached[i].tokens, fresh[i].tokens);
        EXPECT_EQ(cached[i].accepted_tokens, fresh[i].accepted_tokens) << temperature << " prompt " << i;
        EXPECT_EQ(cached[i].drafted_rounds, fresh[i].drafted_rounds) << temperature << " prompt " << i;
      }
    }
  }
}

// Law 1 for features: in whatever pieces a prompt was computed, its states are the same bits, and so is what
// the head makes of them.
TEST_F(HeadRoundsTest, ChunksAndCachesChangeNothingThatTheHeadReads) {
  const std::unique_ptr<DraftLoop> usual = Loop({});
  WarmUp(*usual);
  const std::vector<DraftLoop::Output> expected = GenerateAll(*usual, 0.8f);
  for (const uint32_t chunk : {7u, 33u}) {
    const std::unique_ptr<DraftLoop> loop =
        Loop({.prefill_chunk = chunk, .prefix_cache = false, .drafter_prefix_cache = false});
    WarmUp(*loop);
    const std::vector<DraftLoop::Output> outputs = GenerateAll(*loop, 0.8f);
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].tokens, expected[i].tokens);
      EXPECT_EQ(outputs[i].accepted_tokens, expected[i].accepted_tokens) << chunk << " prompt " << i;
      EXPECT_EQ(outputs[i].drafted_rounds, expected[i].drafted_rounds) << chunk << " prompt " << i;
    }
  }
}

TEST_F(HeadRoundsTest, Int8FeaturesChangeNoOutputAndHardlyWhatIsAccepted) {
  for (const float temperature : {0.0f, 0.8f}) {
    std::vector<DraftLoop::Output> outputs[2];
    for (const FeatureType type : {FeatureType::kBf16, FeatureType::kInt8}) {
      const std::unique_ptr<DraftLoop> loop = Loop({.feature_type = type});
      WarmUp(*loop);
      outputs[type == FeatureType::kInt8 ? 1 : 0] = GenerateAll(*loop, temperature);
    }
    for (size_t i = 0; i < outputs[0].size(); ++i) EXPECT_EQ(outputs[1][i].tokens, outputs[0][i].tokens);
    EXPECT_GT(Length(outputs[1]), 0.95 * Length(outputs[0]));
  }
}

}  // namespace
}  // namespace tandem::bench

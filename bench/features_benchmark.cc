// What a prompt costs the router before its drafter is chosen: features, and the decision.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "router/drafters/choice/drafter_chooser.h"

namespace tandem::router {
namespace {

constexpr uint32_t kVocabulary = 4096;

// Tokens by a Zipf distribution, as text has them.
TokenIds ZipfPrompt(size_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> weights(kVocabulary);
  for (uint32_t i = 0; i < kVocabulary; ++i) weights[i] = 1.0 / (i + 3);
  std::discrete_distribution<TokenId> tokens(weights.begin(), weights.end());
  TokenIds prompt(length);
  for (TokenId& token : prompt) token = tokens(random);
  return prompt;
}

const std::vector<std::string>& Drafters() {
  static const std::vector<std::string> drafters = {"a", "b", "c", "d", "e"};
  return drafters;
}

// Calibrated on a hundred prompts of 200 tokens with five drafters.
DrafterChooser& Chooser() {
  static DrafterChooser* const chooser = [] {
    auto* made = new DrafterChooser({}, {{.name = "target", .vocab_size = kVocabulary}});
    std::vector<CalibrationPrompt> prompts;
    for (uint32_t i = 0; i < 100; ++i) {
      CalibrationPrompt prompt{.tokens = ZipfPrompt(200, i), .outcomes = {}};
      for (const std::string& drafter : Drafters()) {
        prompt.outcomes.push_back({.drafter = drafter, .acceptance = 0.4 + 0.003 * i, .trials = 60});
      }
      prompts.push_back(prompt);
    }
    if (!made->Calibrate(0, prompts).ok()) std::abort();
    return made;
  }();
  return *chooser;
}

void BM_Features(benchmark::State& state) {
  const TokenIds prompt = ZipfPrompt(static_cast<size_t>(state.range(0)), 1000);
  DrafterChooser& chooser = Chooser();
  for (auto _ : state) benchmark::DoNotOptimize(chooser.Prepare(0, prompt, "acme"));
}
BENCHMARK(BM_Features)->Arg(100)->Arg(2000)->Arg(100000)->Unit(benchmark::kMicrosecond);

void BM_Decide(benchmark::State& state) {
  DrafterChooser& chooser = Chooser();
  const PromptHandle prompt = chooser.Prepare(0, ZipfPrompt(2000, 1000), "acme");
  for (auto _ : state) benchmark::DoNotOptimize(chooser.Decide(0, prompt, Drafters()));
}
BENCHMARK(BM_Decide)->Unit(benchmark::kMicrosecond);

void BM_Learn(benchmark::State& state) {
  DrafterChooser& chooser = Chooser();
  const PromptHandle prompt = chooser.Prepare(0, ZipfPrompt(2000, 1000), "acme");
  const RequestOutcome outcome{.accepted = 40,
                               .rejections = 20,
                               .draft = DraftCosts{.exposed_level_seconds = 0.001},
                               .verify = VerifySeconds(9, 0.01)};
  for (auto _ : state) chooser.Learn(0, "a", prompt, outcome);
}
BENCHMARK(BM_Learn)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::router

BENCHMARK_MAIN();

// What a seeded choice costs, and a drafter's guess of it, by the size of the vocabulary and the parameters.
//
// Logits are made up. `flat`: normal with a standard deviation of 2.5, so that thousands of tokens have a
// chance, as where a model knows nothing. `peaked`: of 2.0, and twenty tokens far above, as where it knows
// what comes. `masked`: under a constraint, where the output stands in the middle of a JSON string (most
// tokens may come) or in a number (few may): the mask is made, put on the logits, and the token chosen.
// `masked/first` makes the mask of a state that nobody has been in before, the others one that is kept. The
// vocabulary of constraints is made up too, of syllables.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/grammar/compiled.h"
#include "common/grammar/token_mask.h"
#include "common/speculation/target_sampler.h"

namespace tandem {
namespace {

constexpr int kNumPositions = 4;

// [kNumPositions][vocab_size]
std::vector<std::vector<float>> MakeLogits(int32_t vocab_size, bool is_peaked) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0.0f, is_peaked ? 2.0f : 2.5f);
  std::vector<std::vector<float>> logits(kNumPositions, std::vector<float>(static_cast<size_t>(vocab_size)));
  for (std::vector<float>& position : logits) {
    for (float& logit : position) logit = normal(random);
    for (int i = 0; is_peaked && i < 20; ++i) {
      position[random() % position.size()] = 18.0f - 0.7f * static_cast<float>(i);
    }
  }
  return logits;
}

// Times `choose`, which may overwrite its logits, without making them.
template <typename F>
void TimeChoices(benchmark::State& state, int32_t vocab_size, bool is_peaked, F choose) {
  const std::vector<std::vector<float>> logits = MakeLogits(vocab_size, is_peaked);
  std::vector<float> scratch(static_cast<size_t>(vocab_size));
  uint32_t position = 0;
  for (auto _ : state) {
    std::memcpy(scratch.data(), logits[position % kNumPositions].data(), scratch.size() * sizeof(float));
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(choose(absl::MakeSpan(scratch), position++));
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

struct Parameters {
  const char* name;
  SamplingParameters sampling;
};

void Register(int32_t vocab_size, bool is_peaked) {
  const std::string suffix = "/" + std::to_string(vocab_size) + (is_peaked ? "/peaked" : "/flat");
  const auto add = [&](const std::string& name, auto choose) {
    benchmark::RegisterBenchmark(
        (name + suffix).c_str(),
        [=](benchmark::State& state) { TimeChoices(state, vocab_size, is_peaked, choose); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  };
  const Parameters all[] = {{"greedy", {.temperature = 0.0f}},
                            {"temperature", {.temperature = 0.8f}},
                            {"top-p", {.temperature = 0.8f, .top_p = 0.95f}},
                            {"top-k", {.temperature = 0.8f, .top_k = 40}},
                            {"min-p", {.temperature = 0.8f, .min_p = 0.05f}}};
  for (const Parameters& parameters : all) {
    const SamplingParameters sampling = parameters.sampling;
    add(std::string("choose/") + parameters.name, [=](absl::Span<float> logits, uint32_t position) {
      return TargetSampler(sampling, vocab_size, {}).Choose(logits, position).token;
    });
    add(std::string("guess/") + parameters.name, [=](absl::Span<float> logits, uint32_t position) {
      return TargetSampler(sampling, vocab_size, {}).Guess(logits, position, 4).size();
    });
  }
  add("choose/logprobs", [=](absl::Span<float> logits, uint32_t position) {
    return TargetSampler({.temperature = 0.8f}, vocab_size, {}).Choose(logits, position, 5).logprob;
  });
}

// The bytes, one by one, then what tokenizers learn: syllables, every other one with a blank in front, and,
// of a hundred, one with a quotation mark and five with what else stands around words.
std::shared_ptr<const GrammarVocabulary> MakeVocabulary(int32_t vocab_size) {
  static constexpr const char* kRare[] = {"\"", "\":", ",", ".", "(", "é"};
  std::mt19937_64 random(3);
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  while (bytes.size() + 1 < static_cast<size_t>(vocab_size)) {
    std::string token = random() % 2 == 0 ? " " : "";
    const bool is_number = random() % 100 == 0;
    for (uint64_t length = 1 + random() % 8; length > 0; --length) {
      token.push_back(static_cast<char>((is_number ? '0' : 'a') + random() % (is_number ? 10 : 26)));
    }
    const uint64_t rare = random() % 100;
    if (rare < 6) token += kRare[rare == 0 ? random() % 2 : rare % 4 + 2];
    bytes.push_back(std::move(token));
  }
  bytes.emplace_back();
  return GrammarVocabulary::Create(std::move(bytes), {vocab_size - 1}).value();
}

constexpr char kSchema[] =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]})";

void RegisterMasked(int32_t vocab_size) {
  const std::shared_ptr<const GrammarVocabulary> vocabulary = MakeVocabulary(vocab_size);
  const std::string bytes = CompileConstraint({.text = kSchema}, *vocabulary).value();
  const std::shared_ptr<const CompiledConstraint> compiled = LoadConstraint(bytes, vocabulary).value();
  const std::shared_ptr<const CompiledConstraint> forgetful =
      LoadConstraint(bytes, vocabulary, /*masks_kept=*/0).value();
  for (const auto& [place, before] :
       {std::pair("string", R"({"name": "An)"), {"number", R"({"name": "An", "age": 4)"}}) {
    const std::shared_ptr<ConstraintState> state = CompiledConstraint::Begin(compiled);
    const std::shared_ptr<ConstraintState> first = CompiledConstraint::Begin(forgetful);
    for (const char* byte = before; *byte != '\0'; ++byte) {
      const auto token = static_cast<unsigned char>(*byte);
      if (!state->Accept(token) || !first->Accept(token)) std::abort();
    }
    const auto mask = std::make_shared<std::vector<uint32_t>>(MaskWords(vocab_size));
    const std::string suffix = std::string("/") + place + "/" + std::to_string(vocab_size);
    const auto add = [&](const std::string& name, auto choose) {
      benchmark::RegisterBenchmark(
          (name + suffix).c_str(),
          [=](benchmark::State& run) { TimeChoices(run, vocab_size, /*is_peaked=*/true, choose); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    };
    add("masked/first", [=](absl::Span<float>, uint32_t) {
      first->FillMask(absl::MakeSpan(*mask));
      return mask->front();
    });
    add("masked/make", [=](absl::Span<float>, uint32_t) {
      state->FillMask(absl::MakeSpan(*mask));
      return mask->front();
    });
    for (const float temperature : {0.0f, 0.8f}) {
      add(temperature == 0.0f ? "masked/greedy" : "masked/temperature",
          [=](absl::Span<float> logits, uint32_t position) {
            state->FillMask(absl::MakeSpan(*mask));
            ApplyMask(*mask, logits);
            return TargetSampler({.temperature = temperature}, vocab_size, {}).Choose(logits, position).token;
          });
    }
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  for (const int32_t vocab_size : {4096, 32000, 128256, 262144}) {
    for (const bool is_peaked : {false, true}) tandem::Register(vocab_size, is_peaked);
    if (tandem::HasGrammars()) tandem::RegisterMasked(vocab_size);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}

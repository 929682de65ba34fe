// Laws 1 and 2 end to end: an output is a function of model, prompt, parameters and seed alone. Everything is
// compared bit for bit with what one undrafted request at a time gives.
#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/speculation/policies/window_policy.h"
#include "gmock/gmock.h"
#include "tests/e2e/generation_fixture.h"

namespace tandem::e2e {
namespace {

using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;
using ::testing::ValuesIn;

using OutputEqualityTest = GenerationTest;

constexpr uint32_t kTokensEach = 24;
// Requests after which what a machine makes late must have come.
constexpr int kMostTries = 200;

TEST_F(OutputEqualityTest, GreedyIsWhatTheReferenceImplementationSays) {
  for (const GoldenCase& golden_case : golden()) {
    ASSERT_GT(golden_case.margin, 1e-3) << golden_case.label;
    v1::GenerateRequest request =
        Request(kPlain, golden_case.prompt, static_cast<uint32_t>(golden_case.greedy.size()));
    request.mutable_stopping()->set_ignore_eos(true);
    EXPECT_EQ(Expected(request).ids(), golden_case.greedy) << golden_case.label;
    request.set_model(kLookahead);
    SetDrafter(request, kDrafters[0], "fixed");
    ExpectSame(request, Generate(request));
  }
}

// (drafter, window policy, verifier)
using Speculation = std::tuple<absl::string_view, std::string, const char*>;

class SpeculationTest : public GenerationTest, public ::testing::WithParamInterface<Speculation> {
 protected:
  // Prompts of 1 to 200 tokens, greedy or sampled with seeds of their own.
  static std::vector<v1::GenerateRequest> Requests(float temperature) {
    const auto [drafter, policy, verifier] = GetParam();
    std::vector<std::vector<uint32_t>> prompts;
    for (const GoldenCase& golden_case : golden()) prompts.push_back(golden_case.prompt);
    prompts.emplace_back(prompts[3].begin(), prompts[3].begin() + 7);
    prompts.emplace_back(prompts[5].begin(), prompts[5].begin() + 113);
    std::vector<v1::GenerateRequest> requests;
    for (const std::vector<uint32_t>& prompt : prompts) {
      v1::GenerateRequest request = Request(verifier, prompt, kTokensEach);
      request.mutable_sampling()->set_temperature(temperature);
      request.mutable_sampling()->set_seed(requests.size());
      SetDrafter(request, drafter, policy);
      requests.push_back(std::move(request));
    }
    return requests;
  }
};

TEST_P(SpeculationTest, ChangesNoOutputInABatchOfEightOrAlone) {
  uint32_t accepted = 0;
  for (const float temperature : {0.0f, 0.8f}) {
    const std::vector<v1::GenerateRequest> requests = Requests(temperature);
    ASSERT_EQ(requests.size(), 8u);
    const auto results = GenerateConcurrently(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ExpectSame(requests[i], results[i]);
      if (!results[i].ok()) continue;
      EXPECT_EQ(results[i]->finished.speculation().drafter_lost(), "");
      accepted += results[i]->finished.speculation().accepted_tokens();
    }
    for (const size_t alone : {size_t{1}, size_t{4}}) {
      const absl::StatusOr<RecordedOutput> result = Generate(requests[alone]);
      ExpectSame(requests[alone], result);
      if (result.ok()) accepted += result->finished.speculation().accepted_tokens();
    }
  }
  // goodput drafts only while that pays, which on a busy machine may be never. For others a drafter that
  // starves there may come too late for these requests.
  if (std::get<1>(GetParam()) != "goodput") {
    const v1::GenerateRequest request = Requests(0.0f)[1];
    for (int more = 0; accepted == 0 && more < kMostTries; ++more) {
      const absl::StatusOr<RecordedOutput> result = Generate(request);
      ExpectSame(request, result);
      if (result.ok()) accepted += result->finished.speculation().accepted_tokens();
    }
    EXPECT_GT(accepted, 0u) << "nothing was drafted, so nothing was tested";
  }
}

std::string NameOf(const ::testing::TestParamInfo<Speculation>& info) {
  const auto& [drafter, policy, verifier] = info.param;
  return absl::StrReplaceAll(absl::StrCat(drafter, "_", policy, "_", verifier), {{"-", "_"}, {"+", "p"}});
}

INSTANTIATE_TEST_SUITE_P(Quantised, SpeculationTest,
                         Combine(Values(kDrafters[0], kDrafters[3]), Values("fixed"),
                                 Values(kLookaheadInt8, kSynchronousInt4)),
                         NameOf);

TEST_F(OutputEqualityTest, IsTheWeightTypesOwn) {
  std::vector<Output> outputs;
  for (const char* model : {kPlain, kPlainInt8, kPlainInt4}) {
    outputs.push_back(Expected(Request(model, golden()[1].prompt, kTokensEach)));
  }
  EXPECT_NE(outputs[0], outputs[1]);
  EXPECT_NE(outputs[0], outputs[2]);
  EXPECT_NE(outputs[1], outputs[2]);
}

INSTANTIATE_TEST_SUITE_P(Drafters, SpeculationTest,
                         Combine(ValuesIn(kDrafters), Values("fixed", "goodput"),
                                 Values(kLookahead, kSynchronous)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Policies, SpeculationTest,
                         Combine(Values(kDrafters[0]), ValuesIn(WindowPolicyNames()), Values(kLookahead)),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(Sources, SpeculationTest,
                         Combine(ValuesIn(kSourceDrafters), Values("fixed"),
                                 Values(kLookahead, kSynchronous)),
                         NameOf);

// Law 2 with features: read from the engine or the prefix cache, in chunks of 32 or 7 tokens, ahead or in
// turns.
INSTANTIATE_TEST_SUITE_P(Heads, SpeculationTest,
                         Combine(ValuesIn(kHeads), Values("fixed"),
                                 Values(kLookahead, kSynchronous, kLookaheadInt8)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(HeadPolicies, SpeculationTest,
                         Combine(Values(kHeads[0], kHeads[2]), ValuesIn(WindowPolicyNames()),
                                 Values(kLookahead)),
                         [](const auto& info) { return absl::StrCat("Of_", NameOf(info)); });

INSTANTIATE_TEST_SUITE_P(Shapes, SpeculationTest,
                         Combine(Values(kDrafters[0], kHeads[0], kHeads[2], kHeads[4], kSourceDrafters[0],
                                        kSourceDrafters[3]),
                                 Values("fixed", "analytic"), Values(kEagle2, kChain)),
                         NameOf);

TEST_F(OutputEqualityTest, AVerifierDraftsForItselfWhereNoDrafterDoes) {
  for (const char* verifier : {kEagle2, kChain}) {
    uint32_t accepted = 0;
    for (const GoldenCase& golden_case : golden()) {
      v1::GenerateRequest request = Request(verifier, golden_case.prompt, 2 * kTokensEach);
      request.mutable_stopping()->set_ignore_eos(true);
      for (const auto mode : {v1::SPECULATION_MODE_UNSPECIFIED, v1::SPECULATION_MODE_OFF}) {
        request.mutable_speculation()->set_mode(mode);
        // goodput may rightly do without on a machine that is busy.
        const bool drafts = mode != v1::SPECULATION_MODE_OFF;
        request.mutable_speculation()->set_window_policy(drafts ? "fixed" : "");
        const absl::StatusOr<RecordedOutput> result = Generate(request);
        ExpectSame(request, result);
        if (!result.ok()) continue;
        if (mode == v1::SPECULATION_MODE_OFF) {
          EXPECT_EQ(result->finished.speculation().draft_tokens(), 0u);
        }
        accepted += result->finished.speculation().accepted_tokens();
      }
    }
    EXPECT_GT(accepted, 0u) << verifier;
  }
}

struct Parameter {
  const char* name;
  std::function<void(v1::SamplingParameters&)> set;
};

// One strong value of each, so that it changes the output of a request with nothing but a temperature.
std::vector<Parameter> Parameters(uint32_t biased_token) {
  return {{"top_k", [](auto& sampling) { sampling.set_top_k(2); }},
          {"top_p", [](auto& sampling) { sampling.set_top_p(0.3f); }},
          {"min_p", [](auto& sampling) { sampling.set_min_p(0.4f); }},
          {"repetition_penalty", [](auto& sampling) { sampling.set_repetition_penalty(1.6f); }},
          {"presence_penalty", [](auto& sampling) { sampling.set_presence_penalty(1.8f); }},
          {"frequency_penalty", [](auto& sampling) { sampling.set_frequency_penalty(-1.5f); }},
          {"ban", [=](auto& sampling) { (*sampling.mutable_logit_bias())[biased_token] = -100.0f; }},
          {"seed", [](auto& sampling) { sampling.set_seed(77); }},
          {"temperature", [](auto& sampling) { sampling.set_temperature(1.3f); }}};
}

TEST_F(OutputEqualityTest, HoldsForEverySamplingParameter) {
  v1::GenerateRequest base = Request(kLookahead, golden()[1].prompt, kTokensEach);
  base.mutable_stopping()->set_ignore_eos(true);
  base.mutable_sampling()->set_temperature(0.8f);
  const Output& without = Expected(base);
  const std::vector<Parameter> parameters = Parameters(without.tokens[2].token);

  std::vector<v1::GenerateRequest> requests;
  for (size_t i = 0; i < parameters.size(); ++i) {
    v1::GenerateRequest single = base;
    parameters[i].set(*single.mutable_sampling());
    EXPECT_NE(Expected(single), without) << parameters[i].name << " has no effect";
    v1::GenerateRequest pair = single;
    parameters[(i + 1) % parameters.size()].set(*pair.mutable_sampling());
    requests.push_back(std::move(single));
    requests.push_back(std::move(pair));
  }
  v1::GenerateRequest all = base;
  for (const Parameter& parameter : parameters) parameter.set(*all.mutable_sampling());
  requests.push_back(all);
  all.mutable_sampling()->set_temperature(0.0f);
  requests.push_back(all);

  uint32_t accepted = 0;
  for (const char* verifier : {kLookahead, kSynchronous}) {
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].set_model(verifier);
      SetDrafter(requests[i], kDrafters[i % std::size(kDrafters)], "fixed");
    }
    const auto results = GenerateConcurrently(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ExpectSame(requests[i], results[i]);
      if (results[i].ok()) accepted += results[i]->finished.speculation().accepted_tokens();
    }
  }
  EXPECT_GT(accepted, 0u);
}

TEST_F(OutputEqualityTest, PrefixCacheIsSeenInTheUsageOnly) {
  std::vector<uint32_t> prompt = golden()[4].prompt;
  std::reverse(prompt.begin(), prompt.end());  // No other test's.
  v1::GenerateRequest request = Request(kLookahead, prompt, kTokensEach);
  for (const bool drafted : {false, true}) {
    if (drafted) SetDrafter(request, kDrafters[0], "fixed");
    for (const bool cached : {drafted, true}) {
      const absl::StatusOr<RecordedOutput> result = Generate(request);
      ExpectSame(request, result);
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->finished.usage().cached_prompt_tokens() > 0, cached);
    }
  }
  request.set_model(kSynchronous);
  for (int run = 0; run < 2; ++run) {
    const absl::StatusOr<RecordedOutput> result = Generate(request);
    ExpectSame(request, result);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->finished.usage().cached_prompt_tokens(), 0u);
  }
}

TEST_F(OutputEqualityTest, DraftersThatCannotDraftCostNothingButSpeed) {
  v1::GenerateRequest request = Request(kLookahead, golden()[2].prompt, kTokensEach);
  for (const auto& [drafter, why] :
       {std::pair(kUnreachableDrafter, "connect"), std::pair(kUnknownDraftModel, "no-such-model")}) {
    SetDrafter(request, drafter, "fixed");
    std::string lost;
    // The first ones may end before anybody knows.
    for (int tries = 0; lost.empty() && tries < kMostTries; ++tries) {
      const absl::StatusOr<RecordedOutput> result = Generate(request);
      ExpectSame(request, result);
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->started.drafter(), drafter);
      EXPECT_EQ(result->finished.speculation().draft_tokens(), 0u);
      lost = result->finished.speculation().drafter_lost();
    }
    EXPECT_THAT(lost, HasSubstr(why));
  }
}

}  // namespace
}  // namespace tandem::e2e

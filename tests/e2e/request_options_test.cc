// What a request may ask of its output besides sampling, on the demo target: outputs are the yardstick's bit
// for bit, whatever drafts and however the prompt is computed.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/generation_fixture.h"

namespace tandem::e2e {
namespace {

constexpr uint32_t kOutputTokens = 24;
// How far log probabilities may be from those of the reference, which computes in float32: as far as logits
// may (common/engine/cpu/golden_test.cc), twice.
constexpr double kLogprobTolerance = 0.12;

class RequestOptionsEndToEndTest : public GenerationTest {
 protected:
  // The case with the longest prompt.
  static const GoldenCase& Long() { return golden().back(); }
};

TEST_F(RequestOptionsEndToEndTest, OutputIIsTheRequestWithTheSeedThatIsIMore) {
  for (const char* verifier : {kLookahead, kSynchronous}) {
    for (const bool drafted : {false, true}) {
      v1::GenerateRequest request = Request(verifier, Long().prompt, kOutputTokens);
      request.mutable_sampling()->set_temperature(0.8f);
      request.mutable_sampling()->set_seed(41);
      if (drafted) SetDrafter(request, kDrafters[0], "fixed");
      request.set_num_outputs(4);
      const absl::StatusOr<std::vector<RecordedOutput>> outputs = GenerateOutputs(request);
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      request.clear_num_outputs();
      for (size_t i = 0; i < outputs->size(); ++i) {
        request.mutable_sampling()->set_seed(41 + i);
        EXPECT_EQ((*outputs)[i].output, Expected(request)) << "output " << i << " on " << verifier;
        EXPECT_EQ((*outputs)[i].started.seed(), 41 + i);
        // What has a block of its own is in the cache for the others; `synchronous` has none.
        const uint32_t cached = (*outputs)[i].finished.usage().cached_prompt_tokens();
        if (i > 0 && verifier == std::string(kLookahead)) {
          EXPECT_GE(cached + 32, Long().prompt.size());
        }
      }
    }
  }
}

TEST_F(RequestOptionsEndToEndTest, RestrictedOutputsAreTheYardsticks) {
  v1::GenerateRequest request = Request(kPlain, Long().prompt, kOutputTokens);
  request.mutable_sampling()->set_temperature(0.8f);
  const Output free = Expected(request);
  // Nothing that the output would have had, once; of 300 tokens only, the other time.
  v1::GenerateRequest banned = request;
  for (const uint32_t token : free.ids()) {
    bool known = false;
    for (const uint32_t other : banned.sampling().banned_tokens()) known = known || other == token;
    if (!known) banned.mutable_sampling()->add_banned_tokens(token);
  }
  v1::GenerateRequest allowed = request;
  for (uint32_t token = 200; token < 500; ++token) allowed.mutable_sampling()->add_allowed_tokens(token);
  // What it begins with would end it, at once and after some tokens.
  v1::GenerateRequest held_back = request;
  held_back.mutable_stopping()->set_min_tokens(16);
  for (size_t i = 0; i < 4; ++i) held_back.mutable_stopping()->add_stop_token_ids(free.ids()[i]);
  for (const v1::GenerateRequest* each : {&banned, &allowed, &held_back}) {
    const Output& expected = Expected(*each);
    for (size_t i = 0; i < expected.tokens.size(); ++i) {
      const uint32_t token = expected.tokens[i].token;
      for (const uint32_t no : each->sampling().banned_tokens()) EXPECT_NE(token, no);
      if (each == &allowed) {
        EXPECT_TRUE(token >= 200 && token < 500) << token;
      }
      if (each == &held_back && i < 16) {
        for (const uint32_t no : each->stopping().stop_token_ids()) EXPECT_NE(token, no);
      }
    }
    if (each == &held_back) {
      EXPECT_GE(expected.tokens.size(), 16u);
    }
    for (const char* verifier : {kLookahead, kEagle2, kChain}) {
      v1::GenerateRequest drafted = *each;
      drafted.set_model(verifier);
      ExpectSame(drafted, Generate(drafted));
      SetDrafter(drafted, kDrafters[0], "fixed");
      ExpectSame(drafted, Generate(drafted));
    }
  }
}

TEST_F(RequestOptionsEndToEndTest, APromptsLogProbabilitiesAreTheReferences) {
  for (const GoldenCase& golden_case : golden()) {
    v1::GenerateRequest request = Request(kPlain, golden_case.prompt, 2);
    request.mutable_output()->set_prompt_logprobs(3);
    const absl::StatusOr<RecordedOutput> plain = Generate(request);
    ASSERT_TRUE(plain.ok()) << plain.status();
    ASSERT_EQ(plain->prompt.size(), golden_case.prompt.size());
    double squares = 0.0;
    for (size_t i = 0; i < plain->prompt.size(); ++i) {
      const Output::Token& token = plain->prompt[i];
      EXPECT_EQ(token.token, golden_case.prompt[i]);
      ASSERT_EQ(token.top_logprobs.size(), i == 0 ? 0u : 3u);
      const double error = double{std::bit_cast<float>(token.logprob_bits)} - golden_case.prompt_logprobs[i];
      EXPECT_LE(std::abs(error), kLogprobTolerance) << golden_case.label << ", token " << i;
      squares += error * error;
    }
    // Errors of rounding do not lean to one side: together they are far smaller than the largest.
    EXPECT_LE(std::sqrt(squares / static_cast<double>(plain->prompt.size())), kLogprobTolerance / 4);
    // Law 1: to the bit, however the prefill is cut and whatever the cache has.
    ExpectSame(request, plain);
    for (const char* verifier : {kLookahead, kLookahead, kSynchronous, kChain}) {
      request.set_model(verifier);
      const absl::StatusOr<RecordedOutput> result = Generate(request);
      ExpectSame(request, result);
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->prompt, plain->prompt) << verifier;
      EXPECT_EQ(result->finished.usage().cached_prompt_tokens(), 0u);
    }
  }
}

// An edit: the output, which the request predicts but for some tokens, takes few rounds.
TEST_F(RequestOptionsEndToEndTest, AnEditOfWhatIsPredictedTakesFewRounds) {
  for (const float temperature : {0.0f, 0.8f}) {
    v1::GenerateRequest request = Request(kLookahead, Long().prompt, 96);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_temperature(temperature);
    const std::vector<uint32_t> output = Expected(request).ids();
    for (size_t i = 0; i < output.size(); ++i) {
      if (i % 24 == 12) continue;                                       // Left out,
      const uint32_t token = i % 24 == 20 ? output[i] ^ 1 : output[i];  // or another one.
      request.mutable_prediction()->mutable_token_ids()->add_ids(token);
    }
    request.mutable_speculation()->Clear();
    const absl::StatusOr<RecordedOutput> result = Generate(request);
    v1::GenerateRequest plain = request;
    plain.clear_prediction();
    ExpectSame(plain, result);
    ASSERT_TRUE(result.ok());
    const v1::SpeculationStats& stats = result->finished.speculation();
    EXPECT_LT(stats.rounds(), 48u) << stats.ShortDebugString();
    ASSERT_EQ(stats.by_source_size(), 1);
    EXPECT_EQ(stats.by_source(0).source(), v1::DRAFT_SOURCE_PREDICTION);
    // A second drafter beside it changes nothing.
    SetDrafter(request, kDrafters[0], "fixed");
    ExpectSame(plain, Generate(request));
    // Nor does one that is all wrong.
    for (uint32_t& token : *request.mutable_prediction()->mutable_token_ids()->mutable_ids()) token ^= 3;
    request.mutable_speculation()->Clear();
    ExpectSame(plain, Generate(request));
  }
}

}  // namespace
}  // namespace tandem::e2e

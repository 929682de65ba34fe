#include "common/speculation/sampling_parameters.h"

#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr int32_t kVocabSize = 100;
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

TEST(SamplingParametersTest, AcceptsDefaultsAndBothEndsOfEveryRange) {
  EXPECT_TRUE(Validate({}, kVocabSize).ok());
  SamplingParameters low = {.temperature = 0, .top_k = 0, .top_p = 1e-30f, .min_p = 0};
  low.repetition_penalty = 1e-30f;
  low.presence_penalty = low.frequency_penalty = -2;
  low.logit_bias = {{0, -1000.0f}};
  EXPECT_TRUE(Validate(low, kVocabSize).ok());
  SamplingParameters high = {.temperature = 100, .top_k = 0xffffffff, .top_p = 1, .min_p = 1};
  high.repetition_penalty = 10;
  high.presence_penalty = high.frequency_penalty = 2;
  high.logit_bias.assign(1024, {kVocabSize - 1, 1000.0f});
  EXPECT_TRUE(Validate(high, kVocabSize).ok());
}

struct Refusal {
  std::function<void(SamplingParameters&)> change;
  std::string message;
};

TEST(SamplingParametersTest, NamesFieldValueAndRange) {
  using P = SamplingParameters;
  const Refusal refusals[] = {
      {[](P& p) { p.temperature = -0.5f; }, "sampling.temperature: -0.5, expected [0, 100]"},
      {[](P& p) { p.temperature = 101; }, "sampling.temperature: 101, expected [0, 100]"},
      {[](P& p) { p.temperature = kNotANumber; }, "sampling.temperature: nan, expected [0, 100]"},
      {[](P& p) { p.top_p = 1.5f; }, "sampling.top_p: 1.5, expected (0, 1]"},
      {[](P& p) { p.top_p = 0; }, "sampling.top_p: 0, expected (0, 1]"},
      {[](P& p) { p.top_p = kNotANumber; }, "sampling.top_p: nan, expected (0, 1]"},
      {[](P& p) { p.min_p = -1; }, "sampling.min_p: -1, expected [0, 1]"},
      {[](P& p) { p.min_p = kInfinite; }, "sampling.min_p: inf, expected [0, 1]"},
      {[](P& p) { p.repetition_penalty = 0; }, "sampling.repetition_penalty: 0, expected (0, 10]"},
      {[](P& p) { p.repetition_penalty = 11; }, "sampling.repetition_penalty: 11, expected (0, 10]"},
      {[](P& p) { p.presence_penalty = 2.5f; }, "sampling.presence_penalty: 2.5, expected [-2, 2]"},
      {[](P& p) { p.frequency_penalty = -3; }, "sampling.frequency_penalty: -3, expected [-2, 2]"},
      {[](P& p) { p.frequency_penalty = kNotANumber; }, "sampling.frequency_penalty: nan, expected [-2, 2]"},
      {[](P& p) {
         p.logit_bias = {{-1, 0.0f}};
       },
       "sampling.logit_bias: token -1, expected [0, 100)"},
      {[](P& p) {
         p.logit_bias = {{100, 0.0f}};
       },
       "sampling.logit_bias: token 100, expected [0, 100)"},
      {[](P& p) {
         p.logit_bias = {{7, 1001.0f}};
       },
       "sampling.logit_bias[7]: 1001, expected [-1000, 1000]"},
      {[](P& p) {
         p.logit_bias = {{7, kNotANumber}};
       },
       "sampling.logit_bias[7]: nan, expected [-1000, 1000]"},
      {[](P& p) {
         p.logit_bias.assign(1025, {1, 0.0f});
       },
       "sampling.logit_bias: 1025 entries, expected at most 1024"},
      {[](P& p) {
         p.allowed_tokens = {5, 100};
       },
       "sampling.allowed_tokens: token 100, expected [0, 100)"},
      {[](P& p) {
         p.banned_tokens = {3, 7, 7};
       },
       "sampling.banned_tokens: token 7 twice, expected each once"},
      {[](P& p) { p.allowed_tokens.assign(4097, 1); },
       "sampling.allowed_tokens: 4097 tokens, expected at most 4096"},
      {[](P& p) {
         p.allowed_tokens = {3, 7};
         p.banned_tokens = {1, 3, 7};
       },
       "sampling.banned_tokens: every token of allowed_tokens, expected at least one token to remain"},
      {[](P& p) {
         for (TokenId token = 0; token < 100; ++token) p.banned_tokens.push_back(token);
       },
       "sampling.banned_tokens: every token of the vocabulary, expected at least one token to remain"},
  };
  for (const Refusal& refusal : refusals) {
    SamplingParameters sampling;
    refusal.change(sampling);
    const absl::Status status = Validate(sampling, kVocabSize);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.message;
    EXPECT_EQ(status.message(), refusal.message);
  }
}

}  // namespace
}  // namespace tandem

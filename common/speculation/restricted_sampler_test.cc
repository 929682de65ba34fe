#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "common/speculation/target_sampler.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// Allowed and banned tokens are as if the others' logits were -infinity: for the choice, for guesses, for the
// distribution and for log probabilities, on whatever else there is.
TEST(RestrictedSamplerTest, WhatIsNotAllowedIsAsIfItWereNotThere) {
  constexpr int32_t kVocab = 70;
  std::mt19937_64 random(3);
  for (const float temperature : {0.0f, 0.7f}) {
    for (const bool lists_allowed : {false, true}) {
      SamplingParameters restricted{.temperature = temperature,
                                    .top_k = 9,
                                    .top_p = 0.95f,
                                    .repetition_penalty = 1.2f,
                                    .logit_bias = {{3, 2.0f}, {40, 4.0f}},
                                    .seed = 5};
      SamplingParameters free = restricted;
      if (lists_allowed) {
        for (TokenId token = 0; token < kVocab; token += 3) restricted.allowed_tokens.push_back(token);
      }
      restricted.banned_tokens = {0, 31, 32, 33, 63, 64, 69};
      restricted.early_banned_tokens = {3, 9, 40};
      restricted.early_ban_end = 20;
      const TargetSampler allows(restricted, kVocab, {});
      for (uint32_t position = 15; position < 25; ++position) {
        std::vector<float> logits(kVocab);
        for (float& logit : logits) logit = static_cast<float>(random() % 1000) / 100.0f;
        std::vector<float> masked = logits;
        for (TokenId token = 0; token < kVocab; ++token) {
          const auto in = [token](const std::vector<TokenId>& list) {
            return std::find(list.begin(), list.end(), token) != list.end();
          };
          const bool allowed = (!lists_allowed || token % 3 == 0) && !in(restricted.banned_tokens) &&
                               (position >= 20 || !in(restricted.early_banned_tokens));
          EXPECT_EQ(allows.Allows(token, position), allowed) << token << " at " << position;
          if (!allowed) masked[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
        }
        const auto scratch = [](const std::vector<float>& values) { return std::vector<float>(values); };
        TargetSampler with(restricted, kVocab, {1, 2, 3});
        TargetSampler without(free, kVocab, {1, 2, 3});
        std::vector<float> a = scratch(logits), b = scratch(masked);
        const TokenChoice chosen = with.Choose(absl::MakeSpan(a), position, 4);
        const TokenChoice expected = without.Choose(absl::MakeSpan(b), position, 4);
        EXPECT_EQ(chosen.token, expected.token);
        EXPECT_EQ(chosen.logprob, expected.logprob);
        ASSERT_EQ(chosen.top_logprobs.size(), expected.top_logprobs.size());
        for (size_t i = 0; i < chosen.top_logprobs.size(); ++i)
          EXPECT_EQ(chosen.top_logprobs[i].token, expected.top_logprobs[i].token);
        a = scratch(logits), b = scratch(masked);
        EXPECT_EQ(with.Weights(absl::MakeSpan(a), position), without.Weights(absl::MakeSpan(b), position));
        a = scratch(logits), b = scratch(masked);
        const auto guesses = with.Guess(absl::MakeSpan(a), position, 3);
        const auto expected_guesses = without.Guess(absl::MakeSpan(b), position, 3);
        ASSERT_EQ(guesses.size(), expected_guesses.size());
        for (size_t i = 0; i < guesses.size(); ++i) EXPECT_EQ(guesses[i].token, expected_guesses[i].token);
        a = scratch(logits), b = scratch(masked);
        EXPECT_EQ(with.MostLikely(absl::MakeSpan(a), position, 3).size(),
                  without.MostLikely(absl::MakeSpan(b), position, 3).size());
      }
    }
  }
}

}  // namespace
}  // namespace tandem

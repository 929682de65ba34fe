#include "router/drafters/features/token_ngrams.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kFewTokens = 12;

TokenNgrams Train(const std::vector<TokenIds>& texts) {
  std::vector<absl::Span<const TokenId>> spans(texts.begin(), texts.end());
  return TokenNgrams::Train(spans, kFewTokens);
}

std::vector<TokenIds> RandomTexts(int count, int length) {
  std::mt19937 random(7);
  std::vector<TokenIds> texts(count);
  for (TokenIds& text : texts) {
    // Squares make low tokens frequent.
    for (int i = 0; i < length; ++i) text.push_back(static_cast<TokenId>(random() % 4 * (random() % 4)));
  }
  return texts;
}

TEST(TokenNgramsTest, EveryContextIsADistribution) {
  const TokenNgrams model = Train(RandomTexts(20, 15));
  for (TokenId before_last = -1; before_last < static_cast<TokenId>(kFewTokens); ++before_last) {
    for (TokenId last = -1; last < static_cast<TokenId>(kFewTokens); ++last) {
      double sum = 0;
      for (TokenId token = 0; token < static_cast<TokenId>(kFewTokens); ++token) {
        sum += std::exp(model.LogProbability(before_last, last, token));
      }
      EXPECT_NEAR(sum, 1.0, 1e-5) << before_last << " " << last;
    }
  }
}

// Counted by hand: a b a b c after two starts.
TEST(TokenNgramsTest, SmallTextByHand) {
  const TokenNgrams model = Train({{0, 1, 0, 1, 2}});
  // Each of the five trigrams occurs once: D3 = 1 / (1 + 0) -> 0.9. Bigrams by what stands before them: S a,
  // a b (S and b before it), b a, b c; once: 3, twice: 1, so D2 = 3 / 5. Unigrams by what stands before them:
  // a 2 (S, b), b 1, c 1; once: 2, twice: 1, D1 = 1 / 2.
  const double uniform = 0.5 * 3 / 4 / kFewTokens;
  const double unigram_a = (2 - 0.5) / 4 + uniform;
  EXPECT_NEAR(std::exp(model.LogProbability(9, 9, 0)), unigram_a, 1e-6);
  EXPECT_NEAR(std::exp(model.LogProbability(9, 9, 7)), uniform, 1e-6);
  // After b stand a and c, once each.
  const double bigram_ba = (1 - 0.6 + 0.6 * 2 * unigram_a) / 2;
  EXPECT_NEAR(std::exp(model.LogProbability(9, 1, 0)), bigram_ba, 1e-6);
  // After a b stand a and c, once each.
  EXPECT_NEAR(std::exp(model.LogProbability(0, 1, 0)), (1 - 0.9 + 0.9 * 2 * bigram_ba) / 2, 1e-6);
}

TEST(TokenNgramsTest, LikesWhatItHasSeen) {
  const TokenNgrams model = Train({{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 7}});
  EXPECT_LT(model.NatsPerToken({1, 2, 3, 4, 5}), 0.5 * model.NatsPerToken({5, 4, 3, 2, 1}));
  EXPECT_EQ(model.NatsPerToken({}), 0.0);
}

TEST(TokenNgramsTest, UntrainedIsUniform) {
  EXPECT_NEAR(TokenNgrams(kFewTokens).NatsPerToken({3, 1, 11}), std::log(kFewTokens), 1e-6);
  EXPECT_NEAR(Train({}).NatsPerToken({3, 1, 11}), std::log(kFewTokens), 1e-6);
}

TEST(TokenNgramsTest, TokensBeyondThePackingAreTakenAsOne) {
  const TokenId large = std::numeric_limits<TokenId>::max();
  const TokenNgrams model = Train({{large, 1, large, 1}});
  EXPECT_EQ(model.LogProbability(0, 1, large), model.LogProbability(0, 1, large - 1));
}

TEST(TokenNgramsTest, SavedAndLoadedIsTheSame) {
  const TokenNgrams model = Train(RandomTexts(10, 30));
  v1::TokenNgramsState state;
  model.Save(&state);
  const absl::StatusOr<TokenNgrams> loaded = TokenNgrams::Load(state);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (TokenId token = 0; token < static_cast<TokenId>(kFewTokens); ++token) {
    EXPECT_EQ(loaded->LogProbability(1, 2, token), model.LogProbability(1, 2, token));
    EXPECT_EQ(loaded->LogProbability(-1, -1, token), model.LogProbability(-1, -1, token));
  }
}

TEST(TokenNgramsTest, StatesThatCannotBeAreRefused) {
  v1::TokenNgramsState good;
  Train(RandomTexts(3, 10)).Save(&good);
  const auto error = [](const v1::TokenNgramsState& state) {
    const absl::Status status = TokenNgrams::Load(state).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  v1::TokenNgramsState state = good;
  state.add_trigrams(1);
  EXPECT_THAT(error(state), HasSubstr("ngrams.trigrams"));
  state = good;
  state.set_unigrams(1, state.unigrams(0));
  EXPECT_THAT(error(state), HasSubstr("ngrams.unigrams[1]"));
  state = good;
  state.set_bigrams(state.bigrams_size() - 1, ~uint64_t{0});
  EXPECT_THAT(error(state), HasSubstr("ngrams.bigrams"));
  state = good;
  state.set_trigram_log_probs(2, std::nanf(""));
  EXPECT_THAT(error(state), HasSubstr("ngrams.trigram_log_probs[2]"));
  state = good;
  state.set_unigram_backoffs(0, 5.0f);
  EXPECT_THAT(error(state), HasSubstr("ngrams.unigram_backoffs[0]"));
  state = good;
  state.mutable_bigram_backoffs()->RemoveLast();
  EXPECT_THAT(error(state), HasSubstr("backoffs"));
  state = good;
  state.set_unknown(std::nanf(""));
  EXPECT_THAT(error(state), HasSubstr("ngrams.unknown"));
}

}  // namespace
}  // namespace tandem::router

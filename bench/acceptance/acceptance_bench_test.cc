#include "bench/acceptance/acceptance_bench.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "bench/acceptance/token_nats.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kModels = absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/");
const std::string kPrompts = absl::StrCat(TANDEM_SOURCE_DIR, "/bench/serve/prompts/");

// Prompts of random tokens. What each token costs the drafter is its number modulo 7, and acceptance falls
// with the mean of that, plus noise of `noise` that depends on the prompt alone and is part of its
// perplexity.
AcceptanceData MadeUp(double noise) {
  std::mt19937 random(3);
  std::normal_distribution<double> own(0.0, 1.0);
  AcceptanceData data{.drafters = {"made up"}, .vocab_size = 500};
  for (int i = 0; i < 120; ++i) {
    ScoredPrompt prompt{.dataset = "random", .tokens = {}, .scores = {}};
    // Each prompt likes other tokens, so that their means differ.
    const uint32_t favourite = random() % 7;
    for (int t = 0; t < 60; ++t) {
      const auto any = static_cast<TokenId>(random() % 497);
      prompt.tokens.push_back(random() % 2 == 0 ? static_cast<TokenId>(any / 7 * 7 + favourite) : any);
    }
    const double shift = noise * own(random);
    ScoredPrompt::Score score{.output_tokens = 10'000};
    for (size_t t = 1; t < prompt.tokens.size(); ++t) {
      score.prompt_nats.push_back(static_cast<float>(prompt.tokens[t] % 7 + shift));
    }
    score.acceptance = 0.8 - 0.1 * (score.NatsPerToken() - 3.0);
    prompt.scores.push_back(score);
    data.prompts.push_back(prompt);
  }
  return data;
}

double ErrorOf(const PredictionError& error, PerplexityKind kind) {
  return error.root_mean_square[static_cast<size_t>(kind)];
}

TEST(PredictionErrorTest, TellsThePerplexitiesApart) {
  const auto known = MeasurePredictionErrors(MadeUp(/*noise=*/0.0), {.repeats = 2});
  ASSERT_EQ(known.size(), 1u);
  EXPECT_EQ(known[0].drafter, "made up");
  // What tokens cost is all there is to know, and was learned from other prompts.
  EXPECT_LT(ErrorOf(known[0], PerplexityKind::kReal), 0.25 * ErrorOf(known[0], PerplexityKind::kNone));
  EXPECT_LT(ErrorOf(known[0], PerplexityKind::kTokens), 0.6 * ErrorOf(known[0], PerplexityKind::kNone));
  // What only the drafter can know of a prompt helps only where it is asked.
  const auto own = MeasurePredictionErrors(MadeUp(/*noise=*/2.0), {.repeats = 2});
  EXPECT_LT(ErrorOf(own[0], PerplexityKind::kReal), 0.5 * ErrorOf(own[0], PerplexityKind::kTokens));
  EXPECT_GT(ErrorOf(own[0], PerplexityKind::kTrigrams), 0.8 * ErrorOf(own[0], PerplexityKind::kNone));
}

TEST(PredictionErrorTest, IsTheSameForTheSameSeed) {
  const AcceptanceData data = MadeUp(1.0);
  EXPECT_EQ(MeasurePredictionErrors(data, {.repeats = 1})[0].root_mean_square,
            MeasurePredictionErrors(data, {.repeats = 1})[0].root_mean_square);
  EXPECT_NE(MeasurePredictionErrors(data, {.repeats = 1, .seed = 2})[0].root_mean_square,
            MeasurePredictionErrors(data, {.repeats = 1})[0].root_mean_square);
}

TEST(TokenNatsTest, IsTheMeanOfWhatTokensCost) {
  TokenNats nats(10);
  EXPECT_EQ(nats.NatsPerToken(TokenIds{1, 2}), 0.0);
  // The first token's cost is not known. Mean of all: 3; (2 + 5 * 3) / 6 and (4 + 5 * 3) / 6.
  nats.Observe(TokenIds{7, 1, 2}, std::vector<float>{2.0F, 4.0F});
  EXPECT_DOUBLE_EQ(nats.NatsPerToken(TokenIds{1}), 17.0 / 6.0);
  EXPECT_DOUBLE_EQ(nats.NatsPerToken(TokenIds{1, 2}), 3.0);
  EXPECT_DOUBLE_EQ(nats.NatsPerToken(TokenIds{7}), 3.0);
}

TEST(AcceptanceDataTest, ScoresTheDemoModels) {
  const AcceptanceDataOptions options{
      .target = kModels + "tandem-target-15m",
      .drafters = {kModels + "tandem-draft-general-1m", kModels + "tandem-target-15m"},
      .prompts = {"story=" + kPrompts + "story.txt", "maths=" + kPrompts + "maths.jsonl"},
      .chat = {"maths"},
      .num_prompts = 2,
      .max_prompt_tokens = 24,
      .max_tokens = 16};
  const auto data = MeasureAcceptance(options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->drafters, ElementsAre("tandem-draft-general-1m", "tandem-target-15m"));
  ASSERT_EQ(data->prompts.size(), 4u);
  for (const ScoredPrompt& prompt : data->prompts) {
    ASSERT_EQ(prompt.scores.size(), 2u);
    for (const ScoredPrompt::Score& score : prompt.scores) {
      EXPECT_EQ(score.prompt_nats.size(), prompt.tokens.size() - 1);
      EXPECT_EQ(score.output_tokens, 16u);
      EXPECT_GT(score.NatsPerToken(), 0.0);
      EXPECT_LT(score.NatsPerToken(), std::log(static_cast<double>(data->vocab_size)));
    }
    EXPECT_EQ(prompt.scores[1].acceptance, 1.0) << "the target guesses itself";
    EXPECT_LT(prompt.scores[1].NatsPerToken(), prompt.scores[0].NatsPerToken())
        << "the larger model knows more";
  }
  EXPECT_THAT(CheckEnoughPrompts(*data, {.folds = 5}).message(),
              HasSubstr("4 prompts, expected at least 10"));
}

TEST(AcceptanceDataTest, SaysWhatIsWrong) {
  AcceptanceDataOptions options{.target = kModels + "tandem-target-15m",
                                .drafters = {kModels + "tandem-draft-general-1m"},
                                .prompts = {"story=no-such-file.txt"}};
  EXPECT_EQ(MeasureAcceptance(options).status().code(), absl::StatusCode::kNotFound);
  options.prompts = {"story=" + kPrompts + "story.txt"};
  options.num_prompts = 1;
  options.max_prompt_tokens = 8;
  options.max_tokens = 4;
  options.drafters = {kModels + "no-such-model"};
  EXPECT_THAT(std::string(MeasureAcceptance(options).status().message()), HasSubstr("no-such-model"));
}

}  // namespace
}  // namespace tandem::bench

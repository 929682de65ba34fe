#include "bench/rounds/guesses_bench.h"

#include <algorithm>

#include "common/testing/fake_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::Ge;
using ::testing::Le;
using ::testing::SizeIs;

constexpr uint32_t kTokens = 200;

TEST(GuessesTest, TheTargetAloneChoosesAsItsLogitsSay) {
  FakeEngine target({});
  TokenIds text = {3, 1, 4, 1, 5};
  const absl::StatusOr<TokenIds> output = GenerateAlone(&target, text, {.temperature = 0.0f}, 20);
  ASSERT_TRUE(output.ok()) << output.status();
  ASSERT_THAT(*output, SizeIs(20));
  for (const TokenId token : *output) {
    EXPECT_EQ(token, target.ReferenceChoice(text));
    text.push_back(token);
  }
}

TEST(GuessesTest, ADrafterThatIsTheTargetIsAlwaysRight) {
  FakeEngine target({});
  FakeEngine twin({});
  const TokenIds prompt = {1, 2, 3};
  for (const float temperature : {0.0f, 0.9f}) {
    const SamplingParameters sampling{.temperature = temperature, .seed = 7};
    const absl::StatusOr<TokenIds> output = GenerateAlone(&target, prompt, sampling, kTokens);
    ASSERT_TRUE(output.ok()) << output.status();
    const auto guesses = GuessAlong(&twin, prompt, *output, sampling);
    ASSERT_TRUE(guesses.ok()) << guesses.status();
    ASSERT_THAT(*guesses, SizeIs(kTokens));
    EXPECT_THAT(*guesses, Each(Field(&GuessedPosition::right, 1u))) << temperature;
    // Guesses that trail by far may be missing.
    EXPECT_THAT(*guesses,
                Each(Field(&GuessedPosition::probabilities, SizeIs(AllOf(Ge(1u), Le(kMostGuessed))))));
  }
}

TEST(GuessesTest, OtherDraftersAreRightAsOftenAsTheyAgree) {
  FakeEngine target({.seed = 1});
  FakeEngine drafter({.seed = 2, .agreement = 0.6, .agree_with_seed = 1});
  const TokenIds prompt = {9, 8, 7};
  const auto output = GenerateAlone(&target, prompt, {.temperature = 0.0f}, kTokens);
  ASSERT_TRUE(output.ok()) << output.status();
  const auto guesses = GuessAlong(&drafter, prompt, *output, {.temperature = 0.0f});
  ASSERT_TRUE(guesses.ok()) << guesses.status();
  const auto right = std::count_if(guesses->begin(), guesses->end(),
                                   [](const GuessedPosition& position) { return position.right == 1; });
  EXPECT_NEAR(static_cast<double>(right) / kTokens, 0.6, 0.12);
  for (const GuessedPosition& position : *guesses) {
    EXPECT_TRUE(std::is_sorted(position.probabilities.rbegin(), position.probabilities.rend()));
  }
}

}  // namespace
}  // namespace tandem::bench

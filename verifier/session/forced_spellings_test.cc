#include "verifier/session/forced_spellings.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> Tokens(const std::vector<ForcedSpellings::Guess>& guesses) {
  std::vector<TokenId> tokens;
  for (const ForcedSpellings::Guess& guess : guesses) tokens.push_back(guess.token);
  return tokens;
}

TEST(ForcedSpellingsTest, WhatCameMostOftenComesFirst) {
  ForcedSpellings spellings;
  EXPECT_THAT(spellings.Likely(0, "\"name\": \""), IsEmpty());
  for (int i = 0; i < 3; ++i) spellings.Learn(0, "\"name\": \"", 7);
  spellings.Learn(0, "\"name\": \"", 5);
  const std::vector<ForcedSpellings::Guess> guesses = spellings.Likely(0, "\"name\": \"");
  EXPECT_THAT(Tokens(guesses), ElementsAre(7, 5));
  EXPECT_GT(guesses[0].score, 0.7f);
  EXPECT_LT(guesses[0].score + guesses[1].score, 1.0f);
  EXPECT_THAT(spellings.Likely(0, "name\": \""), IsEmpty()) << "what is left of them is another text";
}

TEST(ForcedSpellingsTest, SaltsAreApart) {
  ForcedSpellings spellings;
  spellings.Learn(1, "abc", 7);
  EXPECT_THAT(spellings.Likely(2, "abc"), IsEmpty());
  EXPECT_THAT(Tokens(spellings.Likely(1, "abc")), ElementsAre(7));
}

TEST(ForcedSpellingsTest, AChangeShows) {
  ForcedSpellings spellings;
  for (int i = 0; i < 1000; ++i) spellings.Learn(0, "abc", 7);
  for (int i = 0; i < 100; ++i) spellings.Learn(0, "abc", 8);
  EXPECT_THAT(Tokens(spellings.Likely(0, "abc")), ElementsAre(8, 7));
}

TEST(ForcedSpellingsTest, OfManyTokensTheRareGo) {
  ForcedSpellings spellings;
  for (int i = 0; i < 10; ++i) spellings.Learn(0, "abc", 1000);
  for (TokenId token = 0; token < 20; ++token) spellings.Learn(0, "abc", token);
  const std::vector<ForcedSpellings::Guess> guesses = spellings.Likely(0, "abc");
  EXPECT_EQ(guesses.size(), 4u);
  EXPECT_EQ(guesses[0].token, 1000);
  float sum = 0.0f;
  for (const ForcedSpellings::Guess& guess : guesses) sum += guess.score;
  EXPECT_LT(sum, 1.0f);
}

TEST(ForcedSpellingsTest, OfManyTextsTheOldGo) {
  ForcedSpellings spellings({.max_texts = 10, .max_text_bytes = 8});
  for (int i = 0; i < 100; ++i) {
    spellings.Learn(0, absl::StrCat("text", i), i);
    spellings.Learn(0, "kept", 1);
  }
  EXPECT_EQ(spellings.num_texts(), 10u);
  EXPECT_THAT(spellings.Likely(0, "text3"), IsEmpty());
  EXPECT_THAT(Tokens(spellings.Likely(0, "text99")), ElementsAre(99));
  EXPECT_THAT(Tokens(spellings.Likely(0, "kept")), ElementsAre(1));
  spellings.Learn(0, "a long text, of which a beginning is kept", 5);
  EXPECT_THAT(Tokens(spellings.Likely(0, "a long text that goes on in another way")), ElementsAre(5));
}

}  // namespace
}  // namespace tandem

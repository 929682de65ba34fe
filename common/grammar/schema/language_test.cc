#include "common/grammar/schema/language.h"

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "common/grammar/schema/pattern.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

Language LanguageOf(absl::string_view pattern) {
  WorkBudget budget(100'000'000);
  const absl::StatusOr<Pattern> parsed = Pattern::Parse(pattern);
  EXPECT_TRUE(parsed.ok()) << pattern << parsed.status();
  const absl::StatusOr<Language> language = parsed->ToLanguage(&budget);
  EXPECT_TRUE(language.ok()) << pattern << language.status();
  return language.value();
}

std::string RandomPattern(std::mt19937_64& random, int depth = 0) {
  switch (random() % (depth > 3 ? 3 : 9)) {
    case 0:
      return "a";
    case 1:
      return "[b-d]";
    case 2:
      return "[^ab]";
    case 3:
      return "(" + RandomPattern(random, depth + 1) + ")*";
    case 4:
      return "(" + RandomPattern(random, depth + 1) + "){1,2}";
    case 5:
      return "(" + RandomPattern(random, depth + 1) + "|" + RandomPattern(random, depth + 1) + ")";
    case 6:
      return "(^" + RandomPattern(random, depth + 1) + "|" + RandomPattern(random, depth + 1) + "$)";
    default:
      return RandomPattern(random, depth + 1) + RandomPattern(random, depth + 1);
  }
}

std::string RandomText(std::mt19937_64& random) {
  std::string text(random() % 6, 'a');
  for (char& c : text) c = "abcde"[random() % 5];
  return text;
}

TEST(LanguageTest, IsWhatThePatternMatches) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::string pattern = RandomPattern(random);
    const Language language = LanguageOf(pattern);
    const std::regex regex(pattern);
    for (int k = 0; k < 30; ++k) {
      const std::string text = RandomText(random);
      EXPECT_EQ(language.Accepts(text), std::regex_search(text, regex)) << pattern << " in " << text;
    }
  }
}

TEST(LanguageTest, CombinesLikeSets) {
  std::mt19937_64 random(6);
  WorkBudget budget(1'000'000'000);
  for (int i = 0; i < 200; ++i) {
    const Language left = LanguageOf(RandomPattern(random));
    const Language right = LanguageOf(RandomPattern(random));
    const Language both = Language::Intersect(left, right, &budget).value();
    const Language either = Language::Unite(left, right, &budget).value();
    const Language rest = Language::Subtract(left, right, &budget).value();
    for (int k = 0; k < 20; ++k) {
      const std::string text = RandomText(random);
      const bool in_left = left.Accepts(text);
      const bool in_right = right.Accepts(text);
      EXPECT_EQ(both.Accepts(text), in_left && in_right);
      EXPECT_EQ(either.Accepts(text), in_left || in_right);
      EXPECT_EQ(rest.Accepts(text), in_left && !in_right);
    }
    EXPECT_TRUE(Language::Subtract(left, left, &budget)->IsEmpty());
  }
}

TEST(LanguageTest, KnowsItsTextsAndLengths) {
  WorkBudget budget(100'000'000);
  const Language few = LanguageOf("^(a|bc|é{2})$");
  EXPECT_EQ(few.TextsUpTo(3), (std::vector<std::string>{"a", "bc", "éé"}));
  EXPECT_EQ(few.TextsUpTo(2), std::nullopt);
  EXPECT_EQ(few.Lengths(), std::pair(size_t{1}, size_t{2}));
  EXPECT_EQ(LanguageOf("^a{3}b*$").Lengths(), std::pair(size_t{3}, kNoLimit));
  EXPECT_EQ(LanguageOf("^a*$").TextsUpTo(1000), std::nullopt);
  EXPECT_EQ(Language().TextsUpTo(0), std::vector<std::string>());
  EXPECT_TRUE(LanguageOf("").IsAll());
  EXPECT_FALSE(LanguageOf(".").IsAll());
  EXPECT_TRUE(LanguageOf("^[^\\s\\S]$").IsEmpty());
  const Language runs = Language::Runs(Complement({{'x', 'x'}}), 2, 3, &budget).value();
  EXPECT_TRUE(runs.Accepts("é😀"));
  EXPECT_FALSE(runs.Accepts("é"));
  EXPECT_FALSE(runs.Accepts("éx"));
  EXPECT_FALSE(runs.Accepts("éééé"));
}

TEST(LanguageTest, LeavesOutListsExactlyOrByTheirBeginnings) {
  WorkBudget budget(100'000'000);
  const Language exact = Language::AtLeast({"name", "na", "id"}, 32, &budget).value();
  EXPECT_EQ(exact.TextsUpTo(5), (std::vector<std::string>{"id", "na", "name"}));
  const Language cut = Language::AtLeast({"name", "na", "identity", "x"}, 6, &budget).value();
  for (const char* text : {"name", "na", "nation", "id", "idol", "identity", "x"})
    EXPECT_TRUE(cut.Accepts(text)) << text;
  for (const char* text : {"", "n", "i", "xy", "y", "no"}) EXPECT_FALSE(cut.Accepts(text)) << text;
  const Language first = Language::AtLeast({"name", "other"}, 1, &budget).value();
  EXPECT_TRUE(first.Accepts("n") && first.Accepts("on") && !first.Accepts("") && !first.Accepts("x"));
  EXPECT_TRUE(Language::AtLeast({}, 32, &budget)->IsEmpty());
  EXPECT_EQ(Language::AtLeast({""}, 32, &budget)->TextsUpTo(2), std::vector<std::string>{""});
}

TEST(LanguageTest, SpendsNoMoreThanItMay) {
  WorkBudget budget(1'000'000);
  const absl::StatusOr<Language> exponential = Pattern::Parse("[ab]*a[ab]{30}$")->ToLanguage(&budget);
  EXPECT_TRUE(absl::IsResourceExhausted(exponential.status())) << exponential.status();
}

TEST(PatternTest, KnowsRuns) {
  const auto run = [](absl::string_view pattern) { return Pattern::Parse(pattern)->AsRun(); };
  EXPECT_EQ(run("^[a-c]{2,5}$")->characters, (CodeRanges{{'a', 'c'}}));
  EXPECT_EQ(run("^[a-c]{2,5}$")->most, 5u);
  EXPECT_EQ(run("^.*$")->most, kNoLimit);
  EXPECT_EQ(run("^x$")->least, 1u);
  EXPECT_FALSE(run("^[a-c]{2,5}").has_value());
  EXPECT_FALSE(run("^(ab)*$").has_value());
}

TEST(PatternTest, SaysWhereItIsWrong) {
  const auto error = [](absl::string_view pattern) {
    return std::string(Pattern::Parse(pattern).status().message());
  };
  EXPECT_THAT(error("ab*+"), HasSubstr("byte 3: nothing to repeat"));
  EXPECT_THAT(error("a{2,1}"), HasSubstr("the least number"));
  EXPECT_THAT(error("a{1"), HasSubstr("byte 3: expected }"));
  EXPECT_THAT(error("[a"), HasSubstr("byte 2: expected ]"));
  EXPECT_THAT(error("\\"), HasSubstr("expected a character after"));
  EXPECT_THAT(error("\\ud800"), HasSubstr("half of a surrogate pair"));
  EXPECT_THAT(error("^(?=a)b|c"), HasSubstr("expected brackets"));
  EXPECT_THAT(error("(?i)a"), HasSubstr("flags not at all"));
  EXPECT_THAT(error(std::string(200, '(')), HasSubstr("more than 100 nested groups"));
}

TEST(Utf8Test, CodePointsComeAndGo) {
  for (const uint32_t c :
       {0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    AppendCodePoint(c, &text);
    text += "x";
    absl::string_view rest = text;
    EXPECT_EQ(TakeCodePoint(&rest), c);
    EXPECT_EQ(rest, "x");
  }
  absl::string_view broken = "\xff\xc3";
  EXPECT_EQ(TakeCodePoint(&broken), 0xfffdu);
  EXPECT_EQ(TakeCodePoint(&broken), 0xfffdu);
  EXPECT_TRUE(broken.empty());
}

}  // namespace
}  // namespace tandem

#include "common/grammar/schema/regex_grammar.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What follows from the root.
std::string Root(absl::string_view regex) {
  const absl::StatusOr<std::string> grammar = GrammarOfRegex(regex);
  EXPECT_TRUE(grammar.ok()) << regex << ": " << grammar.status();
  std::string text = grammar.value_or("root ::= \n");
  EXPECT_THAT(text, StartsWith("root ::= "));
  return text.substr(9, text.size() - 10);
}

std::string WhyNot(absl::string_view regex) {
  const absl::StatusOr<std::string> grammar = GrammarOfRegex(regex);
  EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << regex << grammar.value_or("");
  return std::string(grammar.status().message());
}

TEST(RegexGrammarTest, ExpressionsBecomeGrammars) {
  EXPECT_EQ(Root("abc"), R"("abc")");
  EXPECT_EQ(Root(""), R"("")");
  EXPECT_EQ(Root("a|b|"), R"(("a" | "b" | ""))");
  EXPECT_EQ(Root("(ab)+c?"), R"(("ab")+ "c"?)");
  EXPECT_EQ(Root("a{2}[b-d]{2,}(a|b){0,3}x{0}"), R"("a"{2,2} [b-d]{2,} [a-b]{0,3} "")");
  // Single characters are a class, in which no two ways lead on.
  EXPECT_EQ(Root("(.|\\n|\\r){1,9}"), Root("[^\\u2028\\u2029]{1,9}"));
  EXPECT_EQ(Root("(a|[b-d]|xy)"), R"(("a" | [b-d] | "xy"))");
  EXPECT_EQ(Root("(a*)*"), R"(("a"*)*)");
  EXPECT_EQ(Root("()*"), R"("")");
  EXPECT_EQ(Root("[^\\s\\S]|a"), R"("a")");
  EXPECT_EQ(Root("[^\\s\\S]|ab"), R"(([^\u0000-\U0010ffff] | "ab"))");
  EXPECT_EQ(Root("(?P<first_1>a)(?<b2>b)(?:c)"), R"("abc")");
  EXPECT_EQ(Root("a\\u{10ffff}*b"), R"("a" [\U0010ffff]* "b")");
}

// Whatever stands for itself in other engines, as re.escape of Python writes it.
TEST(RegexGrammarTest, EscapedPunctuationStandsForItself) {
  for (const char c : std::string(" !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")) {
    EXPECT_EQ(Root(absl::StrCat("a\\", std::string(1, c))),
              c == '"'    ? R"("a\u0022")"
              : c == '\\' ? R"("a\u005c")"
                          : absl::StrCat("\"a", std::string(1, c), "\""));
  }
}

TEST(RegexGrammarTest, AnchorsStandWhereTextsBeginAndEnd) {
  EXPECT_EQ(Root("^a$"), R"("a")");
  EXPECT_EQ(Root("^a$|^b$"), R"(("a" | "b"))");
  EXPECT_EQ(Root("^(^a|^(b$|c))$"), R"(("a" | ("b" | "c")))");
  EXPECT_EQ(Root("^$"), R"("")");
  EXPECT_EQ(Root("$|a"), R"(("" | "a"))");
  for (const char* regex : {"a^b", "a$b", "(^a)*", "a(^b|c)", "(a|b$)c"})
    EXPECT_THAT(WhyNot(regex), HasSubstr("expected ^ at the beginning")) << regex;
}

TEST(RegexGrammarTest, WhatStandsInFrontMayBeLookedAheadFor) {
  // Twice, once with b in front.
  EXPECT_EQ(Root("^(?=.*b)[ab]{1}$"), "r1\nr1 ::= \"b\"");
  EXPECT_EQ(Root("(?!a)[ab]"), "r1\nr1 ::= \"b\"");
  EXPECT_THAT(WhyNot("a(?=b)"), HasSubstr("byte 3: look around"));
  EXPECT_THAT(WhyNot("(?=a)b"), HasSubstr("no text matches"));
}

// Each letter that has been seen or not doubles the states, in each of which nearly any token may follow.
TEST(RegexGrammarTest, LookAheadsThatMultiplyAreRefusedBeforeTheirMasksAreMade) {
  const auto each_of = [](absl::string_view letters) {
    std::string regex = "^";
    for (const char c : letters) absl::StrAppend(&regex, "(?=.*", std::string(1, c), ")");
    return regex + ".*$";
  };
  EXPECT_THAT(WhyNot(each_of("abcdefghijk")), HasSubstr("too large: in more than 1024 states"));
  EXPECT_THAT(WhyNot(each_of("abcdefghijklmnopqrst")), HasSubstr("too large"));
  EXPECT_TRUE(GrammarOfRegex(each_of("abcdefg")).ok());
  // Those that say a few letters multiply nothing.
  std::string words = "^";
  for (char c = 'a'; c <= 'z'; ++c) absl::StrAppend(&words, "(?!", std::string(3, c), ")");
  EXPECT_TRUE(GrammarOfRegex(words + "[a-z]*$").ok());
}

TEST(RegexGrammarTest, SaysWhatMatchesNothing) {
  for (const char* regex : {"[^\\s\\S]", "a[]b", "a([^\\w\\W]|[]){2}", "[]+"})
    EXPECT_EQ(WhyNot(regex), "no text matches") << regex;
  EXPECT_EQ(Root("a[]*"), R"("a" [^\u0000-\U0010ffff]*)");
}

TEST(RegexGrammarTest, ADashBesideAClassStandsForItself) {
  EXPECT_EQ(Root("[\\d-.]"), "[\\u002d-\\u002e0-9]");
  EXPECT_EQ(Root("[a-\\d]"), "[\\u002d0-9a]");
  EXPECT_EQ(Root("[\\d-x-z]"), "[\\u002d0-9xz]");
  EXPECT_EQ(Root("[\\d-\\d]"), "[\\u002d0-9]");
  EXPECT_EQ(Root("[\\d-]"), "[\\u002d0-9]");
  EXPECT_THAT(WhyNot("[z-a]"), HasSubstr("byte 4: expected a range"));
}

TEST(RegexGrammarTest, RefusesByPlace) {
  for (const char* regex :
       {"(a)\\1", "\\bab", "\\p{L}", "(?i)a", "a**", "[b-a]", "(", "a)", "a{3,2}", "\\Aa"})
    EXPECT_THAT(WhyNot(regex), StartsWith("byte ")) << regex;
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "\\S";
  EXPECT_THAT(WhyNot(many), HasSubstr("too large"));
}

}  // namespace
}  // namespace tandem

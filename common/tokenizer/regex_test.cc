#include "common/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tandem {
namespace {

using testing::HasSubstr;

// What no pattern of PCRE2 means is refused by its name, not matched otherwise.
TEST(RegexTest, RefusesByName) {
  const struct {
    const char* pattern;
    const char* message;
  } kCases[] = {
      {"(a)\\1", "\\1"},
      {"(?<n>a)\\k<n>", "\\k"},
      {"\\X", "\\X"},
      {"a\\Kb", "\\K"},
      {"\\xE4\\xB8", "raw bytes"},
      {"(?x) a", "the option x"},
      {"a(?i)b", "options in the middle of a group"},
      {"(?i)\\p{Lu}", "the property 'lu' without regard to case"},
      {"(?i)ss", "one letter together"},
      {"(?~a)", "'(?~"},
      {"(*FAIL)", "'(*'"},
      {"\\p{Kawi}", "unknown property"},
      {"\\p{Cyrillic}", "the script 'Cyrillic'"},
      {"\\p{Latin}", "the script 'Latin'"},
      {"\\p{In_Arrows}", "unknown property"},
      {"\\p{Age=6.0}", "the character property 'Age=6.0'"},
      {"[a[^b]]", "a negated class united with other members"},
      {"[a-\\d]", "a set as the end of a range"},
      {"[]a]", "']' as the first member"},
      {"a{3,2}", "an interval whose bounds fall"},
      {"(?<=a|bc+)d", "lookbehind assertion is not fixed length"},
      {"\xF0\x9E\x80\xB0", "newer than PCRE2's tables"},
  };
  for (const auto& test_case : kCases) {
    const absl::Status status = Regex::Compile(test_case.pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << test_case.pattern << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test_case.message)) << test_case.pattern;
  }
}

TEST(RegexTest, RefusesMalformedPatterns) {
  for (const char* pattern :
       {"(a", "a)", "[a", "[b-a]", "*a", "a|+", "\\", "\\x{110000}", "\\u12", "\\p{L", "(?i", "\xff"}) {
    EXPECT_EQ(Regex::Compile(pattern).status().code(), absl::StatusCode::kInvalidArgument) << pattern;
  }
}

// Random patterns must not crash the translation, whatever becomes of them.
TEST(RegexTest, SurvivesRandomPatterns) {
  const std::string kPieces[] = {
      "a", "[", "]", "^",    "-",   "&&",  "\\",        "p{L}", "{",   "}",   "2",        ",",  "(", ")", "?",
      "*", "+", "|", "(?i)", "(?:", "(?<", "[:alpha:]", "\\w",  "\\S", "\\b", "\xC3\xA9", "x{", "u", "$"};
  std::mt19937 random(5);
  size_t num_compiled = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string pattern;
    for (size_t j = 1 + random() % 9; j > 0; --j) pattern += kPieces[random() % std::size(kPieces)];
    const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
    if (!regex.ok()) continue;
    ++num_compiled;
    size_t covered = 0;
    const absl::Status status = regex->ForEachMatch("a2 \xC3\xA9[]-^", [&](size_t begin, size_t end) {
      EXPECT_LE(covered, begin);
      covered = end;
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << pattern << ": " << status;
  }
  EXPECT_GT(num_compiled, 200);
}

// Each beginning of a match may be within the limit while all together take minutes.
TEST(RegexTest, BoundsTheStepsOfAWholeText) {
  const absl::StatusOr<Regex> regex = Regex::Compile("(a|a|aa)+$");
  ASSERT_TRUE(regex.ok()) << regex.status();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::string(16, 'a') + "b";
  const absl::Time start = absl::Now();
  const absl::Status status = regex->ForEachMatch(text, [](size_t, size_t) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  // What costs much at a few places is still matched, and what follows is found.
  const absl::StatusOr<Regex> few = Regex::Compile("(a|a|aa)+$|b+");
  ASSERT_TRUE(few.ok()) << few.status();
  std::vector<size_t> ends;
  const absl::Status found = few->ForEachMatch(std::string(12, 'a') + "bbxaa", [&](size_t, size_t end) {
    ends.push_back(end);
    return absl::OkStatus();
  });
  EXPECT_TRUE(found.ok()) << found;
  EXPECT_EQ(ends, (std::vector<size_t>{14, 17}));
}

}  // namespace
}  // namespace tandem

#include "common/grammar/lark_string.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/token_mask.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Form = ConstraintSource::Form;
using ::testing::HasSubstr;

constexpr TokenId kLarkEnd = 256;

// What Codex describes its tool apply_patch with, in short: lines, and texts that JSON escapes.
constexpr char kPatch[] = R"(
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: "*** Add File: " filename LF add_line+
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
)";

class LarkStringTest : public ::testing::Test {
 protected:
  LarkStringTest() {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.emplace_back();
    vocabulary_ = GrammarVocabulary::Create(std::move(bytes), {kLarkEnd}).value();
  }
  void Begin(const ConstraintSource& source) {
    const absl::StatusOr<std::string> compiled = CompileConstraint(source, *vocabulary_);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    state_ = CompiledConstraint::Begin(LoadConstraint(*compiled, vocabulary_).value());
  }
  bool Takes(const std::string& text) {
    for (const char c : text) {
      if (!state_->Accept(static_cast<unsigned char>(c))) return false;
    }
    return true;
  }
  // Whether the constraint takes a whole text.
  bool IsWhole(const ConstraintSource& source, const std::string& text) {
    Begin(source);
    return Takes(text) && state_->Accept(kLarkEnd);
  }
  bool Matches(const std::string& lark, const std::string& value) {
    return IsWhole({.form = Form::kLarkString, .text = lark},
                   nlohmann::json(value).dump(-1, ' ', /*ensure_ascii=*/false));
  }

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::unique_ptr<ConstraintState> state_;
};

TEST_F(LarkStringTest, ValuesAreThoseOfTheGrammar) {
  EXPECT_TRUE(Matches(
      kPatch, "*** Begin Patch\n*** Add File: a \"b\" \\c.py\n+print(\"x\\n\")\n+\té\n*** End Patch"));
  EXPECT_TRUE(Matches(kPatch, "*** Begin Patch\n*** Add File: a\n+\n*** End Patch\n"));
  EXPECT_FALSE(Matches(kPatch, "*** Begin Patch\n*** Add File: a\n*** End Patch\n"));
  EXPECT_FALSE(Matches(kPatch, "*** Begin Patch\n*** Add File: \n+\n*** End Patch\n"));
  EXPECT_FALSE(Matches(kPatch, "*** Begin Patch"));
}

TEST_F(LarkStringTest, EveryCharacterHasItsSpelling) {
  // Classes, negated ones, strings, and what of them JSON escapes.
  for (const char* lark : {R"(start: /[\x00-\x7f]/)", R"(start: /[^é]/)", R"(start: /[^a]|a/)"}) {
    for (int byte = 0; byte < 0x80; ++byte)
      EXPECT_TRUE(Matches(lark, std::string(1, static_cast<char>(byte)))) << lark << byte;
  }
  EXPECT_TRUE(Matches(R"(start: /[^a]/)", "\xf0\x9f\x98\x80"));
  EXPECT_FALSE(Matches(R"(start: /[^"]/)", "\""));
  EXPECT_FALSE(Matches(R"(start: /[^\\]/)", "\\"));
  EXPECT_TRUE(Matches(R"(start: "a\"b\\c\nd\té")", "a\"b\\c\nd\té"));
  // One spelling each.
  const ConstraintSource quote{.form = Form::kLarkString, .text = R"(start: "\"a\n")"};
  EXPECT_TRUE(IsWhole(quote, R"("\"a\n")"));
  EXPECT_FALSE(IsWhole(quote, R"("\u0022a\n")"));
  EXPECT_FALSE(IsWhole(quote, "\"\\\"a\n\""));
}

TEST_F(LarkStringTest, RepetitionsAndRecursionHold) {
  const std::string lark = R"(start: "x" ("," NUMBER)~2..3 list?
list: "[" list "]" | "\""
NUMBER: /[0-9]+/)";
  EXPECT_TRUE(Matches(lark, "x,1,22"));
  EXPECT_TRUE(Matches(lark, "x,1,2,3[[\"]]"));
  EXPECT_FALSE(Matches(lark, "x,1"));
  EXPECT_FALSE(Matches(lark, "x,1,2,3,4"));
  EXPECT_FALSE(Matches(lark, "x,1,2[[\"]"));
}

TEST_F(LarkStringTest, AToolsInputIsHeldToIt) {
  StructuralTags tags{.triggers = {"<call>"},
                      .tags = {{.begin = "<call>{\"input\": ",
                                .content = {.form = Form::kLarkString, .text = R"(start: /[a"]+/)"},
                                .end = "}</call>"}}};
  EXPECT_TRUE(IsWhole(ConstraintOfTags(tags, {}).value(), R"(So <call>{"input": "a\"a"}</call>.)"));
  EXPECT_FALSE(IsWhole(ConstraintOfTags(tags, {}).value(), R"(<call>{"input": "b"}</call>)"));
  tags.at_least_one = tags.only_tags = true;
  EXPECT_TRUE(IsWhole(ConstraintOfTags(tags, {}).value(), R"(<call>{"input": "\""}</call>)"));
}

TEST_F(LarkStringTest, RefusesWhatItCannotTake) {
  const auto refusal = [this](const std::string& lark) {
    const absl::StatusOr<std::string> compiled =
        CompileConstraint({.form = Form::kLarkString, .text = lark}, *vocabulary_);
    EXPECT_TRUE(absl::IsInvalidArgument(compiled.status())) << lark << compiled.status();
    return std::string(compiled.status().message());
  };
  EXPECT_THAT(refusal("start: nothing"), HasSubstr("nothing"));
  EXPECT_THAT(refusal("begin: \"a\""), HasSubstr("start"));
  EXPECT_THAT(refusal("start: \"a"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("start: /a/i"), HasSubstr("flag i"));
  EXPECT_THAT(refusal("start[max_tokens=3]: /a+/"), HasSubstr("attributes"));
  const absl::StatusOr<ConstraintSource> tags = ConstraintOfTags(
      {.triggers = {"<"},
       .tags = {{.begin = "<a", .content = {.form = Form::kGrammar, .text = "root ::= \"x\""}, .end = ">"},
                {.begin = "<b",
                 .content = {.form = Form::kLarkString, .text = "start: nothing"},
                 .end = ">"}}},
      {});
  ASSERT_TRUE(tags.ok());
  EXPECT_THAT(std::string(CompileConstraint(*tags, *vocabulary_).status().message()),
              HasSubstr("tags[1].content: "));
}

}  // namespace
}  // namespace tandem

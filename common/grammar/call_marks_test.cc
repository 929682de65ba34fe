#include "common/grammar/call_marks.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/token_mask.h"

namespace tandem {
namespace {

using Form = ConstraintSource::Form;

using MarkList = std::vector<absl::string_view>;

constexpr TokenId kEnd = 256;
constexpr TokenId kFirstMark = 257;
constexpr char kArguments[] = R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})";

// Single bytes, an end, and every mark.
std::shared_ptr<const GrammarVocabulary> MarkedVocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.emplace_back();
  for (size_t mark = 0; mark < kCallMarks.size(); ++mark) bytes.push_back(CallMarkBytes(mark));
  KeepMarksApart(&bytes);
  return GrammarVocabulary::Create(std::move(bytes), {kEnd}).value();
}

TokenId TokenOf(absl::string_view mark) {
  size_t index = 0;
  while (kCallMarks[index] != mark) ++index;
  return kFirstMark + static_cast<TokenId>(index);
}

class CallMarksTest : public ::testing::Test {
 protected:
  void Begin(const ConstraintSource& source) {
    const absl::StatusOr<std::string> compiled = CompileConstraint(source, *vocabulary_);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    state_ = CompiledConstraint::Begin(LoadConstraint(*compiled, vocabulary_).value());
  }
  void BeginTags(const std::string& trigger, const std::string& begin, const std::string& end,
                 bool at_least_one = false) {
    const absl::StatusOr<ConstraintSource> source = ConstraintOfTags(
        {.triggers = {trigger},
         .tags = {{.begin = begin, .content = {.form = Form::kJsonSchema, .text = kArguments}, .end = end}},
         .at_least_one = at_least_one},
        {});
    ASSERT_TRUE(source.ok()) << source.status();
    Begin(*source);
  }
  // How many of its bytes may come, one after the other. They are taken.
  size_t Take(absl::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (!state_->Accept(static_cast<unsigned char>(text[i]))) return i;
    }
    return text.size();
  }
  bool Takes(absl::string_view text) { return Take(text) == text.size(); }
  bool TakesMark(absl::string_view mark) { return state_->Accept(TokenOf(mark)); }
  // The marks whose tokens may come now; and what the mask says must be what is accepted.
  MarkList Marks() {
    std::vector<uint32_t> mask(MaskWords(vocabulary_->size()));
    state_->FillMask(absl::MakeSpan(mask));
    MarkList marks;
    for (const absl::string_view mark : kCallMarks) {
      const bool allowed = IsAllowed(mask, TokenOf(mark));
      const bool accepted = state_->Accept(TokenOf(mark));
      EXPECT_EQ(allowed, accepted) << mark;
      if (accepted) state_->Rollback(1);
      if (allowed) marks.push_back(mark);
    }
    return marks;
  }

  const std::shared_ptr<const GrammarVocabulary> vocabulary_ = MarkedVocabulary();
  std::unique_ptr<ConstraintState> state_;
};

TEST_F(CallMarksTest, AreNoText) {
  for (const ConstraintSource& source :
       {ConstraintSource{.form = Form::kRegex, .text = R"([\s\S]*)"},
        ConstraintSource{.form = Form::kRegex, .text = "[^a]*"},
        ConstraintSource{.form = Form::kGrammar, .text = "root ::= [^a]*\n"},
        ConstraintSource{.text = R"({"type":"string"})"}, AnyJsonObject(true)}) {
    Begin(source);
    EXPECT_EQ(Marks(), MarkList({})) << source.text;
    Take("\"");
    EXPECT_EQ(Marks(), MarkList({})) << source.text;
  }
}

TEST_F(CallMarksTest, MistralsOldCallsBeginWithOne) {
  BeginTags("[TOOL_CALLS]", R"([TOOL_CALLS][{"name": "f", "arguments": )", "}]");
  EXPECT_EQ(Marks(), MarkList({"[TOOL_CALLS]"}));
  EXPECT_TRUE(Takes("Let me see [TOOL, [ARG"));
  EXPECT_EQ(Marks(), MarkList({"[TOOL_CALLS]"}));
  // Spelled out it would be a call to whoever reads the text.
  EXPECT_EQ(Take("[TOOL_CALLS]"), 11u);
  EXPECT_TRUE(Takes("x"));
  ASSERT_TRUE(TakesMark("[TOOL_CALLS]"));
  EXPECT_EQ(Marks(), MarkList({}));
  EXPECT_EQ(state_->ForcedBytes(), R"([{"name": "f", "arguments": {)");
  EXPECT_TRUE(Takes(R"([{"name": "f", "arguments": {"a": "[TOOL_CALLS])"));
  EXPECT_EQ(Marks(), MarkList({}));
  EXPECT_TRUE(Takes(R"("}}] and)"));
  EXPECT_EQ(Marks(), MarkList({"[TOOL_CALLS]"}));
  EXPECT_TRUE(state_->Accept(kEnd));
}

TEST_F(CallMarksTest, MistralsNewCallsHaveTwo) {
  BeginTags("[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]", "");
  EXPECT_TRUE(Takes("So: "));
  ASSERT_TRUE(TakesMark("[TOOL_CALLS]"));
  EXPECT_EQ(state_->ForcedBytes(), absl::StrCat("f", CallMarkBytes(1), "{"));
  EXPECT_TRUE(Takes("f"));
  EXPECT_EQ(Take("["), 0u) << "the mark is no text";
  EXPECT_EQ(Take(CallMarkBytes(1)), 0u) << "nor do other tokens spell it";
  EXPECT_EQ(Marks(), MarkList({"[ARGS]"}));
  ASSERT_TRUE(TakesMark("[ARGS]"));
  EXPECT_TRUE(Takes(R"({"a": "x"})"));
  EXPECT_EQ(Marks(), MarkList({"[TOOL_CALLS]"})) << "the next call, or text";
  EXPECT_TRUE(state_->Accept(kEnd));

  BeginTags("[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]", "", /*at_least_one=*/true);
  EXPECT_EQ(Marks(), MarkList({"[TOOL_CALLS]"}));
  EXPECT_EQ(Take("S"), 0u);
}

TEST_F(CallMarksTest, StandInTagsAloneAsWell) {
  const absl::StatusOr<ConstraintSource> source =
      ConstraintOfTags({.triggers = {"<tool_call>"},
                        .tags = {{.begin = "<tool_call>\n",
                                  .content = {.form = Form::kJsonSchema, .text = kArguments},
                                  .end = "\n</tool_call>"}},
                        .at_least_one = true,
                        .only_tags = true},
                       {});
  ASSERT_TRUE(source.ok()) << source.status();
  Begin(*source);
  for (const char* before : {"", "\n"}) {
    EXPECT_TRUE(Takes(before));
    EXPECT_EQ(Marks(), MarkList({"<tool_call>"}));
    EXPECT_EQ(Take("<tool_call>"), 0u) << "the mark is no text";
    ASSERT_TRUE(TakesMark("<tool_call>"));
    EXPECT_TRUE(Takes("\n{\"a\": \"x\"}\n"));
    EXPECT_EQ(Marks(), MarkList({"</tool_call>"}));
    ASSERT_TRUE(TakesMark("</tool_call>"));
    EXPECT_EQ(Take("S"), 0u);
  }
  EXPECT_TRUE(state_->Accept(kEnd));
}

TEST_F(CallMarksTest, DeepSeeksCallsAreFullOfThem) {
  BeginTags("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
  EXPECT_EQ(Marks(), MarkList({"<｜tool▁calls▁begin｜>"}));
  ASSERT_TRUE(TakesMark("<｜tool▁calls▁begin｜>"));
  ASSERT_TRUE(TakesMark("<｜tool▁call▁begin｜>"));
  EXPECT_TRUE(Takes("f"));
  ASSERT_TRUE(TakesMark("<｜tool▁sep｜>"));
  EXPECT_TRUE(Takes(R"({"a": "x"})"));
  EXPECT_EQ(Marks(), MarkList({"<｜tool▁call▁end｜>"}));
  ASSERT_TRUE(TakesMark("<｜tool▁call▁end｜>"));
  ASSERT_TRUE(TakesMark("<｜tool▁calls▁end｜>"));
  EXPECT_TRUE(state_->Accept(kEnd));
}

TEST_F(CallMarksTest, StayTextWhereNoTokenIsOne) {
  const ConstraintSource tags =
      ConstraintOfTags({.triggers = {"[TOOL_CALLS]"},
                        .tags = {{.begin = "[TOOL_CALLS]f[ARGS]",
                                  .content = {.form = Form::kJsonSchema, .text = kArguments}}}},
                       {})
          .value();
  std::vector<std::string> bytes(vocabulary_->bytes().begin(), vocabulary_->bytes().begin() + kFirstMark);
  const auto plain = GrammarVocabulary::Create(bytes, {kEnd}).value();
  EXPECT_EQ(*WithCallMarks(tags.text, *plain), tags.text);
  EXPECT_NE(*WithCallMarks(tags.text, *vocabulary_), tags.text);
  const absl::Status refused =
      WithCallMarks(absl::StrCat(tags.text, "\xf4\x8f\xbf\xbf"), *vocabulary_).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "U+10FFFF: not supported")) << refused;
}

TEST(CallMarkBytesTest, AreSpelledByNoOtherToken) {
  const std::vector<std::string> plain = {"a", "\xff", "\xff\xff\xff\xff", "\xc3\xff", "b"};
  std::vector<std::string> bytes = plain;
  KeepMarksApart(&bytes);
  EXPECT_EQ(bytes, plain) << "there are no marks";
  bytes.push_back(CallMarkBytes(2));
  KeepMarksApart(&bytes);
  EXPECT_EQ(bytes, std::vector<std::string>({"a", "", "", "", "b", CallMarkBytes(2)}));
}

TEST(CallMarkBytesTest, NameTheirMarks) {
  for (size_t mark = 0; mark < kCallMarks.size(); ++mark) {
    EXPECT_EQ(FindCallMark(absl::StrCat(CallMarkBytes(mark), "x")), mark);
  }
  for (const char* other : {"", "a", "\xff\xff\xff\xff", "\xff\xff\xff\xff~", "\xff\xff\xff\xff\x01"}) {
    EXPECT_EQ(FindCallMark(other), kCallMarks.size());
  }
}

}  // namespace
}  // namespace tandem

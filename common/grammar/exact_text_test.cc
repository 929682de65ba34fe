// Texts that requests bring come back as they are, whatever characters they hold and whatever follows these.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/grammar/byte_vocabulary.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Form = ConstraintSource::Form;

std::string Utf8(uint32_t code) {
  std::string text;
  const auto add = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  }
  return text;
}

// All code points that have one byte in Latin-1, and some of each other length and border.
std::vector<uint32_t> CodePoints() {
  std::vector<uint32_t> codes;
  for (uint32_t code = 0; code < 0x100; ++code) codes.push_back(code);
  for (const uint32_t code : {0x100u, 0x17fu, 0x7ffu, 0x800u, 0x2028u, 0x2029u, 0xd7ffu, 0xe000u, 0xfeffu,
                              0xfffdu, 0xffffu, 0x10000u, 0x1f600u, 0x10fffeu}) {
    codes.push_back(code);
  }
  return codes;
}

// Every byte is a token.
class ExactTextTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { vocabulary_ = ByteVocabulary(); }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  static std::shared_ptr<const CompiledConstraint> Compile(const absl::StatusOr<ConstraintSource>& source) {
    if (!source.ok() || !CheckConstraint(*source, {}).ok()) {
      ADD_FAILURE() << source.status();
      return nullptr;
    }
    const absl::StatusOr<std::string> compiled = CompileConstraint(*source, *vocabulary_);
    if (!compiled.ok()) {
      ADD_FAILURE() << compiled.status() << " for " << absl::CHexEscape(source->text);
      return nullptr;
    }
    return LoadConstraint(*compiled, vocabulary_).value();
  }

  // The texts of a constraint, of which there are not more than `most`.
  static std::set<std::string> Texts(const std::shared_ptr<const CompiledConstraint>& constraint,
                                     size_t most) {
    std::set<std::string> texts;
    if (constraint == nullptr) return texts;
    const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(constraint);
    std::string text;
    Collect(*state, most, &text, &texts);
    return texts;
  }

  static std::shared_ptr<const GrammarVocabulary> vocabulary_;

 private:
  static void Collect(ConstraintState& state, size_t most, std::string* text, std::set<std::string>* texts) {
    for (const TokenId token : AllowedTokens(state, vocabulary_->size())) {
      if (texts->size() > most) return;
      if (token == kByteEnd) {
        texts->insert(*text);
        continue;
      }
      ASSERT_TRUE(state.Accept(token));
      text->push_back(static_cast<char>(token));
      Collect(state, most, text, texts);
      text->pop_back();
      state.Rollback(1);
    }
  }
};

std::shared_ptr<const GrammarVocabulary> ExactTextTest::vocabulary_;

// What may be taken for a part of an escape that stands before it.
const char* const kFollowers[] = {"", "0", "a", "F", "z", "\\", "\"", "}", "-", "]", "\n"};

TEST_F(ExactTextTest, EachChoiceIsThatTextAndNoOther) {
  for (const uint32_t code : CodePoints()) {
    std::vector<std::string> choices;
    for (const char* follower : kFollowers) choices.push_back(absl::StrCat("x", Utf8(code), follower));
    const std::set<std::string> expected(choices.begin(), choices.end());
    EXPECT_EQ(Texts(Compile(ConstraintOfChoices(choices)), expected.size()), expected)
        << absl::StrCat(absl::Hex(code));
  }
}

TEST_F(ExactTextTest, TheReportedChoice) {
  const std::vector<std::string> choices = {"Yes\nDone"};
  EXPECT_EQ(Texts(Compile(ConstraintOfChoices(choices)), 2), std::set<std::string>({"Yes\nDone"}));
}

TEST_F(ExactTextTest, TagsBeginAndEndWithTheirTexts) {
  for (const uint32_t code : CodePoints()) {
    for (const char* follower : {"", "0", "a", "F", "\\", "\""}) {
      const std::string text = absl::StrCat(Utf8(code), follower);
      const StructuralTags tags{.triggers = {text},
                                .tags = {{.begin = text + "<",
                                          .content = {.form = Form::kRegex, .text = "[01]"},
                                          .end = ">" + text}},
                                .at_least_one = true,
                                .stop_after_first = true};
      const std::set<std::string> expected = {text + "<0>" + text, text + "<1>" + text};
      EXPECT_EQ(Texts(Compile(ConstraintOfTags(tags, {})), 4), expected)
          << absl::StrCat(absl::Hex(code)) << follower;
    }
  }
}

TEST_F(ExactTextTest, RefusesWhatIsNoCharacter) {
  for (const char* bytes : {"\xff", "a\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    const std::vector<std::string> choices = {"a", bytes};
    EXPECT_THAT(std::string(ConstraintOfChoices(choices).status().message()), HasSubstr("[1]: not UTF-8"));
    EXPECT_THAT(std::string(CheckConstraint({.form = Form::kRegex, .text = bytes}, {}).message()),
                HasSubstr("not UTF-8"));
    const StructuralTags tags{.triggers = {"<"},
                              .tags = {{.begin = absl::StrCat("<", bytes), .content = {}, .end = ""}}};
    EXPECT_THAT(std::string(ConstraintOfTags(tags, {}).status().message()),
                HasSubstr("tags[0].begin: not UTF-8"));
  }
  const auto check = [](Form form, std::string text) {
    return std::string(CheckConstraint({.form = form, .text = std::move(text)}, {}).message());
  };
  EXPECT_THAT(check(Form::kGrammar, std::string("root ::= \"a\"\0 | \"b\"", 19)), HasSubstr("byte 12: NUL"));
  for (const char* escape :
       {"\\ud800", "\\udfff", "\\U00110000", "\\xfffffff", "\\xD800", "\\u{110000}", "\\x{d800}"}) {
    EXPECT_THAT(check(Form::kGrammar, absl::StrCat("root ::= \"", escape, "\"")),
                HasSubstr("byte 10: an escape"))
        << escape;
    // Of which \x takes two digits.
    if (escape[1] == 'x' && escape[2] != '{') continue;
    EXPECT_THAT(check(Form::kRegex, absl::StrCat("a", escape)), StartsWith("byte ")) << escape;
  }
  EXPECT_EQ(check(Form::kGrammar, R"(root ::= "\ud7ff\ue000\U0010ffff\x0a" "\\ud800")"), "");
}

// Of the code points between the others: in no class, negated or not.
TEST_F(ExactTextTest, NoClassHasSurrogates) {
  const ConstraintSource sources[] = {
      {.form = Form::kRegex, .text = "[^a]"},
      {.form = Form::kRegex, .text = "."},
      {.form = Form::kRegex, .text = "[^a]*"},
      {.form = Form::kRegex, .text = R"([\u0100-\uffff])"},
      {.form = Form::kGrammar, .text = R"(root ::= [^\n])"},
      {.form = Form::kGrammar, .text = R"(root ::= [\u0000-\U0010ffff])"},
  };
  for (const ConstraintSource& source : sources) {
    const std::shared_ptr<const CompiledConstraint> constraint = Compile(source);
    ASSERT_NE(constraint, nullptr);
    for (const uint32_t code : {0xd7ffu, 0xd800u, 0xdbffu, 0xdc00u, 0xdfffu, 0xe000u}) {
      const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(constraint);
      const std::string text = Utf8(code);
      const bool is_surrogate = code >= 0xd800 && code < 0xe000;
      EXPECT_EQ(TakeBytes(*state, text) == text.size(), !is_surrogate)
          << source.text << absl::StrCat(absl::Hex(code));
    }
  }
}

TEST_F(ExactTextTest, PatternsAreReadAsByOthers) {
  const auto allowed = [](const char* pattern) {
    std::string all;
    const std::shared_ptr<const CompiledConstraint> constraint =
        Compile(ConstraintSource{.form = Form::kRegex, .text = pattern});
    if (constraint == nullptr) return all;
    for (const TokenId token : AllowedTokens(*CompiledConstraint::Begin(constraint), vocabulary_->size())) {
      if (token < 128) all.push_back(static_cast<char>(token));
    }
    return all;
  };
  EXPECT_EQ(allowed(R"([\^-a])"), "^_`a");
  EXPECT_EQ(allowed(R"([\^])"), "^");
  EXPECT_EQ(allowed(R"([\^b])"), "^b");
  EXPECT_EQ(allowed(R"([\^-])"), "-^");
  EXPECT_EQ(allowed(R"([\^-\^])"), "^");
  EXPECT_EQ(allowed(R"([\^\^-`])"), "^_`");
  EXPECT_EQ(allowed(R"([a^])"), "^a");
  EXPECT_EQ(allowed(R"([^\^])").size(), 127u);
  EXPECT_EQ(allowed(R"([X-\]])"), "XYZ[\\]");
  EXPECT_EQ(allowed(R"([\.\-\\])"), "-.\\");
  const std::string any = allowed(".");
  EXPECT_EQ(any.size(), 126u);
  EXPECT_EQ(any.find_first_of("\n\r"), std::string::npos);
  EXPECT_EQ(allowed(R"([\x01a])"), std::string("\x01") + "a");
  EXPECT_EQ(allowed(R"([\u0001f])"), std::string("\x01") + "f");
  EXPECT_EQ(allowed(R"([\x7ff])"), "f\x7f");
  EXPECT_EQ(allowed(R"([\x5ea])"), "^a");
  const ConstraintSource two_digits{.form = Form::kRegex, .text = R"(\x41b\xe9f)"};
  EXPECT_EQ(Texts(Compile(two_digits), 2), std::set<std::string>({"Ab\xc3\xa9"
                                                                  "f"}));
  EXPECT_EQ(allowed(R"(\.)"), ".");
  EXPECT_EQ(allowed("[.]"), ".");
}

TEST_F(ExactTextTest, GrammarsMayBeInLarksForm) {
  const ConstraintSource source{.form = Form::kGrammar,
                                .text = "start: (\"a\" | WORD) \"\\n\"\nWORD: /[x-y]{2}/\n"};
  EXPECT_EQ(Texts(Compile(source), 6), std::set<std::string>({"a\n", "xx\n", "xy\n", "yx\n", "yy\n"}));
}

// A grammar's own escapes, which its author writes.
TEST_F(ExactTextTest, EscapesOfGrammarsAreTheirCharacters) {
  for (const uint32_t code : CodePoints()) {
    const std::string escapes[] = {absl::StrCat("\\u", absl::Hex(code, absl::kZeroPad4)),
                                   absl::StrCat("\\U", absl::Hex(code, absl::kZeroPad8))};
    for (const std::string& escape : escapes) {
      if (escape[1] == 'u' && code > 0xffff) continue;
      const ConstraintSource source{.form = Form::kGrammar,
                                    .text = absl::StrCat("root ::= \"", escape, "1\"")};
      EXPECT_EQ(Texts(Compile(source), 2), std::set<std::string>({Utf8(code) + "1"})) << escape;
    }
  }
}

}  // namespace
}  // namespace tandem

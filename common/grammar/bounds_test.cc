// What a constraint may cost: those without a finite text are refused, and following the others takes bounded
// steps, bytes and time, whatever they are.

#include <time.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/grammar/byte_vocabulary.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/constraint_cursor.h"
#include "common/grammar/finite_schema.h"
#include "common/grammar/schema/schema_document.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Form = ConstraintSource::Form;

class BoundsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { vocabulary_ = ByteVocabulary(); }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  static absl::StatusOr<std::string> Compile(Form form, const std::string& text) {
    return CompileConstraint({.form = form, .text = text}, *vocabulary_);
  }
  static std::shared_ptr<const CompiledConstraint> Load(Form form, const std::string& text) {
    const absl::StatusOr<std::string> compiled = Compile(form, text);
    EXPECT_TRUE(compiled.ok()) << compiled.status() << " for " << text;
    return compiled.ok() ? LoadConstraint(*compiled, vocabulary_).value() : nullptr;
  }
  static std::unique_ptr<ConstraintState> Begin(Form form, const std::string& text) {
    std::shared_ptr<const CompiledConstraint> constraint = Load(form, text);
    return constraint == nullptr ? nullptr : CompiledConstraint::Begin(std::move(constraint));
  }
  // Whether a text is one of the constraint's.
  static bool Matches(Form form, const std::string& constraint, absl::string_view text) {
    const std::unique_ptr<ConstraintState> state = Begin(form, constraint);
    return state != nullptr && TakeBytes(*state, text) == text.size() && MayEnd(*state);
  }

  static std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

std::shared_ptr<const GrammarVocabulary> BoundsTest::vocabulary_;

TEST_F(BoundsTest, NamesTheSchemaThatNeverEnds) {
  const struct {
    const char* schema;
    const char* place;
  } cases[] = {
      {R"({"$ref":"#/$defs/A","$defs":{"A":{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},)"
       R"("required":["a"],"additionalProperties":false}}})",
       "#/$defs/A:"},
      {R"({"$ref":"#"})", "#:"},
      {R"({"$ref":"#/$defs/A","$defs":{"A":{"$ref":"#/$defs/B"},"B":{"$ref":"#/$defs/A"}}})", "#/$defs/A:"},
      {R"({"type":"array","minItems":1,"items":{"$ref":"#"}})", "#:"},
      {R"({"type":"array","minItems":1,"prefixItems":[{"$ref":"#"}]})", "#:"},
      {R"({"anyOf":[{"type":"array","minItems":2,"items":{"$ref":"#"}},)"
       R"({"type":"object","properties":{"x":{"$ref":"#"}},"required":["x"]}]})",
       "#:"},
      {R"({"type":["object","array"],"properties":{"x":{"$ref":"#"}},"required":["x"],"minItems":1,)"
       R"("items":{"$ref":"#"}})",
       "#:"},
      {R"({"type":"object","properties":{"x":{"allOf":[{"$ref":"#/properties/x"}]}},"required":["x"]})",
       "#/properties/x"},
  };
  for (const auto& test : cases) {
    const absl::Status status = CheckConstraint({.form = Form::kJsonSchema, .text = test.schema}, {});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << test.schema;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.place)) << test.schema;
    EXPECT_THAT(std::string(status.message()),
                AnyOf(HasSubstr("no finite value"), HasSubstr("part of itself, with nothing in between")))
        << test.schema;
    // The compiler knows by itself, whoever asks.
    EXPECT_TRUE(absl::IsInvalidArgument(Compile(Form::kJsonSchema, test.schema).status())) << test.schema;
  }
  for (const char* schema : {
           R"({"type":"object","properties":{"next":{"$ref":"#"}}})",
           R"({"type":"array","items":{"$ref":"#"}})",
           R"({"anyOf":[{"type":"null"},{"type":"array","minItems":1,"items":{"$ref":"#"}}]})",
           R"({"type":["null","object"],"properties":{"next":{"$ref":"#"}},"required":["next"]})",
           R"({"enum":[1,2]})",
       }) {
    EXPECT_TRUE(CheckFiniteSchema(*SchemaDocument::Read(schema, 64).value()).ok()) << schema;
  }
}

TEST_F(BoundsTest, RefusesGrammarsThatNeverEnd) {
  for (const char* grammar : {
           "root ::= root",
           "root ::= \"\" root",
           "root ::= \"a\" root",
           "root ::= root \"a\"",
           "root ::= a\na ::= b\nb ::= \"x\" a | \"y\" b",
           "root ::= \"a\" (root | \"b\" root)",
           "root ::= a{1,3}\na ::= \"(\" a \")\"",
           "root ::= a+\na ::= \"x\" a",
           "root ::= [^\\U00000000-\\U0010ffff]",
           "root ::= [^\\U00000000-\\ud7ff\\ue000-\\U0010ffff]",
       }) {
    const absl::Time start = absl::Now();
    const absl::Status status = Compile(Form::kGrammar, grammar).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << grammar << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "no finite text") ||
                absl::StrContains(status.message(), "no text"))
        << grammar << ": " << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(1)) << grammar;
  }
  const absl::Status named = Compile(Form::kGrammar, "root ::= \"x\" list\nlist ::= \"a\" list").status();
  EXPECT_THAT(std::string(named.message()), HasSubstr("rule list: it always leads to itself again"));
}

// By the names that the client's source has.
TEST_F(BoundsTest, NamesRulesAsTheirSourceDoes) {
  const struct {
    Form form;
    const char* source;
    const char* message;
  } cases[] = {
      {Form::kGrammar, "start: \"a\" start", "rule start: it always leads to itself again"},
      {Form::kGrammar, "start: list\nlist: \"[\" list \"]\"", "rule list: it always leads to itself again"},
      {Form::kGrammar, "start: root\nroot: \"a\" root", "rule root: it always leads to itself again"},
      {Form::kGrammar, "start: (\"a\" | \"b\") start (\"c\")*",
       "rule start: it always leads to itself again"},
      {Form::kGrammar, "root ::= \"x\" (list | \"y\" list)\nlist ::= (\"a\" | \"b\") (list | \"c\" list)",
       "rule list: it always leads to itself again"},
      {Form::kGrammar, "root ::= \"x\" none\nnone ::= [^\\U00000000-\\U0010ffff]",
       "rule none: no text follows from it"},
      {Form::kLarkString, "start: list\nlist: \"[\" list \"]\"",
       "rule list: it always leads to itself again"},
      {Form::kLarkString, "start: \"a\" start", "rule start: it always leads to itself again"},
      {Form::kRegex, "[^\\s\\S]", "no text matches"},
      {Form::kRegex, "a(b|c[])[^\\w\\W]", "no text matches"},
      {Form::kRegex, "^(?=b)a", "no text matches"},
  };
  for (const auto& test : cases) {
    const absl::Status status = Compile(test.form, test.source).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << test.source << status;
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(test.message)) << test.source;
  }
  const StructuralTags tags{
      .triggers = {"<"},
      .tags = {{.begin = "<a>", .content = {.form = Form::kRegex, .text = "[^\\s\\S]"}, .end = "</a>"}}};
  const absl::Status status = ConstraintOfTags(tags, {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("tags[0].content: no text matches"));
}

TEST_F(BoundsTest, OfTwoBranchesOnlyTheFiniteOneIsEntered) {
  const char* const grammars[] = {
      "root ::= \"a\" endless | \"b\"\nendless ::= \"x\" endless",
      "root ::= (\"a\" endless)? \"b\"\nendless ::= \"x\" endless",
      "root ::= (\"a\" endless)* \"b\"\nendless ::= \"x\" endless",
      "root ::= (\"a\" endless){0,7} \"b\"\nendless ::= \"x\" endless",
      "root ::= endless* \"b\"\nendless ::= \"a\" endless",
      "root ::= endless{0,9} \"b\"\nendless ::= \"a\" endless",
      "root ::= x\nx ::= \"b\" | \"a\" y\ny ::= \"a\" y | z\nz ::= y",
  };
  for (const char* grammar : grammars) {
    const std::unique_ptr<ConstraintState> state = Begin(Form::kGrammar, grammar);
    ASSERT_NE(state, nullptr);
    EXPECT_EQ(AllowedTokens(*state, vocabulary_->size()), TokenIds({'b'})) << grammar;
    ASSERT_TRUE(state->Accept('b'));
    EXPECT_EQ(AllowedTokens(*state, vocabulary_->size()), TokenIds({kByteEnd})) << grammar;
  }
  // The text between endless parts stays.
  EXPECT_TRUE(Matches(Form::kGrammar, "root ::= \"a\" endless* \"b\"\nendless ::= \"c\" endless", "ab"));
  EXPECT_TRUE(Matches(Form::kGrammar, "root ::= endless*\nendless ::= \"c\" endless", ""));
  const char schema[] =
      R"({"type":"object","properties":{"n":{"type":"null"},"x":{"$ref":"#/$defs/A"}},"required":["n"],)"
      R"("additionalProperties":false,"$defs":{"A":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/A"}}}})";
  const std::unique_ptr<ConstraintState> state = Begin(Form::kJsonSchema, schema);
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(TakeBytes(*state, R"({"n": null})"), 11u);
  state->Rollback(1);
  EXPECT_EQ(AllowedTokens(*state, vocabulary_->size()), TokenIds({'}'}));
}

TEST_F(BoundsTest, ATagsContentEnds) {
  const StructuralTags tags{.triggers = {"<"},
                            .tags = {{.begin = "<a>",
                                      .content = {.form = Form::kGrammar, .text = "root ::= \"x\" root"},
                                      .end = "</a>"}}};
  const absl::StatusOr<ConstraintSource> source = ConstraintOfTags(tags, {});
  ASSERT_TRUE(source.ok());
  const absl::Status status = CompileConstraint(*source, *vocabulary_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no finite text"));
}

TEST_F(BoundsTest, EmptyLoopsEnd) {
  for (const char* grammar :
       {"root ::= a*\na ::= \"x\"*", "root ::= (\"x\"?)*", "root ::= ((\"x\"*)*)*",
        "root ::= root | root root | \"x\" | \"\"", "root ::= a a a\na ::= b*\nb ::= \"x\"?",
        "root ::= (\"x\"?){0,50}", "root ::= a\na ::= a \"x\" | \"\" | a a"}) {
    EXPECT_TRUE(Matches(Form::kGrammar, grammar, "xxxx")) << grammar;
    EXPECT_TRUE(Matches(Form::kGrammar, grammar, "")) << grammar;
    EXPECT_FALSE(Matches(Form::kGrammar, grammar, "xxy")) << grammar;
  }
}

TEST_F(BoundsTest, RepeatsOfRepeatsInACircleAreEmpty) {
  for (const char* grammar : {"root ::= root{0,3}", "root ::= root*",
                              "root ::= a{0,2}\na ::= b{2}\nb ::= a{0,5}", "root ::= (root?){2,4}"}) {
    const std::unique_ptr<ConstraintState> state = Begin(Form::kGrammar, grammar);
    ASSERT_NE(state, nullptr) << grammar;
    EXPECT_EQ(AllowedTokens(*state, vocabulary_->size()), TokenIds({kByteEnd})) << grammar;
  }
}

TEST_F(BoundsTest, WhatIsForcedIsFoundInPieces) {
  const std::string text(10'000, 'x');
  const std::unique_ptr<ConstraintState> state =
      Begin(Form::kGrammar, absl::StrCat("root ::= \"", text, "\""));
  ASSERT_NE(state, nullptr);
  const std::string forced = state->ForcedBytes();
  EXPECT_GE(forced.size(), 100u);
  EXPECT_LE(forced.size(), 4096u);
  EXPECT_EQ(forced, text.substr(0, forced.size()));
  // It ends between characters.
  const std::unique_ptr<ConstraintState> wide = Begin(Form::kRegex, "x(\xf0\x9f\x98\x80){1000}");
  ASSERT_NE(wide, nullptr);
  const std::string some = wide->ForcedBytes();
  EXPECT_EQ((some.size() - 1) % 4, 0u);
  EXPECT_GE(some.size(), 101u);
}

// What this thread has had of a processor.
absl::Duration ProcessorTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Grammars whose readings multiply with the text.
const char* const kAmbiguous[] = {
    "root ::= root root | \"x\"",
    "root ::= root root root | root root | \"x\" | \"\"",
    "root ::= a b c d\na ::= \"x\"*\nb ::= \"x\"*\nc ::= \"x\"*\nd ::= (\"x\" | \"y\")*",
    "root ::= a\na ::= a a | b\nb ::= b b | a | \"x\"",
    "root ::= (((\"x\"*)*)*)* \"x\"*",
    "root ::= (\"x\" | \"xx\" | \"xxx\")* root?",
};

TEST_F(BoundsTest, AmbiguousTextsTakeBoundedTimeAndMemory) {
  for (const char* grammar : kAmbiguous) {
    const std::unique_ptr<ConstraintState> state = Begin(Form::kGrammar, grammar);
    ASSERT_NE(state, nullptr);
    ConstraintCursor cursor(CompiledConstraint::Begin(Load(Form::kGrammar, grammar)));
    absl::Duration longest;
    std::vector<uint32_t> mask(MaskWords(vocabulary_->size()));
    int taken = 0;
    for (; taken < 4000; ++taken) {
      const absl::Duration start = ProcessorTime();
      cursor.FillMask(absl::MakeSpan(mask));
      cursor.ForcedBytes();
      if (!cursor.Commit('x')) break;
      longest = std::max(longest, ProcessorTime() - start);
    }
    std::cout << grammar << ": " << taken << " tokens, at most " << longest << " for one\n";
    EXPECT_GE(taken, 40) << grammar;
    // Milliseconds, and less than this whatever else the machine has to do.
    EXPECT_LT(longest, absl::Seconds(1)) << grammar;
  }
}

TEST_F(BoundsTest, WhatIsRefusedForItsCostLeavesNoTrace) {
  const std::unique_ptr<ConstraintState> state = Begin(Form::kGrammar, kAmbiguous[0]);
  ASSERT_NE(state, nullptr);
  size_t taken = 0;
  while (taken < 100'000 && state->Accept('x')) ++taken;
  ASSERT_LT(taken, 100'000u);
  EXPECT_FALSE(state->Accept('x'));
  // Before, it goes on as it did.
  state->Rollback(static_cast<uint32_t>(taken - 20));
  EXPECT_TRUE(MayEnd(*state));
  for (size_t i = 20; i < taken; ++i) ASSERT_TRUE(state->Accept('x')) << i;
  EXPECT_FALSE(state->Accept('x'));
}

// What is settled is forgotten, and nothing that comes depends on it.
TEST_F(BoundsTest, SettlingChangesNothing) {
  const std::pair<Form, std::string> constraints[] = {
      {Form::kJsonSchema, R"({"type":"object","additionalProperties":true})"},
      {Form::kGrammar, "root ::= \"(\" root \")\" root | [ab]*"},
      {Form::kGrammar, "root ::= item*\nitem ::= [a-c]+ \";\" | \"{\" item* \"}\" | item \"!\""},
  };
  for (const auto& [form, text] : constraints) {
    const std::shared_ptr<const CompiledConstraint> constraint = Load(form, text);
    ASSERT_NE(constraint, nullptr);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      std::mt19937_64 random(seed);
      const std::unique_ptr<ConstraintState> whole = CompiledConstraint::Begin(constraint);
      const std::unique_ptr<ConstraintState> settled = CompiledConstraint::Begin(constraint);
      for (int i = 0; i < 6000; ++i) {
        const TokenIds allowed = AllowedTokens(*whole, vocabulary_->size());
        ASSERT_EQ(AllowedTokens(*settled, vocabulary_->size()), allowed)
            << text << " seed " << seed << " at " << i;
        TokenIds going_on = allowed;
        std::erase(going_on, kByteEnd);
        if (going_on.empty()) break;
        const TokenId token = going_on[random() % going_on.size()];
        ASSERT_TRUE(whole->Accept(token));
        ASSERT_TRUE(settled->Accept(token));
        settled->Settle();
      }
    }
  }
}

// A long output of a plain constraint is no reason to stop.
TEST_F(BoundsTest, LongOutputsOfPlainConstraintsGoOn) {
  ConstraintCursor cursor(
      CompiledConstraint::Begin(Load(Form::kJsonSchema, R"({"type":"array","items":{"type":"string"}})")));
  ASSERT_TRUE(cursor.Commit('['));
  for (int item = 0; item < 3000; ++item) {
    for (const char c : absl::StrCat(item > 0 ? ", " : "", "\"", std::string(250, 'x'), "\"")) {
      ASSERT_TRUE(cursor.Commit(static_cast<unsigned char>(c))) << item;
    }
  }
  EXPECT_TRUE(cursor.Commit(']'));
}

}  // namespace
}  // namespace tandem

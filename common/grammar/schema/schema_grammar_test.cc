#include "common/grammar/schema/schema_grammar.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/grammar/schema/schema_document.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Ebnf(absl::string_view schema, JsonLayout layout = JsonLayout::kCompact) {
  const absl::StatusOr<std::string> grammar = GrammarOfSchema(schema, layout, 64);
  EXPECT_TRUE(grammar.ok()) << schema << grammar.status();
  return grammar.value_or("");
}

std::string Refusal(absl::string_view schema) {
  const absl::StatusOr<std::string> grammar = GrammarOfSchema(schema, JsonLayout::kCompact, 64);
  EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << schema << grammar.status();
  return std::string(grammar.status().message());
}

TEST(SchemaGrammarTest, IsTheSameEachTime) {
  constexpr char kSchema[] = R"({"type":"object","properties":{"b":{"type":"string","pattern":"^[a-z]+\\.$"},
      "a":{"oneOf":[{"type":"integer","minimum":3},{"type":"null"}]}},"required":["a","c"]})";
  EXPECT_EQ(Ebnf(kSchema), Ebnf(kSchema));
}

TEST(SchemaGrammarTest, NoEscapeTakesInWhatFollows) {
  EXPECT_THAT(Ebnf(R"({"const":"\na\u007fé😀"})"),
              HasSubstr(R"("\u0022\u005cna\u007f\u00e9\U0001f600\u0022")"));
}

TEST(SchemaGrammarTest, LeavesOutWhatHasNoEnd) {
  const std::string ebnf = Ebnf(
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/endless"},"b":{"type":"null"}},
          "$defs":{"endless":{"type":"array","items":{"$ref":"#/$defs/endless"},"minItems":1}}})");
  EXPECT_THAT(ebnf, HasSubstr("null"));
  EXPECT_THAT(ebnf, Not(HasSubstr("\"[\"")));
  EXPECT_THAT(Refusal(R"({"type":"array","items":{"$ref":"#"},"minItems":1})"),
              HasSubstr("no value of finite"));
}

TEST(SchemaGrammarTest, AListOfManyTextsIsTaken) {
  std::string values;
  for (int i = 0; i < 10'000; ++i) absl::StrAppend(&values, i == 0 ? "" : ",", "\"value ", i % 9'000, "\"");
  const std::string ebnf = Ebnf(absl::StrCat(R"({"type":"string","enum":[)", values, "]}"));
  EXPECT_THAT(ebnf, HasSubstr(R"("\u0022value 8999\u0022")"));
  // One that is there twice is one value.
  EXPECT_EQ(ebnf.find("value 17\\"), ebnf.rfind("value 17\\"));
}

TEST(SchemaGrammarTest, MembersOfOneFormatShareItsRules) {
  const auto members = [](int count) {
    std::string schema = R"({"type":"object","properties":{)";
    for (int i = 0; i < count; ++i)
      absl::StrAppend(&schema, i == 0 ? "" : ",", "\"m", i, R"(":{"type":"string","format":"hostname"})");
    return Ebnf(schema + "}}");
  };
  EXPECT_LT(members(20).size(), members(1).size() + 4'000);
  EXPECT_GT(members(1).size(), 8'000u);
}

TEST(SchemaGrammarTest, IsBoundedWhateverTheSchema) {
  std::string schema = R"({"type":"null"})";
  for (int i = 0; i < 12; ++i) {
    schema = absl::StrCat(R"({"anyOf":[)", schema, R"(,{"not":)", schema, R"(}]})");
  }
  const absl::StatusOr<std::string> grammar = GrammarOfSchema(schema, JsonLayout::kFree, 100);
  EXPECT_TRUE(grammar.ok() || absl::IsInvalidArgument(grammar.status())) << grammar.status();
  std::string choices = R"({"type":"object","allOf":[)";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&choices, i == 0 ? "" : ",", R"({"anyOf":[{"required":["a)", i, R"("]},{"required":["b)",
                    i, R"("]}]})");
  }
  EXPECT_THAT(Refusal(choices + "]}"), HasSubstr("#: too large"));
}

TEST(SchemaDocumentTest, ReadsWhatIsReferredTo) {
  EXPECT_TRUE(
      SchemaDocument::Read(R"({"$ref":"#/$defs/a","$defs":{"a":true,"unused":{"type":3}}})", 64).ok());
  EXPECT_THAT(Refusal(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":3}}})"),
              HasSubstr("#/$defs/a/type: 3 is not a type"));
  EXPECT_THAT(Refusal(R"({"$ref":"#/$defs/b"})"), HasSubstr("#/$ref: #/$defs/b does not exist"));
  EXPECT_THAT(Refusal(R"({"$ref":"#/$defs/%g0","$defs":{}})"),
              HasSubstr("#/$ref: expected two hexadecimal digits"));
  EXPECT_THAT(Refusal(R"({"$ref":"other.json"})"), HasSubstr("#/$ref: expected a place in this schema"));
  EXPECT_THAT(Refusal(R"({"a":1,"a":2})"), HasSubstr("occurs twice"));
  EXPECT_THAT(Refusal("[1"), HasSubstr("byte"));
}

}  // namespace
}  // namespace tandem

// Schemas, from their text to masks of tokens (tests/schemas has many more of them, and a judge).

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/grammar/byte_vocabulary.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/schema_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Form = ConstraintSource::Form;

class SchemaGenerationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { vocabulary_ = ByteVocabulary(); }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  static std::unique_ptr<ConstraintState> Begin(const ConstraintSource& source) {
    const absl::StatusOr<std::string> compiled = CompileConstraint(source, *vocabulary_);
    EXPECT_TRUE(compiled.ok()) << source.text << compiled.status();
    return CompiledConstraint::Begin(LoadConstraint(compiled.value(), vocabulary_).value());
  }

  static bool Takes(const ConstraintSource& source, const std::string& text) {
    const std::unique_ptr<ConstraintState> state = Begin(source);
    for (const char byte : text) {
      if (!state->Accept(static_cast<uint8_t>(byte))) return false;
    }
    return state->Accept(kByteEnd);
  }

  static std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

std::shared_ptr<const GrammarVocabulary> SchemaGenerationTest::vocabulary_;

TEST_F(SchemaGenerationTest, WhatIsCertainIsForced) {
  const ConstraintSource source{
      .form = Form::kJsonSchema,
      .text =
          R"({"type":"object","properties":{"ab":{"const":"x\"y"},"c":{"type":"boolean"}},"required":["ab","c"]})"};
  const std::unique_ptr<ConstraintState> state = Begin(source);
  EXPECT_EQ(state->ForcedBytes(), R"({"ab": "x\"y", "c": )");
}

TEST_F(SchemaGenerationTest, SchemasWithinTagsKeepTheirDigitsAndOrder) {
  const StructuralTags tags{
      .triggers = {"<"},
      .tags = {{.begin = "<f>",
                .content = {.form = Form::kJsonSchema,
                            .text = R"({"type":"object","properties":{"z":{"const":12345678901234567890123},)"
                                    R"("a":{"type":"string","pattern":"^\"$"}},"required":["a","z"]})"},
                .end = "</f>"}},
      .at_least_one = true,
      .stop_after_first = true};
  const ConstraintSource source = ConstraintOfTags(tags, {}).value();
  EXPECT_TRUE(Takes(source, R"(<f>{"z": 12345678901234567890123, "a": "\""}</f>)"));
  EXPECT_TRUE(Takes(source, "<f>{\n  \"z\": 12345678901234567890123,\n  \"a\": \"\\\"\"\n}</f>"));
  EXPECT_FALSE(Takes(source, R"(<f>{"z": 12345678901234567000000, "a": "\""}</f>)"));
  EXPECT_FALSE(Takes(source, R"(<f>{"a": "\"", "z": 12345678901234567890123}</f>)"));
}

TEST_F(SchemaGenerationTest, ErrorsNameTheTag) {
  const StructuralTags tags{
      .triggers = {"<"},
      .tags = {{.begin = "<f>", .content = {.form = Form::kJsonSchema, .text = "true"}, .end = "</f>"},
               {.begin = "<g>",
                .content = {.form = Form::kJsonSchema, .text = R"({"type":"string","format":"regex"})"},
                .end = "</g>"}}};
  const absl::Status status = CompileConstraint(ConstraintOfTags(tags, {}).value(), *vocabulary_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tags[1].content: #/format: not supported, expected one of"));
}

}  // namespace
}  // namespace tandem

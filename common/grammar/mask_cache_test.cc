#include "common/grammar/mask_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/grammar/compiled.h"
#include "common/grammar/token_mask.h"

namespace tandem {
namespace {

TEST(MaskCacheTest, ForgetsWhatWasUsedLongestAgo) {
  MaskCache cache(2, 1);
  std::vector<uint32_t> mask(1);
  cache.Put("a", std::vector<uint32_t>{1});
  cache.Put("b", std::vector<uint32_t>{2});
  ASSERT_TRUE(cache.Find("a", absl::MakeSpan(mask)));
  EXPECT_EQ(mask[0], 1u);
  cache.Put("a", std::vector<uint32_t>{7});
  cache.Put("c", std::vector<uint32_t>{3});
  EXPECT_FALSE(cache.Find("b", absl::MakeSpan(mask)));
  ASSERT_TRUE(cache.Find("a", absl::MakeSpan(mask)));
  EXPECT_EQ(mask[0], 1u);
  ASSERT_TRUE(cache.Find("c", absl::MakeSpan(mask)));
  EXPECT_EQ(mask[0], 3u);
  EXPECT_EQ(cache.num_found(), 3u);
  EXPECT_GE(cache.max_bytes(), 8u);

  MaskCache none(0, 1);
  none.Put("a", std::vector<uint32_t>{1});
  EXPECT_FALSE(none.Find("a", absl::MakeSpan(mask)));
}

TEST(MaskCacheTest, NamesTakeBoundedMemory) {
  MaskCache cache(8, 1);
  std::vector<uint32_t> mask(1);
  const auto name = [](int i) { return absl::StrCat(i, std::string(3000, 'x')); };
  for (int i = 0; i < 8; ++i) cache.Put(name(i), std::vector<uint32_t>{1});
  int kept = 0;
  for (int i = 0; i < 8; ++i) kept += cache.Find(name(i), absl::MakeSpan(mask)) ? 1 : 0;
  EXPECT_GT(kept, 0);
  EXPECT_LE(3000u * static_cast<size_t>(kept), cache.max_bytes());
  // One name that is longer than all may be is not kept, and drives out nothing.
  cache.Put(std::string(cache.max_bytes(), 'y'), std::vector<uint32_t>{1});
  EXPECT_TRUE(cache.Find(name(7), absl::MakeSpan(mask)));
}

// Single bytes, and tokens that end one part of an output and begin the next.
std::shared_ptr<const GrammarVocabulary> SmallVocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* text :
       {"ab",     "a\"",   "\"}", "\"]", "\", \"", "\"}, {\"", "]}",  "]]",   "}}",     "1,",      "12",
        "\": \"", "\": {", "((",  "))",  "a)",     "(a",       "<f>", "</f>", "x</f><", "\xc3\xa9"}) {
    bytes.emplace_back(text);
  }
  bytes.emplace_back();
  const auto end = static_cast<TokenId>(bytes.size() - 1);
  return GrammarVocabulary::Create(std::move(bytes), {end}).value();
}

constexpr char kTree[] =
    R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"a":{"type":"string"},)"
    R"("b":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"string"}]}}},)"
    R"("required":["a"],"additionalProperties":{"type":"integer"}}}})";
constexpr char kTags[] =
    R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f>"],"tags":[{"type":"tag",)"
    R"("begin":"<f>","content":{"type":"json_schema","json_schema":"{\"type\":\"array\",)"
    R"(\"items\":{\"type\":\"string\"}}"},)"
    R"("end":"</f>"}]}})";

// Two outputs in turns, each with states of a constraint that keeps masks and of one that keeps none, go on
// at random, are taken back at random, and have the same masks all the way.
TEST(MaskCacheTest, KeptMasksAreThoseThatWouldBeMade) {
  using Form = ConstraintSource::Form;
  const std::shared_ptr<const GrammarVocabulary> vocabulary = SmallVocabulary();
  const ConstraintSource sources[] = {
      {.form = Form::kJsonSchema, .text = kTree},
      {.form = Form::kJsonSchema, .text = kTree, .any_whitespace = true},
      {.form = Form::kJsonSchema, .text = R"({"type":"object","additionalProperties":true})"},
      {.form = Form::kJsonSchema, .text = R"({"type":"array","items":{"type":"string","maxLength":5}})"},
      {.form = Form::kRegex, .text = "(a|ab|b[xy]{2,4})*[0-9]?"},
      {.form = Form::kGrammar, .text = "root ::= s s\ns ::= \"(\" s \")\" | \"a\" s | s s | \"a\" | \"\"\n"},
      {.form = Form::kStructuralTags, .text = kTags}};
  uint64_t found = 0;
  for (const ConstraintSource& source : sources) {
    SCOPED_TRACE(source.text);
    const std::string compiled = CompileConstraint(source, *vocabulary).value();
    const auto keeping = LoadConstraint(compiled, vocabulary, 24).value();
    const auto plain = LoadConstraint(compiled, vocabulary, 0).value();
    struct Output {
      std::unique_ptr<ConstraintState> kept, made;
      uint32_t length = 0;
    };
    std::vector<Output> outputs(2);
    for (Output& output : outputs) {
      output = {.kept = CompiledConstraint::Begin(keeping), .made = CompiledConstraint::Begin(plain)};
    }
    std::mt19937_64 random(5);
    std::vector<uint32_t> kept(MaskWords(vocabulary->size()));
    std::vector<uint32_t> made(kept.size());
    for (int step = 0; step < 600; ++step) {
      Output& output = outputs[random() % 2];
      output.kept->FillMask(absl::MakeSpan(kept));
      output.made->FillMask(absl::MakeSpan(made));
      ASSERT_EQ(kept, made) << step;
      TokenIds allowed;
      for (TokenId token = 0; token < vocabulary->size(); ++token) {
        if (IsAllowed(made, token)) allowed.push_back(token);
      }
      const bool at_end = allowed.empty() || output.length > 60;
      if (at_end || random() % 8 == 0) {
        const uint32_t back = at_end ? output.length / 2 + 1 : random() % (output.length + 1);
        output.kept->Rollback(back);
        output.made->Rollback(back);
        output.length -= back;
        continue;
      }
      // Longer tokens more often than their share.
      const size_t longest = allowed.size() - std::min<size_t>(allowed.size(), 12);
      const TokenId token = allowed[random() % 2 == 0 ? random() % allowed.size()
                                                      : longest + random() % (allowed.size() - longest)];
      ASSERT_TRUE(output.kept->Accept(token));
      ASSERT_TRUE(output.made->Accept(token));
      ++output.length;
    }
    EXPECT_GT(keeping->masks_found(), 0u);
    EXPECT_EQ(plain->masks_found(), 0u);
    EXPECT_GT(keeping->memory_bytes(), plain->memory_bytes());
    found += keeping->masks_found();
  }
  EXPECT_GT(found, 600u);
}

TEST(MaskCacheTest, AStringIsInOneStateAllTheWay) {
  const std::shared_ptr<const GrammarVocabulary> vocabulary = SmallVocabulary();
  const ConstraintSource source{.text = R"({"type":"array","items":{"type":"string"}})"};
  const auto constraint = LoadConstraint(CompileConstraint(source, *vocabulary).value(), vocabulary).value();
  std::vector<uint32_t> mask(MaskWords(vocabulary->size()));
  for (int output = 0; output < 2; ++output) {
    const std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(constraint);
    for (const char byte : std::string(R"(["abcdef", "ghijklm", "nop)")) {
      ASSERT_TRUE(state->Accept(static_cast<unsigned char>(byte)));
      state->FillMask(absl::MakeSpan(mask));
    }
  }
  // What was not: after the bracket, in the first string, in the second and in the others, behind a string,
  // behind a comma, before a quotation mark.
  EXPECT_GE(constraint->masks_found(), 2u * 26u - 10u);
}

}  // namespace
}  // namespace tandem

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/steady_clock.h"
#include "common/grammar/compile_job.h"
#include "common/grammar/compile_process.h"
#include "common/grammar/compiled.h"
#include "common/grammar/constraint.h"
#include "common/grammar/constraint_compiler.h"
#include "common/grammar/forced_tokens.h"
#include "common/grammar/token_mask.h"
#include "common/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Form = ConstraintSource::Form;

using Texts = std::vector<std::string>;

constexpr TokenId kEndOfText = 4091;
constexpr char kPerson[] = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}
  },
  "required": ["name", "age"]
})";

// The demo models' tokens, and what they make of constraints.
class GrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ =
        Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/deploy/demo-models/tandem-target-15m")).value();
    vocabulary_ = VocabularyOf(*tokenizer_, tokenizer_->vocab_size(), {{kEndOfText}}).value();
  }
  static void TearDownTestSuite() {
    tokenizer_.reset();
    vocabulary_.reset();
  }

  static TokenIds Spell(absl::string_view text) {
    return tokenizer_->Encode(text, {.add_special_tokens = false}).value();
  }

  static std::shared_ptr<const CompiledConstraint> Compile(const ConstraintSource& source) {
    const absl::StatusOr<std::string> compiled = CompileConstraint(source, *vocabulary_);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return LoadConstraint(compiled.value(), vocabulary_).value();
  }
  static std::unique_ptr<ConstraintState> Begin(const ConstraintSource& source) {
    return CompiledConstraint::Begin(Compile(source));
  }

  static std::vector<uint32_t> MaskOf(ConstraintState& state) {
    std::vector<uint32_t> mask(MaskWords(vocabulary_->size()));
    state.FillMask(absl::MakeSpan(mask));
    return mask;
  }
  static TokenIds AllowedBy(const std::vector<uint32_t>& mask) {
    TokenIds tokens;
    for (TokenId token = 0; token < vocabulary_->size(); ++token) {
      if (IsAllowed(mask, token)) tokens.push_back(token);
    }
    return tokens;
  }

  // An output drawn evenly from what is allowed, ended as soon as it may be.
  static std::string Draw(ConstraintState& state, std::mt19937_64& random, int most_tokens = 400) {
    std::string text;
    for (int i = 0; i < most_tokens; ++i) {
      const TokenIds allowed = AllowedBy(MaskOf(state));
      if (allowed.empty()) break;
      const bool may_end = std::find(allowed.begin(), allowed.end(), kEndOfText) != allowed.end();
      const TokenId token = may_end ? kEndOfText : allowed[random() % allowed.size()];
      EXPECT_TRUE(state.Accept(token));
      if (token == kEndOfText) return text;
      absl::StrAppend(&text, tokenizer_->TokenBytes(token));
    }
    ADD_FAILURE() << "no end after " << text;
    return text;
  }

  static std::shared_ptr<const Tokenizer> tokenizer_;
  static std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

std::shared_ptr<const Tokenizer> GrammarTest::tokenizer_;
std::shared_ptr<const GrammarVocabulary> GrammarTest::vocabulary_;

TEST(TokenMaskTest, LeavesAChanceToWhatIsAllowed) {
  std::vector<float> logits(70, 1.0f);
  const std::vector<uint32_t> mask = {0xffffffffu, 0u, 1u << 3};
  ApplyMask(mask, absl::MakeSpan(logits));
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool allowed = i < 32 || i == 67;
    EXPECT_EQ(IsAllowed(mask, static_cast<TokenId>(i)), allowed);
    EXPECT_EQ(logits[i], allowed ? 1.0f : -std::numeric_limits<float>::infinity()) << i;
  }
  EXPECT_EQ(CountAllowed(mask, 70, 100), 33);
  EXPECT_EQ(CountAllowed(mask, 66, 100), 32);
  EXPECT_EQ(CountAllowed(mask, 70, 5), 5);
}

TEST(ConstraintTest, ChoicesAreOneOfTheTexts) {
  EXPECT_THAT(std::string(ConstraintOfChoices({}).status().message()), HasSubstr("expected 1"));
  EXPECT_THAT(std::string(ConstraintOfChoices(Texts({"a", ""})).status().message()), HasSubstr("[1]: empty"));
  EXPECT_EQ(ConstraintOfChoices(Texts({"a", "b", "a"}))->text, R"(root ::= "a" | "b")");
  EXPECT_EQ(ConstraintOfChoices(Texts({"a\"b", "\n\\"}))->text, R"(root ::= "a\"b" | "\u000a\\")");
}

TEST(ConstraintTest, BoundsWhatIsSent) {
  const ConstraintLimits limits{.max_bytes = 1000, .max_depth = 4};
  const auto check = [&](Form form, std::string text) {
    return CheckConstraint({.form = form, .text = std::move(text)}, limits);
  };
  EXPECT_TRUE(check(Form::kRegex, R"((a(b)[(((((]\(\(\(\(\())").ok());
  EXPECT_THAT(std::string(check(Form::kRegex, "x(((((a)))))").message()),
              HasSubstr("byte 5: more than 4 nested brackets"));
  EXPECT_THAT(std::string(check(Form::kRegex, std::string(1001, 'a')).message()),
              HasSubstr("1001 bytes, expected at most 1000"));
  EXPECT_THAT(std::string(check(Form::kGrammar, "").message()), HasSubstr("empty"));
  EXPECT_TRUE(check(Form::kGrammar, "root ::= \"(((((\" # (((((\n").ok());
  EXPECT_FALSE(check(Form::kGrammar, "root ::= (((((\"a\")))))").ok());
  EXPECT_THAT(std::string(check(Form::kJsonSchema, R"({"a":{"a":{"a":{"a":{}}}}})").message()),
              HasSubstr("a.a.a.a: nested too deep"));
  EXPECT_THAT(std::string(check(Form::kJsonSchema, R"({"type": )").message()), HasSubstr("byte"));
}

TEST(ConstraintTest, NamesThePlaceInTheSchema) {
  const struct {
    const char* schema;
    const char* message;
  } cases[] = {
      {R"(3)", "#: expected a schema"},
      {R"({"type":"object","properties":{"a":{"minLenght":1}}})", "#/properties/a/minLenght: not supported"},
      {R"({"type":"array","items":{"type":"strin"}})", "#/items/type: \"strin\" is not a type"},
      {R"({"anyOf":[{"type":"null"},{"enum":[]}]})", "#/anyOf/1/enum: expected a list"},
      {R"({"$ref":"other.json"})", "#/$ref: expected a place in this schema"},
      {R"({"$ref":"#/$defs/a"})", "#/$ref: #/$defs/a does not exist"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"if":1}}})", "#/$defs/a/if: expected a schema"},
      {R"({"type":"object","required":"a"})", "#/required: expected a list of texts"},
      {R"({"type":"string","minLength":-1})", "#/minLength: expected a number of them"},
      {R"({"type":"string","pattern":"a{,2}"})", "#/pattern: byte 2: expected a number"},
  };
  for (const auto& test : cases) {
    const absl::Status status = CheckConstraint({.form = Form::kJsonSchema, .text = test.schema}, {});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << test.schema;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message)) << test.schema;
  }
}

TEST_F(GrammarTest, MasksAreWhatIsAccepted) {
  std::unique_ptr<ConstraintState> state = Begin({.form = Form::kJsonSchema, .text = kPerson});
  std::mt19937_64 random(1);
  for (int i = 0; i < 12; ++i) {
    const std::vector<uint32_t> mask = MaskOf(*state);
    const TokenIds allowed = AllowedBy(mask);
    ASSERT_FALSE(allowed.empty());
    for (TokenId token = 0; token < vocabulary_->size(); token += i < 3 ? 1 : 37) {
      const bool accepted = state->Accept(token);
      ASSERT_EQ(accepted, IsAllowed(mask, token)) << token;
      if (accepted) state->Rollback(1);
    }
    // Nothing of that has left a trace.
    ASSERT_EQ(MaskOf(*state), mask);
    ASSERT_TRUE(state->Accept(allowed[random() % allowed.size()]));
  }
}

TEST_F(GrammarTest, EndsWhereTheConstraintMay) {
  std::unique_ptr<ConstraintState> state = Begin(ConstraintOfChoices(Texts({"yes", "yesterday"})).value());
  EXPECT_FALSE(state->Accept(kEndOfText));
  for (const TokenId token : Spell("yes")) {
    ASSERT_TRUE(state->Accept(token));
  }
  EXPECT_TRUE(IsAllowed(MaskOf(*state), kEndOfText));
  EXPECT_EQ(state->ForcedBytes(), "");
  ASSERT_TRUE(state->Accept(kEndOfText));
  EXPECT_EQ(AllowedBy(MaskOf(*state)), TokenIds());
  EXPECT_FALSE(state->Accept(kEndOfText));
  state->Rollback(1);
  EXPECT_TRUE(IsAllowed(MaskOf(*state), kEndOfText));
  for (const TokenId token : Spell("terday")) {
    ASSERT_TRUE(state->Accept(token));
  }
  EXPECT_EQ(AllowedBy(MaskOf(*state)), TokenIds({kEndOfText}));
}

TEST_F(GrammarTest, NoSpecialTokenIsEverText) {
  std::unique_ptr<ConstraintState> state = Begin({.form = Form::kRegex, .text = R"([\s\S]*)"});
  const std::vector<uint32_t> mask = MaskOf(*state);
  for (TokenId token = 0; token < vocabulary_->size(); ++token) {
    const bool expected =
        token == kEndOfText || (tokenizer_->HasToken(token) && !tokenizer_->IsSpecial(token) &&
                                !tokenizer_->TokenBytes(token).empty());
    // Pieces of characters may come where no character is unfinished; ends of them may not.
    if (!expected) {
      EXPECT_FALSE(IsAllowed(mask, token)) << token;
    }
  }
  EXPECT_TRUE(IsAllowed(mask, kEndOfText));
}

TEST_F(GrammarTest, DrawnOutputsAreValid) {
  const std::shared_ptr<const CompiledConstraint> person =
      Compile({.form = Form::kJsonSchema, .text = kPerson});
  const std::shared_ptr<const CompiledConstraint> date =
      Compile({.form = Form::kRegex, .text = "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"});
  std::mt19937_64 random(7);
  for (int i = 0; i < 20; ++i) {
    std::unique_ptr<ConstraintState> state = CompiledConstraint::Begin(person);
    const nlohmann::json value = nlohmann::json::parse(Draw(*state, random));
    EXPECT_TRUE(value.at("name").is_string());
    EXPECT_LE(value.at("age").get<int>(), 150);
    state = CompiledConstraint::Begin(date);
    EXPECT_TRUE(std::regex_match(Draw(*state, random), std::regex("[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]")));
  }
}

TEST_F(GrammarTest, WhitespaceIsFixedUnlessAskedFor) {
  std::unique_ptr<ConstraintState> fixed = Begin({.form = Form::kJsonSchema, .text = kPerson});
  EXPECT_EQ(fixed->ForcedBytes(), "{\"name\": \"");
  std::unique_ptr<ConstraintState> free =
      Begin({.form = Form::kJsonSchema, .text = kPerson, .any_whitespace = true});
  EXPECT_EQ(free->ForcedBytes(), "{");
}

TEST_F(GrammarTest, StructuralTagsConstrainWhatIsBetweenThem) {
  StructuralTags tags{
      .triggers = {"<call="},
      .tags = {{.begin = "<call=add>",
                .content = {.form = Form::kJsonSchema,
                            .text = R"({"type":"object","properties":{"b":{"type":"integer"},)"
                                    R"("a":{"type":"integer"}},"required":["a","b"]})"},
                .end = "</call>"}}};
  const absl::StatusOr<ConstraintSource> source = ConstraintOfTags(tags, {});
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(CheckConstraint(*source, {}).ok());
  std::unique_ptr<ConstraintState> state = Begin(*source);
  const auto take = [&](const char* text) {
    for (const TokenId token : Spell(text)) {
      if (!state->Accept(token)) return false;
    }
    return true;
  };
  EXPECT_TRUE(take("Some words, <calm or not. <call="));
  EXPECT_EQ(state->ForcedBytes(), "add>{");
  EXPECT_TRUE(take("add>{\"b\": 3, \"a\": 4}"));
  EXPECT_EQ(state->ForcedBytes(), "</call>");
  EXPECT_FALSE(take("x"));
  EXPECT_TRUE(take("</call> and more"));
  EXPECT_TRUE(IsAllowed(MaskOf(*state), kEndOfText));

  tags.triggers = {"<tool"};
  EXPECT_THAT(std::string(ConstraintOfTags(tags, {}).status().message()),
              HasSubstr("tags[0].begin: begins with none"));
  tags = {
      .triggers = {"<"},
      .tags = {{.begin = "<a", .content = {.form = Form::kJsonSchema, .text = R"({"not":1})"}, .end = ">"}}};
  EXPECT_THAT(std::string(ConstraintOfTags(tags, {}).status().message()),
              HasSubstr("tags[0].content: #/not"));
}

TEST_F(GrammarTest, TagsAloneLeaveNoFreeText) {
  StructuralTags tags{
      .triggers = {"<call="},
      .tags = {{.begin = "<call=f>",
                .content = {.form = Form::kJsonSchema, .text = R"({"type":"object","properties":{}})"},
                .end = "</call>"},
               {.begin = "<call=g>", .content = {.form = Form::kRegex, .text = "[0-9]"}, .end = ""}},
      .at_least_one = true,
      .only_tags = true};
  const absl::StatusOr<ConstraintSource> source = ConstraintOfTags(tags, {});
  ASSERT_TRUE(source.ok()) << source.status();
  std::unique_ptr<ConstraintState> state = Begin(*source);
  const auto take = [&](const char* text) {
    for (const TokenId token : Spell(text)) {
      if (!state->Accept(token)) return false;
    }
    return true;
  };
  const auto may_end = [&] { return IsAllowed(MaskOf(*state), kEndOfText); };
  EXPECT_FALSE(may_end());
  EXPECT_FALSE(take("x"));
  ASSERT_TRUE(take("<call=f>{}</call>"));
  EXPECT_TRUE(may_end());
  EXPECT_FALSE(take("x"));
  ASSERT_TRUE(take("<call=g>3"));
  EXPECT_TRUE(may_end());
  ASSERT_TRUE(take("\n"));
  EXPECT_TRUE(may_end());
  EXPECT_FALSE(take("\n"));
  EXPECT_FALSE(take(" "));
  ASSERT_TRUE(take("<call=f>{}</call>"));
  EXPECT_TRUE(state->Accept(kEndOfText));

  tags.stop_after_first = true;
  EXPECT_THAT(std::string(ConstraintOfTags(tags, {}).status().message()), HasSubstr("only_tags: set"));
  tags.stop_after_first = tags.at_least_one = false;
  EXPECT_THAT(std::string(ConstraintOfTags(tags, {}).status().message()), HasSubstr("only_tags: set"));
}

TEST_F(GrammarTest, RefusesWhatCannotBeCompiledOrNotExactly) {
  const auto refusal = [](Form form, const char* text) {
    const absl::StatusOr<std::string> compiled =
        CompileConstraint({.form = form, .text = text}, *vocabulary_);
    EXPECT_TRUE(absl::IsInvalidArgument(compiled.status())) << text << compiled.status();
    return std::string(compiled.status().message());
  };
  refusal(Form::kRegex, "(a");
  refusal(Form::kGrammar, "root ::= other");
  refusal(Form::kGrammar, "rule ::= \"a\"");
  EXPECT_THAT(refusal(Form::kJsonSchema, R"({"items":{"uniqueItems":true,"type":"array"}})"),
              HasSubstr("#/items/uniqueItems"));
  EXPECT_THAT(refusal(Form::kGrammar, "root[max_tokens=3] ::= \"a\" root | \"\""), HasSubstr("attributes"));
}

TEST_F(GrammarTest, SpellsWhatIsForcedAsTheTokenizerWould) {
  const TokenIds whole = Spell("{\"name\": \"Ann\", \"age\": 3}");
  std::string text;
  for (size_t i = 0; i < whole.size(); ++i) {
    // Where a border of the tokenizer's own lies, it goes on as it would have.
    const TokenIds before(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(i));
    const TokenIds rest(whole.begin() + static_cast<ptrdiff_t>(i), whole.end());
    EXPECT_EQ(SpellForced(*tokenizer_, before, tokenizer_->Decode(rest, true)), rest) << i;
  }
  // And anywhere the text is what is forced, borders of its own or not.
  for (const char* before : {"", "{\"na", "{\"name\"", "one "}) {
    const TokenIds tokens = Spell(before);
    EXPECT_EQ(tokenizer_->Decode(SpellForced(*tokenizer_, tokens, "\": [true"), true), "\": [true") << before;
  }
  EXPECT_EQ(SpellForced(*tokenizer_, {}, ""), TokenIds());
}

TEST(CompileJobTest, MessagesComeBack) {
  const ConstraintSource source{
      .form = Form::kGrammar, .text = std::string("a\0b", 3), .any_whitespace = true};
  EXPECT_EQ(DecodeJob(EncodeJob(source)).value(), source);
  EXPECT_EQ(DecodeAnswer(EncodeAnswer(std::string("compiled"))).value(), "compiled");
  EXPECT_EQ(DecodeAnswer(EncodeAnswer(absl::InvalidArgumentError("why"))).status(),
            absl::InvalidArgumentError("why"));
  EXPECT_TRUE(absl::IsDataLoss(DecodeVocabulary("\1\0\0").status()));
  EXPECT_FALSE(ParseFrameLength("\xff\xff\xff\xff").ok());
}

// A ConstraintCompiler and what it is asked.
class ConstraintCompilerTest : public GrammarTest, public ConstraintCompilerListener {
 protected:
  void Start(ConstraintCompiler::Options options) {
    compiler_ = std::make_unique<ConstraintCompiler>(std::move(options), vocabulary_, &clock_, this);
  }

  absl::StatusOr<ConstraintCompiler::Compiled> Ask(const ConstraintSource& source,
                                                   absl::Time deadline = absl::InfiniteFuture(),
                                                   absl::string_view tenant = "tenant") {
    absl::Notification done;
    absl::StatusOr<ConstraintCompiler::Compiled> answer = absl::UnknownError("not answered");
    compiler_->Compile(source, tenant, deadline, [&](absl::StatusOr<ConstraintCompiler::Compiled> compiled) {
      answer = std::move(compiled);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }

  void OnLookup(bool known) override { (known ? known_ : unknown_) += 1; }
  void OnCompiled(double, bool ok) override { (ok ? compiled_ : refused_) += 1; }
  void OnCacheChange(int64_t bytes) override { cached_bytes_ += bytes; }

  SteadyClock clock_;
  std::atomic<int> known_ = 0;
  std::atomic<int> unknown_ = 0;
  std::atomic<int> compiled_ = 0;
  std::atomic<int> refused_ = 0;
  std::atomic<int64_t> cached_bytes_ = 0;
  std::unique_ptr<ConstraintCompiler> compiler_;
};

ConstraintSource Regex(std::string text) {
  return {.form = Form::kRegex, .text = std::move(text)};
}

TEST_F(ConstraintCompilerTest, KeepsWhatItHasCompiled) {
  Start({});
  const absl::StatusOr<ConstraintCompiler::Compiled> first = Ask(Regex("[ab]+"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Ask(Regex("[ab]+")).value(), *first);
  EXPECT_EQ(known_, 1);
  EXPECT_EQ(compiled_, 1);
  EXPECT_GE(cached_bytes_, static_cast<int64_t>((*first)->memory_bytes()));
  // What is wrong is known as well.
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(Regex("(")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(Regex("(")).status()));
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(known_, 2);
}

TEST_F(ConstraintCompilerTest, ForgetsWhatWasUsedLongestAgo) {
  Start({.cache_bytes = 1});
  ASSERT_TRUE(Ask(Regex("a")).ok());
  ASSERT_TRUE(Ask(Regex("a")).ok());
  EXPECT_EQ(known_, 0);
  EXPECT_EQ(cached_bytes_, 0);
}

TEST_F(ConstraintCompilerTest, WhoHasMostIsForgottenFirst) {
  Start({});
  const size_t bytes = Ask(Regex("a")).value()->memory_bytes();
  Start({.cache_bytes = 5 * bytes});
  ASSERT_TRUE(Ask(Regex("mine"), absl::InfiniteFuture(), "quiet").ok());
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(Ask(Regex(absl::StrCat("other", i)), absl::InfiniteFuture(), "busy").ok());
  }
  const int before = known_;
  ASSERT_TRUE(Ask(Regex("mine"), absl::InfiniteFuture(), "quiet").ok());
  EXPECT_EQ(known_, before + 1);
  EXPECT_LE(cached_bytes_, static_cast<int64_t>(6 * bytes));
}

TEST_F(ConstraintCompilerTest, WhoHasMostWaitingGivesWay) {
  Start({.max_time = absl::Milliseconds(500), .max_waiting = 2});
  std::atomic<int> exhausted = 0;
  std::atomic<int> answered = 0;
  constexpr int kMany = 6;
  for (int i = 0; i < kMany; ++i) {
    compiler_->Compile(Regex(absl::StrCat("((a{1,9000}){1,9000}){1,900", i, "}")), "busy",
                       absl::InfiniteFuture(),
                       [&](const absl::StatusOr<ConstraintCompiler::Compiled>& compiled) {
                         exhausted += absl::IsResourceExhausted(compiled.status()) ? 1 : 0;
                         ++answered;
                       });
  }
  const absl::Status quiet = Ask(Regex("[ab]"), absl::InfiniteFuture(), "quiet").status();
  EXPECT_TRUE(quiet.ok()) << quiet;
  // One for whom there was no room, and one that had to leave.
  EXPECT_GE(exhausted, 2);
  compiler_.reset();
  EXPECT_EQ(answered, kMany);
}

// If each quick one had to wait for a slow one, all of these would be done before the last of them.
TEST_F(ConstraintCompilerTest, SlowOnesHoldUpNobodyElse) {
  Start({});
  std::atomic<int> answered = 0;
  constexpr int kMany = 5;
  for (int i = 0; i < kMany; ++i) {
    std::string rules = absl::StrCat("root ::= \"", i, "\" (r0");
    for (int rule = 1; rule < 1500; ++rule) absl::StrAppend(&rules, " | r", rule);
    rules += ")\n";
    for (int rule = 0; rule < 1500; ++rule) absl::StrAppend(&rules, "r", rule, " ::= [a-z ]+\n");
    compiler_->Compile({.form = Form::kGrammar, .text = rules}, "slow", absl::InfiniteFuture(),
                       [&](const absl::StatusOr<ConstraintCompiler::Compiled>&) { ++answered; });
  }
  for (int i = 0; i < 6; ++i) {
    const absl::Status quick =
        Ask(Regex(absl::StrCat("[ab]{1,", 2 + i, "}")), absl::InfiniteFuture(), "quick").status();
    EXPECT_TRUE(quick.ok()) << quick;
    EXPECT_LT(answered, kMany);
  }
  compiler_.reset();
  EXPECT_EQ(answered, kMany);
}

TEST_F(ConstraintCompilerTest, EndsWhatTakesTooLongAndGoesOn) {
  Start({.max_time = absl::Milliseconds(100)});
  std::string nested = "x";
  for (int i = 0; i < 20000; ++i) nested = "(" + nested + ")";
  const absl::Status deep = Ask(Regex(nested)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(deep)) << deep;
  // Half a thousand states in which nearly any token may follow.
  const absl::Status large =
      Ask(Regex("^(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e)(?=.*f)(?=.*g)(?=.*h)(?=.*i).*$")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(large)) << large;
  const absl::Status small = Ask(Regex("[ab]")).status();
  EXPECT_TRUE(small.ok()) << small;
}

TEST_F(ConstraintCompilerTest, HearsOfDeadlinesAndOfItsEnd) {
  Start({});
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(Regex("((a{1,5000}){1,5000}){1,5000}"), clock_.Now()).status()));
  compiler_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(Ask(Regex("a")).status()));
}

TEST_F(ConstraintCompilerTest, SaysWhereItsProgramIsMissing) {
  Start({.program = "/nowhere/tandem-grammar"});
  const absl::Status status = Ask(Regex("a")).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/tandem-grammar"));
}

}  // namespace
}  // namespace tandem

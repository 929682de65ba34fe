// Outputs under a constraint, end to end: the constraint is part of the target's distribution, so nothing
// that must not change an output changes one (law 2); and every output is what the constraint says.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/e2e/generation_fixture.h"

namespace tandem::e2e {
namespace {

using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Range;
using ::testing::Values;

constexpr uint32_t kTokens = 48;

constexpr char kPersonSchema[] = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 10},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "water"]}, "maxItems": 2}
  },
  "required": ["name", "age", "likes"]
})";
constexpr char kDate[] = "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]";

struct Form {
  const char* name;
  std::function<void(v1::Constraint&)> set;
  std::function<bool(const std::string&)> holds;  // Of an output that is whole.
};

bool IsPerson(const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_object() && value.contains("name") && value.contains("age") && value.contains("likes") &&
         value["age"].is_number_integer() && value["likes"].size() <= 2;
}

std::vector<Form> Forms() {
  return {
      {"json_schema", [](auto& constraint) { constraint.mutable_json_schema()->set_schema(kPersonSchema); },
       IsPerson},
      {"json_object", [](auto& constraint) { constraint.mutable_json_object(); },
       [](const std::string& text) { return nlohmann::json::parse(text, nullptr, false).is_object(); }},
      {"regex", [](auto& constraint) { constraint.set_regex(kDate); },
       [](const std::string& text) { return std::regex_match(text, std::regex(kDate)); }},
      {"grammar", [](auto& constraint) { constraint.set_grammar("root ::= \"(\" root \")\" root | \"\""); },
       [](const std::string& text) {
         int depth = 0;
         for (const char c : text) {
           depth += c == '(' ? 1 : -1;
           if ((c != '(' && c != ')') || depth < 0) return false;
         }
         return depth == 0;
       }},
      {"choices",
       [](auto& constraint) {
         for (const char* choice : {"yes, certainly", "no", "yes, but not today"}) {
           constraint.mutable_choices()->add_choices(choice);
         }
       },
       [](const std::string& text) {
         return text == "yes, certainly" || text == "no" || text == "yes, but not today";
       }},
      {"structural_tags",
       [](auto& constraint) {
         v1::StructuralTags& tags = *constraint.mutable_structural_tags();
         tags.add_triggers("<call>");
         v1::StructuralTag& tag = *tags.add_tags();
         tag.set_begin("<call>");
         tag.mutable_content()->mutable_json_schema()->set_schema(kPersonSchema);
         tag.set_end("</call>");
         tags.set_at_least_one(true);
         tags.set_stop_after_first(true);
       },
       [](const std::string& text) {
         return absl::StartsWith(text, "<call>") && absl::EndsWith(text, "</call>") &&
                IsPerson(text.substr(6, text.size() - 13));
       }},
  };
}

using StructuredOutputTest = GenerationTest;

v1::GenerateRequest WithConstraint(v1::GenerateRequest request, const Form& form, float temperature,
                                   uint64_t seed) {
  form.set(*request.mutable_constraint());
  request.mutable_sampling()->set_temperature(temperature);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

// Whether what is there can be judged: an output that was cut need not be whole.
bool IsWhole(const Output& output) {
  return output.reason == v1::FINISH_REASON_STOP_TOKEN;
}

// (place in Forms, drafter or none, verifier)
using StructuredCase = std::tuple<int, std::string, const char*>;

class StructuredSpeculationTest : public GenerationTest,
                                  public ::testing::WithParamInterface<StructuredCase> {};

TEST_P(StructuredSpeculationTest, ChangesNoOutputInABatchOfEightOrAlone) {
  const auto& [place, drafter, verifier] = GetParam();
  const Form form = Forms()[static_cast<size_t>(place)];
  std::vector<v1::GenerateRequest> requests;
  for (size_t i = 0; i < 8; ++i) {
    v1::GenerateRequest request = WithConstraint(
        Request(verifier, golden()[i % golden().size()].prompt, kTokens), form, i % 2 == 0 ? 0.0f : 1.0f, i);
    if (i == 7) request.clear_constraint();  // Those beside it are as they were.
    if (!drafter.empty()) {
      SetDrafter(request, drafter, "fixed");
    } else {
      request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_UNSPECIFIED);
      request.mutable_speculation()->set_window_policy("fixed");
    }
    requests.push_back(std::move(request));
  }
  const auto results = GenerateConcurrently(requests);
  for (size_t i = 0; i < results.size(); ++i) {
    ExpectSame(requests[i], results[i]);
    if (!results[i].ok() || i == 7 || !IsWhole(results[i]->output)) continue;
    EXPECT_TRUE(form.holds(results[i]->output.text)) << form.name << ": " << results[i]->output.text;
  }
  ExpectSame(requests[1], Generate(requests[1]));
  if (drafter.empty() || drafter == "ngram") return;
  // Once the drafter has compiled the constraint, it sends nothing that is not allowed.
  constexpr int kMostTries = 1000;
  for (int i = 0; i < kMostTries; ++i) {
    const absl::StatusOr<RecordedOutput> again = Generate(requests[1]);
    ASSERT_TRUE(again.ok()) << again.status();
    const v1::SpeculationStats& stats = again->finished.speculation();
    const bool drafted =
        std::any_of(stats.by_source().begin(), stats.by_source().end(), [](const auto& entry) {
          return entry.source() == v1::DRAFT_SOURCE_DRAFTER && entry.accepted_tokens() > 0;
        });
    if (drafted && stats.masked_draft_tokens() == 0) return;
  }
  ADD_FAILURE() << drafter << " goes on to draft what " << form.name << " does not allow";
}

std::string NameOf(const ::testing::TestParamInfo<StructuredCase>& info) {
  const auto& [place, drafter, verifier] = info.param;
  return absl::StrReplaceAll(absl::StrCat(Forms()[static_cast<size_t>(place)].name, "_",
                                          drafter.empty() ? "none" : drafter, "_", verifier),
                             {{"-", "_"}});
}

INSTANTIATE_TEST_SUITE_P(Drafters, StructuredSpeculationTest,
                         Combine(Range(0, 6), Values("general-1m", "eagle3", "medusa", "ngram", ""),
                                 Values(kLookahead)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(InTurns, StructuredSpeculationTest,
                         Combine(Values(0, 5), Values("general-1m", ""), Values(kSynchronous)), NameOf);

TEST_F(StructuredOutputTest, EveryOutputIsWhatItsConstraintSays) {
  for (const Form& form : Forms()) {
    size_t whole = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      v1::GenerateRequest request =
          WithConstraint(Request(kEagle2, golden()[seed % golden().size()].prompt, 160), form, 1.0f, seed);
      request.mutable_speculation()->set_mode(v1::SPECULATION_MODE_UNSPECIFIED);
      const absl::StatusOr<RecordedOutput> result = Generate(request);
      ASSERT_TRUE(result.ok()) << form.name << result.status();
      if (!IsWhole(result->output)) continue;
      ++whole;
      EXPECT_TRUE(form.holds(result->output.text)) << form.name << ": " << result->output.text;
    }
    EXPECT_GT(whole, 0u) << form.name << ": no output came to its end";
  }
}

TEST_F(StructuredOutputTest, GoesOnInTheMiddleOfAnObject) {
  const v1::GenerateRequest request =
      WithConstraint(Request(kPlain, golden()[2].prompt, kTokens), Forms()[0], 1.0f, 5);
  const Output& whole = Expected(request);
  for (const size_t done : {size_t{1}, size_t{7}, whole.tokens.size() - 1, whole.tokens.size()}) {
    v1::VerifierGenerateRequest resumed;
    resumed.set_model(kLookahead);
    *resumed.mutable_prompt() = request.token_ids();
    *resumed.mutable_sampling() = request.sampling();
    *resumed.mutable_stopping() = request.stopping();
    *resumed.mutable_output() = request.output();
    *resumed.mutable_constraint() = request.constraint();
    for (size_t i = 0; i < done; ++i) resumed.mutable_emitted()->add_ids(whole.tokens[i].token);
    Output rest = whole;
    rest.tokens.erase(rest.tokens.begin(), rest.tokens.begin() + static_cast<ptrdiff_t>(done));
    rest.text = whole.text.substr(whole.CertainTextBytes(done));
    const absl::StatusOr<RecordedOutput> result = GenerateAtVerifier(kLookahead, resumed);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->output, rest) << done;
    if (done == whole.tokens.size()) continue;
    resumed.mutable_emitted()->set_ids(0, 5);  // Not what an object begins with.
    const absl::Status refused = GenerateAtVerifier(kLookahead, resumed).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("emitted.ids[0]"));
  }
}

TEST_F(StructuredOutputTest, StopsAndLimitsKeepTheirMeaning) {
  v1::GenerateRequest request =
      WithConstraint(Request(kLookahead, golden()[2].prompt, kTokens), Forms()[0], 1.0f, 5);
  request.mutable_stopping()->add_stop("\", \"age");
  absl::StatusOr<RecordedOutput> result = Generate(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output.reason, v1::FINISH_REASON_STOP_STRING);
  EXPECT_FALSE(absl::StrContains(result->output.text, "age"));
  request.mutable_stopping()->clear_stop();
  request.mutable_stopping()->set_max_tokens(3);
  result = Generate(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output.reason, v1::FINISH_REASON_MAX_TOKENS);
  request.mutable_stopping()->set_ignore_eos(true);
  EXPECT_THAT(std::string(Generate(request).status().message()), HasSubstr("ignore_eos"));
}

TEST_F(StructuredOutputTest, SaysWhatIsWrongWithAConstraint) {
  const v1::GenerateRequest base = Request(kLookahead, golden()[0].prompt, 8);
  const struct {
    std::function<void(v1::Constraint&)> set;
    const char* message;
  } cases[] = {
      {[](auto&) {}, "constraint: expected json_schema"},
      {[](auto& constraint) {
         constraint.mutable_json_schema()->set_schema(R"({"items":{"minLenght":1}, "type":"array"})");
       },
       "constraint.json_schema.schema: #/items/minLenght: "},
      {[](auto& constraint) { constraint.set_regex("(a"); }, "constraint.regex: byte 2: "},
      {[](auto& constraint) { constraint.set_grammar("root ::= nothing"); }, "constraint: "},
      {[](auto& constraint) { constraint.mutable_choices(); }, "constraint.choices: 0 choices"},
      {[](auto& constraint) { constraint.mutable_structural_tags()->add_triggers("<"); },
       "constraint.structural_tags: tags: 0"},
  };
  for (const auto& test : cases) {
    v1::GenerateRequest request = base;
    test.set(*request.mutable_constraint());
    const absl::Status status = Generate(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message));
  }
}

}  // namespace
}  // namespace tandem::e2e

#include "common/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "common/base/file.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using testing::HasSubstr;

const char kChatData[] = TANDEM_SOURCE_DIR "/common/tokenizer/testdata/chat/";

const std::map<std::string, std::string> kSpecialTokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

absl::StatusOr<std::string> Render(absl::string_view source, const ChatTemplateOptions& options = {}) {
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(source);
  if (!chat_template.ok()) return chat_template.status();
  return chat_template->Render({{"user", "Hello"}}, kSpecialTokens, options);
}

std::string TextOf(const nlohmann::ordered_json& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? "" : found->get<std::string>();
}

// A message of the golden file: role and content, or as transformers has it.
ChatMessage MessageOf(const nlohmann::ordered_json& json) {
  if (json.is_array()) return {.role = json[0], .content = json[1].get<std::string>()};
  ChatMessage message = {.role = TextOf(json, "role"),
                         .tool_call_id = TextOf(json, "tool_call_id"),
                         .name = TextOf(json, "name"),
                         .reasoning = TextOf(json, "reasoning_content")};
  if (const auto content = json.find("content"); content != json.end() && content->is_string())
    message.content = content->get<std::string>();
  if (!json.contains("tool_calls")) return message;
  for (const nlohmann::ordered_json& call : json["tool_calls"]) {
    message.tool_calls.push_back({.id = TextOf(call, "id"),
                                  .name = TextOf(call["function"], "name"),
                                  .arguments = call["function"]["arguments"].dump()});
  }
  return message;
}

ChatTemplateOptions OptionsOf(const nlohmann::ordered_json& test_case) {
  ChatTemplateOptions options;
  options.add_generation_prompt = test_case.at("prompt");
  options.now = absl::FromCivil(absl::CivilSecond(2026, 3, 7, 14, 5, 6), absl::UTCTimeZone());
  if (test_case.contains("thinking"))
    options.variables["enable_thinking"] = test_case["thinking"].get<bool>();
  if (test_case.contains("continue")) options.continue_final_message = test_case["continue"];
  if (!test_case.contains("tools") || test_case["tools"].is_null()) return options;
  for (const nlohmann::ordered_json& tool : test_case["tools"]) {
    const nlohmann::ordered_json& function = tool["function"];
    options.tools.push_back({.name = TextOf(function, "name"),
                             .description = TextOf(function, "description"),
                             .parameters = function["parameters"].dump()});
  }
  return options;
}

// testdata/chat/make_golden.py renders the same with Jinja itself.
TEST(ChatTemplateTest, RendersAsJinja) {
  const absl::StatusOr<std::string> golden = ReadFile(absl::StrCat(kChatData, "golden.json"), 4 << 20);
  ASSERT_TRUE(golden.ok()) << golden.status();
  std::map<std::string, ChatTemplate> templates;
  size_t num_texts = 0;
  size_t num_errors = 0;
  for (const nlohmann::ordered_json& test_case : nlohmann::ordered_json::parse(*golden)) {
    const std::string name = test_case.at("template");
    if (templates.find(name) == templates.end()) {
      const absl::StatusOr<std::string> source = ReadFile(absl::StrCat(kChatData, name), 1 << 20);
      ASSERT_TRUE(source.ok()) << source.status();
      absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(*source);
      ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.status();
      templates.emplace(name, *std::move(parsed));
    }
    std::vector<ChatMessage> messages;
    for (const nlohmann::ordered_json& message : test_case.at("messages"))
      messages.push_back(MessageOf(message));
    const ChatTemplateOptions options = OptionsOf(test_case);
    const absl::StatusOr<std::string> text =
        templates.find(name)->second.Render(messages, kSpecialTokens, options);
    if (test_case.contains("error")) {
      ++num_errors;
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << test_case;
      EXPECT_THAT(std::string(text.status().message()), HasSubstr(test_case["error"].get<std::string>()));
    } else {
      ++num_texts;
      ASSERT_TRUE(text.ok()) << text.status() << " in " << test_case;
      EXPECT_EQ(*text, test_case.at("text").get<std::string>()) << test_case.at("messages");
    }
  }
  EXPECT_GT(num_texts, 400);
  EXPECT_GT(num_errors, 10);
}

TEST(ChatTemplateTest, TakesArgumentsThatAreNoObjectAsText) {
  const absl::StatusOr<ChatTemplate> calls = ChatTemplate::Parse(
      "{% for call in messages[0].tool_calls %}{{ call.function.arguments | tojson }};{{ call.id is defined "
      "}};"
      "{% endfor %}{{ messages[0].content is none }}");
  ASSERT_TRUE(calls.ok()) << calls.status();
  const ChatMessage message = {
      .role = "assistant",
      .tool_calls = {
          {.name = "f", .arguments = R"({"a": 1)"}, {.id = "x", .name = "f"}, {.arguments = "[2]"}}};
  EXPECT_EQ(*calls->Render({message}, {}, {}), R"("{\"a\": 1";False;{};True;"[2]";False;True)");
}

TEST(ChatTemplateTest, RefusesToolsThatAreNoJson) {
  ChatTemplateOptions options;
  options.tools = {{.name = "f", .parameters = "{"}};
  EXPECT_THAT(std::string(Render("", options).status().message()), HasSubstr("tools[0].parameters"));
}

TEST(ChatTemplateTest, TakesNumbersThatNoIntegerHolds) {
  ChatTemplateOptions options;
  options.tools = {{.name = "f",
                    .parameters = R"({"b":18446744073709551615,"a":[-9223372036854775808,1e2,)"
                                  R"(123456789012345678901234567890,1.50]})"}};
  EXPECT_EQ(
      Render("{{ tools[0].function.parameters | tojson }}", options).value(),
      R"({"b": 1.8446744073709552e+19, "a": [-9223372036854775808, 100.0, 1.2345678901234568e+29, 1.5]})");
}

// In a time that grows with them: looked at in pairs, they would take minutes.
TEST(ChatTemplateTest, TakesAnyNumberOfMembers) {
  constexpr int kMany = 200'000;
  std::string parameters = "{";
  for (int i = 0; i < kMany; ++i) absl::StrAppend(&parameters, i == 0 ? "" : ",", "\"name", i, "\":", i);
  ChatTemplateOptions options;
  options.tools = {{.name = "f", .parameters = parameters + "}"}};
  EXPECT_EQ(Render("{{ tools[0].function.parameters | length }}", options).value(), absl::StrCat(kMany));
}

TEST(ChatTemplateTest, RefusesToContinueWhatIsNotLaidOut) {
  ChatTemplateOptions options;
  options.continue_final_message = true;
  EXPECT_EQ(*Render("{{ messages[0].content }}!{{ add_generation_prompt }}", options), "Hello");
  EXPECT_EQ(Render("{{ messages[0].role }}", options).status().code(), absl::StatusCode::kInvalidArgument);
  options.json_variables = R"({"add_generation_prompt": true})";
  EXPECT_EQ(Render("{{ messages[0].content }}", options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, CarriesTheTextOfRaiseException) {
  const absl::Status status = Render("{{ raise_exception('roles must alternate') }}").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "chat template: roles must alternate");
}

TEST(ChatTemplateTest, HasNoClockUnlessGivenOne) {
  const char source[] = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'no clock' }}";
  EXPECT_EQ(*Render(source), "no clock");
  ChatTemplateOptions options;
  options.now = absl::FromCivil(absl::CivilDay(2026, 11, 21), absl::UTCTimeZone());
  EXPECT_EQ(*Render(source, options), "21 Nov 2026");
}

TEST(ChatTemplateTest, NamesTheLineOfAMistake) {
  const struct {
    const char* source;
    absl::StatusCode code;
    const char* message;
  } kCases[] = {
      {"a\n{{ b", absl::StatusCode::kInvalidArgument, "line 2: a tag is not ended by '}}'"},
      {"\n\n{% if x", absl::StatusCode::kInvalidArgument, "line 3: a tag is not ended by '%}'"},
      {"{# x", absl::StatusCode::kInvalidArgument, "a comment is not ended"},
      {"{{ 'abc }}", absl::StatusCode::kInvalidArgument, "a string is not ended"},
      {"{{ 'abc\\", absl::StatusCode::kInvalidArgument, "a string is not ended"},
      {"{{", absl::StatusCode::kInvalidArgument, "a tag is not ended"},
      {"{%", absl::StatusCode::kInvalidArgument, "a tag is not ended"},
      {"{% if x %}y", absl::StatusCode::kInvalidArgument, "expected '{% endif %}'"},
      {"{% for x in y %}", absl::StatusCode::kInvalidArgument, "expected '{% endfor %}'"},
      {"{% endif %}", absl::StatusCode::kInvalidArgument, "unexpected tag 'endif'"},
      {"{% break %}", absl::StatusCode::kInvalidArgument, "outside a loop"},
      {"{{ }}", absl::StatusCode::kInvalidArgument, "expected an expression"},
      {"{{ (1 }}", absl::StatusCode::kInvalidArgument, "unexpected '}'"},
      {"{{ 1 ] }}", absl::StatusCode::kInvalidArgument, "unexpected ']'"},
      {"{{ 99999999999999999999 }}", absl::StatusCode::kInvalidArgument, "too large"},
      {"{{ '\\ud800' }}", absl::StatusCode::kInvalidArgument, "not a character"},
      {"{% include 'x' %}", absl::StatusCode::kUnimplemented, "tag 'include' is not supported"},
      {"\n{{ 1 | shuffle }}", absl::StatusCode::kUnimplemented, "line 2: filter 'shuffle' is not supported"},
      {"{{ 1 is weird }}", absl::StatusCode::kUnimplemented, "test 'weird' is not supported"},
      {"\n{{ nothing.at.all }}", absl::StatusCode::kInvalidArgument, "line 2: 'nothing' is undefined"},
      {"{{ 'a' + 1 }}", absl::StatusCode::kInvalidArgument, "cannot apply '+' to str and int"},
      {"{{ 1 // 0 }}", absl::StatusCode::kInvalidArgument, "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", absl::StatusCode::kInvalidArgument, "overflows"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", absl::StatusCode::kInvalidArgument, "overflows"},
      {"{{ messages.append(1) }}", absl::StatusCode::kInvalidArgument, "'append' is undefined"},
      {"{% set messages.x = 1 %}", absl::StatusCode::kInvalidArgument, "'messages' is not a namespace"},
      {"{% for a, b in [[1, 2, 3]] %}{% endfor %}", absl::StatusCode::kInvalidArgument, "cannot unpack 3"},
      {"{{ 'a'.split('') }}", absl::StatusCode::kInvalidArgument, "split at an empty string"},
      {"{{ messages[::0] }}", absl::StatusCode::kInvalidArgument, "step of a slice is zero"},
      {"\xff", absl::StatusCode::kInvalidArgument, "not UTF-8 at byte 0"},
  };
  for (const auto& test_case : kCases) {
    const absl::Status status = Render(test_case.source).status();
    EXPECT_EQ(status.code(), test_case.code) << test_case.source << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test_case.message)) << test_case.source;
  }
}

TEST(ChatTemplateTest, EndsRunawayTemplates) {
  const char* kSources[] = {
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{{ range(1000000000) | length }}",
      "{{ 'x' * 1000000000000 }}",
      "{{ 'x' * 2000000 }}",
      "{{ [0] * 9000000000000000000 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(90) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(90000) %}{% set ns.s = ns.s ~ 'abcdefgh' %}{% endfor "
      "%}",
      "{% for i in range(100000) %}{{ 'abcdefghijklmnopqrstuvwxyz' }}{% endfor %}",
      "{% set t %}{% for i in range(100000) %}{{ 'abcdefghijklmnopqrstuvwxyz' }}{% endfor %}{% endset %}",
      "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
      "{{ ('ab' * 100000).strip('x' * 100000) }}",
      "{% set big = range(90000) | list %}{% for i in big %}{{ 'x' if i in big }}{% endfor %}",
  };
  for (const char* source : kSources) {
    const absl::Status status = Render(source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << source << ": " << status;
  }
}

TEST(ChatTemplateTest, BoundsNesting) {
  const auto repeat = [](absl::string_view text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) absl::StrAppend(&out, text);
    return out;
  };
  const std::string kSources[] = {
      absl::StrCat("{{ ", repeat("(", 5000), "1", repeat(")", 5000), " }}"),
      absl::StrCat("{{ ", repeat("[", 5000), repeat("]", 5000), " }}"),
      absl::StrCat("{{ ", repeat("not ", 5000), "1 }}"),
      absl::StrCat("{{ ", repeat("- ", 5000), "1 }}"),
      absl::StrCat("{{ 1", repeat(" + 1", 5000), " }}"),
      absl::StrCat("{{ 'x'", repeat(" | trim", 5000), " }}"),
      absl::StrCat("{{ x", repeat(".y", 5000), " }}"),
      absl::StrCat("{{ 1", repeat(" if 1 else 1", 5000), " }}"),
      absl::StrCat(repeat("{% if 1 %}", 5000), repeat("{% endif %}", 5000)),
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% for y in [ns.x] %}{% set ns.x = loop %}"
      "{% endfor %}{% endfor %}",
  };
  for (const std::string& source : kSources) {
    const absl::Status status = Render(source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 60) << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("deeply"));
  }
}

TEST(ChatTemplateTest, FreesNamespacesThatHoldOneAnother) {
  // The leak checker of the address sanitizer judges this.
  EXPECT_EQ(
      *Render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{% set a.a = a %}"), "");
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% for i in range(20000) %}{% set ns.x = namespace(x=ns.x) %}"
                    "{% endfor %}{{ ns.x.x.x.x is defined }}"),
            "True");
}

TEST(ChatTemplateTest, KeepsScopesApart) {
  EXPECT_EQ(*Render("{% set x = 1 %}{% for i in [1] %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}"),
            "121");
  EXPECT_EQ(*Render("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
  EXPECT_EQ(*Render("{% set g = 'g' %}{% macro f(a) %}{{ g }}{{ a }}{{ i }}{% endmacro %}"
                    "{% for i in [1] %}{{ f(2) }}{% endfor %}"),
            "g2");
}

TEST(ChatTemplateTest, SurvivesTruncatedAndMangledTemplates) {
  for (const char* name : {"constructs.jinja", "inst.jinja", "headers_with_tools.jinja"}) {
    const absl::StatusOr<std::string> source = ReadFile(absl::StrCat(kChatData, name), 1 << 20);
    ASSERT_TRUE(source.ok()) << source.status();
    size_t num_failed = 0;
    for (size_t length = 0; length < source->size(); length += 3) {
      if (!Render(absl::string_view(*source).substr(0, length)).ok()) ++num_failed;
      std::string mangled = *source;
      mangled[length] = "{}%()[]'|.-"[length % 11];
      if (!Render(mangled).ok()) ++num_failed;
    }
    EXPECT_GT(num_failed, source->size() / 10) << name;
  }
}

TEST(ChatTemplateTest, RefusesMessagesThatAreNotUtf8) {
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse("{{ messages[0].content }}");
  ASSERT_TRUE(chat_template.ok());
  const absl::Status status = chat_template->Render({{"user", "a\xff"}}, {}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("message 0 is not UTF-8"));
}

}  // namespace
}  // namespace tandem

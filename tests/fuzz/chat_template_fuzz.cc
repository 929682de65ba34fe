// Chat templates and the conversations that they lay out.

#include "absl/strings/str_cat.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/unicode/unicode.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace tandem::fuzz {
namespace {

constexpr size_t kMostPromptBytes = size_t{1} << 16;

std::string MemberText(const nlohmann::ordered_json& json, const char* name) {
  if (!json.is_object() || !json.contains(name)) return "";
  return json[name].is_string() ? json[name].get<std::string>() : json[name].dump();
}

// As in the tests' golden.json: [role, content], or as transformers has it.
ChatMessage ReadMessage(const nlohmann::ordered_json& json) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string())
    return {.role = json[0], .content = json[1].get<std::string>()};
  ChatMessage message = {.role = MemberText(json, "role"),
                         .tool_call_id = MemberText(json, "tool_call_id"),
                         .name = MemberText(json, "name"),
                         .reasoning = MemberText(json, "reasoning_content")};
  if (json.is_object() && json.contains("content") && json["content"].is_array()) {
    for (const nlohmann::ordered_json& part : json["content"])
      message.parts.push_back(MemberText(part, "text"));
  } else if (!json.is_object() || !json.contains("content") || !json["content"].is_null()) {
    message.content = MemberText(json, "content");
  }
  if (!json.is_object() || !json.contains("tool_calls")) return message;
  for (const nlohmann::ordered_json& call : json["tool_calls"]) {
    const auto function = call.is_object() && call.contains("function") ? call["function"] : call;
    message.tool_calls.push_back({.id = MemberText(call, "id"),
                                  .name = MemberText(function, "name"),
                                  .arguments = MemberText(function, "arguments")});
  }
  return message;
}

bool RunChatTemplate(absl::string_view input) {
  InputReader reader(input);
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(reader.Part());
  if (!chat_template.ok()) return Refused(chat_template.status(), "");
  // A message with a call, so that templates have something to lay out whatever becomes of the conversation.
  std::vector<ChatMessage> messages = {{.role = "user", .content = "Hello"}};
  ChatTemplateOptions options = {
      .now = absl::UnixEpoch(), .max_steps = 50'000, .max_output_bytes = kMostPromptBytes};
  const nlohmann::ordered_json given = nlohmann::ordered_json::parse(reader.Part(), nullptr, false);
  if (given.is_object()) {
    options.add_generation_prompt = given.contains("prompt") && given["prompt"] == true;
    options.continue_final_message = given.contains("continue") && given["continue"] == true;
    if (given.contains("thinking")) options.variables["enable_thinking"] = given["thinking"] == true;
    options.json_variables = MemberText(given, "variables");
    options.documents = MemberText(given, "documents");
    options.spelling.arguments_as_text = given.contains("text_arguments");
    options.spelling.text_as_parts = given.contains("parts");
    if (given.contains("messages") && given["messages"].is_array()) {
      messages.clear();
      for (const nlohmann::ordered_json& message : given["messages"])
        messages.push_back(ReadMessage(message));
    }
    if (given.contains("tools") && given["tools"].is_array()) {
      for (const nlohmann::ordered_json& tool : given["tools"]) {
        const auto function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
        options.tools.push_back({.name = MemberText(function, "name"),
                                 .description = MemberText(function, "description"),
                                 .parameters = MemberText(function, "parameters")});
      }
    }
  }
  const auto render = [&] {
    return chat_template->Render(messages, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, options);
  };
  const absl::StatusOr<std::string> prompt = render();
  if (!prompt.ok()) {
    Refused(prompt.status(), "");
    return false;
  }
  Require(prompt->size() <= kMostPromptBytes, "a prompt within the bounds");
  Require(!FindInvalidUtf8(*prompt).has_value(), "UTF-8");
  Require(render().value_or("") == *prompt, "the same prompt again");
  return true;
}

// Each template of the tests with some of the conversations that it is tested with.
std::vector<std::string> ChatTemplateSeeds() {
  const std::string folder = "common/tokenizer/testdata/chat/";
  std::vector<std::string> seeds;
  std::map<std::string, int> used;
  for (const nlohmann::ordered_json& golden :
       nlohmann::ordered_json::parse(RepositoryFile(folder + "golden.json"))) {
    const std::string name = golden.at("template");
    if (used[name]++ % 12 != 11) continue;
    nlohmann::ordered_json given = golden;
    for (const char* const other : {"template", "text", "error"}) given.erase(other);
    seeds.push_back(Parts({RepositoryFile(folder + name), given.dump()}));
  }
  seeds.push_back(Parts(
      {"{%- set ns = namespace(n=0) -%}{% for i in range(9) %}{% set ns.n = ns.n + i ** 2 // 3 %}{% endfor %}"
       "{{ ns.n|tojson(indent=2) }}{{ messages|map(attribute='content')|join(',')|upper|replace('L', 'x') }}",
       "{}"}));
  seeds.push_back(
      Parts({"{% macro m(a, b=2) %}{{ a ~ b if a is defined and b is not none else '' }}{% endmacro %}"
             "{{ m(1) + m(b='x', a=[1, 2][::-1]) }}{{ 'a%s' | format(1) }}{{ x.items() if x is mapping }}",
             R"({"variables": {"x": {"k": [1, 2.5, null, true, "s"]}}})"}));
  return seeds;
}

const Registration kChatTemplate(
    {.name = "chat_template", .run = RunChatTemplate, .seeds = ChatTemplateSeeds, .spoilt = 10'000});

}  // namespace
}  // namespace tandem::fuzz

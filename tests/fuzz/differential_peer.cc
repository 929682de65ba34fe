// Answers differential.py, which asks the same of other implementations: a line of JSON in, a line of JSON
// out.
//
//   {"encode": {"kind": K, "text": T, "special": B}}     {"ids": [...]}
//   {"decode": {"kind": K, "ids": [...], "skip": B}}     {"text": T}
//   {"render": {"template": T, "messages": [...], "tools": [...], "prompt": B, "variables": {...}}} {"text":
//   T}; with "trial": true, messages are spelled as the template is found to expect them
//   {"traits": T}                                        {"text": what is found of the template}
//   {"json": HEX}                                        {"value": V}
//   an error of any of them                              {"error": MESSAGE, "code": CODE}

#include <iostream>
#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/model/config/strict_json.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/template_trials.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::fuzz {
namespace {

using Json = nlohmann::ordered_json;

const std::map<std::string, std::string> kSpecialTokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

Json Failed(const absl::Status& status) {
  return {{"error", std::string(status.message())}, {"code", absl::StatusCodeToString(status.code())}};
}

std::shared_ptr<const Tokenizer> TokenizerOf(const std::string& kind) {
  static auto* const loaded = new std::map<std::string, std::shared_ptr<const Tokenizer>>();
  std::shared_ptr<const Tokenizer>& tokenizer = (*loaded)[kind];
  if (tokenizer == nullptr)
    tokenizer = Tokenizer::Load(absl::StrCat(TANDEM_SOURCE_DIR, "/common/tokenizer/testdata/", kind)).value();
  return tokenizer;
}

Json Encoded(const Json& asked) {
  const absl::StatusOr<TokenIds> ids =
      TokenizerOf(asked.at("kind"))
          ->Encode(asked.at("text").get<std::string>(),
                   {.parse_special = asked.at("special"), .add_special_tokens = false});
  if (!ids.ok()) return Failed(ids.status());
  return {{"ids", *ids}};
}

Json Decoded(const Json& asked) {
  return {{"text", TokenizerOf(asked.at("kind"))->Decode(asked.at("ids").get<TokenIds>(), asked.at("skip"))}};
}

std::string TextOf(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

ChatMessage MessageOf(const Json& json) {
  ChatMessage message{.role = TextOf(json, "role"),
                      .tool_call_id = TextOf(json, "tool_call_id"),
                      .name = TextOf(json, "name"),
                      .reasoning = TextOf(json, "reasoning_content")};
  const auto content = json.find("content");
  if (content != json.end() && content->is_array()) {
    for (const Json& part : *content) message.parts.push_back(TextOf(part, "text"));
  } else if (content != json.end() && !content->is_null()) {
    message.content = TextOf(json, "content");
  }
  for (const Json& call : json.value("tool_calls", Json::array())) {
    message.tool_calls.push_back({.id = TextOf(call, "id"),
                                  .name = TextOf(call["function"], "name"),
                                  .arguments = TextOf(call["function"], "arguments")});
  }
  return message;
}

TemplateTraits TraitsOf(const ChatTemplate& chat_template) {
  return TryTemplate(
      [&](absl::Span<const ChatMessage> messages, const ChatTemplateOptions& options) {
        return chat_template.Render(messages, kSpecialTokens, options);
      },
      chat_template.source());
}

Json Rendered(const Json& asked) {
  const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(asked.at("template").get<std::string>());
  if (!parsed.ok()) return Failed(parsed.status());
  std::vector<ChatMessage> messages;
  for (const Json& message : asked.at("messages")) messages.push_back(MessageOf(message));
  ChatTemplateOptions options;
  options.add_generation_prompt = asked.at("prompt");
  if (asked.contains("variables")) options.json_variables = asked["variables"].dump();
  if (asked.value("trial", false)) options.spelling = TraitsOf(*parsed).spelling;
  for (const Json& tool : asked.value("tools", Json::array())) {
    options.tools.push_back({.name = TextOf(tool["function"], "name"),
                             .description = TextOf(tool["function"], "description"),
                             .parameters = TextOf(tool["function"], "parameters")});
  }
  const absl::StatusOr<std::string> text = parsed->Render(messages, kSpecialTokens, options);
  if (!text.ok()) return Failed(text.status());
  return {{"text", *text}};
}

Json FoundTraits(const std::string& source) {
  const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return Failed(parsed.status());
  return {{"text", DescribeTraits(TraitsOf(*parsed))}};
}

Json ReadJson(const std::string& hex) {
  const absl::StatusOr<nlohmann::json> value = ParseStrictJson(absl::HexStringToBytes(hex), "text");
  if (!value.ok()) return Failed(value.status());
  return {{"value", *value}};
}

Json Answer(const Json& asked) {
  if (asked.contains("encode")) return Encoded(asked["encode"]);
  if (asked.contains("decode")) return Decoded(asked["decode"]);
  if (asked.contains("render")) return Rendered(asked["render"]);
  if (asked.contains("traits")) return FoundTraits(asked["traits"]);
  return ReadJson(asked.at("json"));
}

}  // namespace
}  // namespace tandem::fuzz

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = tandem::fuzz::Answer(tandem::fuzz::Json::parse(line));
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }
}

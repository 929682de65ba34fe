// Answers differential.py, which asks the same of other implementations: a line of JSON in, a line of JSON
// out.
//
//   {"encode": {"kind": K, "text": T, "special": B}}     {"ids": [...]}
//   {"decode": {"kind": K, "ids": [...], "skip": B}}     {"text": T}
//   {"render": {"template": T, "messages": [...], "tools": [...], "prompt": B, "variables": {...}}} {"text":
//   T}
//   {"json": HEX}                                        {"value": V}
//   an error of any of them                              {"error": MESSAGE, "code": CODE}

#include <iostream>
#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/model/config/strict_json.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::fuzz {
namespace {

using Json = nlohmann::ordered_json;

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

Json Rendered(const Json& asked) {
  const absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(asked.at("template").get<std::string>());
  if (!parsed.ok()) return Failed(parsed.status());
  std::vector<ChatMessage> messages;
  for (const Json& message : asked.at("messages")) {
    messages.push_back({.role = TextOf(message, "role"),
                        .content = TextOf(message, "content"),
                        .name = TextOf(message, "name")});
  }
  ChatTemplateOptions options;
  options.add_generation_prompt = asked.at("prompt");
  if (asked.contains("variables")) options.json_variables = asked["variables"].dump();
  for (const Json& tool : asked.value("tools", Json::array())) {
    options.tools.push_back({.name = TextOf(tool["function"], "name"),
                             .description = TextOf(tool["function"], "description"),
                             .parameters = TextOf(tool["function"], "parameters")});
  }
  const absl::StatusOr<std::string> text =
      parsed->Render(messages, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, options);
  if (!text.ok()) return Failed(text.status());
  return {{"text", *text}};
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

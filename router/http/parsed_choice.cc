#include "router/http/parsed_choice.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "common/chat/json_scanner.h"

namespace tandem::router {

void ParsedChoice::Add(const v1::OutputDelta& delta) {
  content += delta.content();
  reasoning += delta.reasoning();
  if (!delta.has_tool_call()) return;
  const v1::ToolCallDelta& piece = delta.tool_call();
  if (!piece.name().empty() || calls.empty()) {
    v1::ToolCall& call = calls.emplace_back();
    call.set_id(piece.id());
    call.set_name(piece.name());
  }
  *calls.back().mutable_arguments() += piece.arguments();
}

bool IsCut(absl::string_view arguments) {
  JsonScanner scanner;
  for (const char byte : absl::StripAsciiWhitespace(arguments)) {
    if (scanner.Push(byte) != JsonScanner::Step::kMore) return false;
  }
  return true;
}

OrderedJson ChatDelta(const v1::OutputDelta& delta) {
  if (delta.has_reasoning()) return {{"reasoning_content", delta.reasoning()}};
  if (!delta.has_tool_call()) return {{"content", delta.content()}};
  const v1::ToolCallDelta& piece = delta.tool_call();
  OrderedJson call = {{"index", piece.index()}};
  OrderedJson function = OrderedJson::object();
  if (!piece.name().empty()) {
    call["id"] = piece.id();
    call["type"] = "function";
    function["name"] = piece.name();
  }
  function["arguments"] = piece.arguments();
  call["function"] = std::move(function);
  return {{"tool_calls", OrderedJson::array({std::move(call)})}};
}

OrderedJson ChatMessageJson(const ParsedChoice& choice) {
  OrderedJson message = {{"role", "assistant"}};
  const bool only_calls = choice.content.empty() && !choice.calls.empty();
  message["content"] = only_calls ? OrderedJson() : OrderedJson(choice.content);
  message["refusal"] = nullptr;
  if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
  if (choice.calls.empty()) return message;
  OrderedJson& calls = message["tool_calls"] = OrderedJson::array();
  for (const v1::ToolCall& call : choice.calls) {
    calls.push_back({{"id", call.id()},
                     {"type", "function"},
                     {"function", {{"name", call.name()}, {"arguments", call.arguments()}}}});
  }
  return message;
}

}  // namespace tandem::router

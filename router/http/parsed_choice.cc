#include "router/http/parsed_choice.h"

#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/chat/json_scanner.h"

namespace tandem::router {
namespace {

OrderedJson InputDelta(size_t index, std::string input) {
  return {{"tool_calls", {{{"index", index}, {"custom", {{"input", std::move(input)}}}}}}};
}

}  // namespace

std::vector<OrderedJson> ParsedChoice::Add(const v1::OutputDelta& delta) {
  content_ += delta.content();
  reasoning_ += delta.reasoning();
  if (!delta.has_tool_call() && !is_stream_) return {};
  if (delta.has_reasoning()) return {OrderedJson{{"reasoning_content", delta.reasoning()}}};
  if (!delta.has_tool_call()) return {OrderedJson{{"content", delta.content()}}};
  const v1::ToolCallDelta& piece = delta.tool_call();
  std::vector<OrderedJson> said;
  const bool begins = !piece.name().empty() || calls_.empty();
  if (begins) {
    said = Finish();
    Call& call = calls_.emplace_back();
    call.call.set_id(piece.id());
    call.call.set_name(piece.name());
    const auto origin = origins_->find(piece.name());
    call.custom = origin != origins_->end() && origin->second.custom;
  }
  Call& call = calls_.back();
  *call.call.mutable_arguments() += piece.arguments();
  std::string input = call.custom ? call.reader.Push(piece.arguments()) : "";
  call.input += input;
  if (!is_stream_) return {};
  if (call.custom && !begins) {
    if (!input.empty()) said.push_back(InputDelta(piece.index(), std::move(input)));
    return said;
  }
  OrderedJson json = {{"index", piece.index()}};
  if (begins) {
    json["id"] = piece.id();
    json["type"] = call.custom ? "custom" : "function";
  }
  OrderedJson& inner = json[call.custom ? "custom" : "function"] = OrderedJson::object();
  if (begins) inner["name"] = piece.name();
  inner[call.custom ? "input" : "arguments"] = call.custom ? std::move(input) : piece.arguments();
  said.push_back({{"tool_calls", OrderedJson::array({std::move(json)})}});
  return said;
}

std::vector<OrderedJson> ParsedChoice::Finish() {
  if (calls_.empty() || !calls_.back().custom) return {};
  Call& call = calls_.back();
  std::string rest = call.reader.Finish();
  call.input += rest;
  if (rest.empty() || !is_stream_) return {};
  return {InputDelta(calls_.size() - 1, std::move(rest))};
}

bool ParsedChoice::LastCallIsCut() const {
  return !calls_.empty() && IsCut(calls_.back().call.arguments());
}

bool IsCut(absl::string_view arguments) {
  JsonScanner scanner;
  for (const char byte : absl::StripAsciiWhitespace(arguments)) {
    if (scanner.Push(byte) != JsonScanner::Step::kMore) return false;
  }
  return true;
}

OrderedJson ParsedChoice::Message() const {
  OrderedJson message = {{"role", "assistant"}};
  const bool only_calls = content_.empty() && !calls_.empty();
  message["content"] = only_calls ? OrderedJson() : OrderedJson(content_);
  message["refusal"] = nullptr;
  if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
  if (calls_.empty()) return message;
  OrderedJson& calls = message["tool_calls"] = OrderedJson::array();
  for (const Call& call : calls_) {
    OrderedJson json = {{"id", call.call.id()}, {"type", call.custom ? "custom" : "function"}};
    if (call.custom) {
      json["custom"] = {{"name", call.call.name()}, {"input", call.input}};
    } else {
      json["function"] = {{"name", call.call.name()}, {"arguments", call.call.arguments()}};
    }
    calls.push_back(std::move(json));
  }
  return message;
}

}  // namespace tandem::router

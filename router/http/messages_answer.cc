#include "router/http/messages_answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/http/openai_answer.h"

namespace tandem::router {
namespace {

const char* ErrorTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

OrderedJson ErrorBody(int http_status, const absl::Status& status, const FieldNames* names) {
  return {{"type", "error"},
          {"error",
           {{"type", ErrorTypeOf(http_status)}, {"message", ErrorJson(status, names)["error"]["message"]}}}};
}

// A tool's arguments. Those that a limit has cut, or that the target has spelled wrong, are no object;
// Anthropic wraps them like this.
OrderedJson InputOf(const std::string& arguments) {
  OrderedJson input = OrderedJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (input.is_object()) return input;
  return {{"INVALID_JSON", arguments}};
}

}  // namespace

HttpAnswer InMessagesForm(HttpAnswer answer, const absl::Status& status, const FieldNames* names) {
  answer.body = JsonAnswer(ErrorBody(answer.status, status, names)).body;
  return answer;
}

HttpAnswer MessagesErrorAnswer(const absl::Status& status, const FieldNames* names) {
  return InMessagesForm(ErrorAnswer(status), status, names);
}

MessagesAnswer::MessagesAnswer(const CompletionRequest& request, std::string id)
    : request_(request), id_(std::move(id)) {}

OrderedJson MessagesAnswer::Usage() const {
  const v1::Usage& usage = finished_.usage();
  // Of what is not known before the end.
  const uint32_t prompt = std::max(usage.prompt_tokens(), started_.prompt_tokens());
  return {{"input_tokens", prompt - std::min(usage.cached_prompt_tokens(), prompt)},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_prompt_tokens()},
          {"output_tokens", usage.completion_tokens()}};
}

OrderedJson MessagesAnswer::BlockJson(const Block& block, bool is_done) {
  switch (block.kind) {
    case Kind::kText:
      return {{"type", "text"}, {"text", is_done ? block.text : ""}};
    case Kind::kThinking:
      // Nothing is signed: whoever sends it back is believed.
      return {{"type", "thinking"}, {"thinking", is_done ? block.text : ""}, {"signature", ""}};
    case Kind::kToolUse:
      break;
  }
  return {{"type", "tool_use"},
          {"id", block.id},
          {"name", block.name},
          {"input", is_done ? InputOf(block.text) : OrderedJson::object()}};
}

void MessagesAnswer::SetEnd(OrderedJson& json) const {
  const bool called = std::any_of(blocks_.begin(), blocks_.end(),
                                  [](const Block& block) { return block.kind == Kind::kToolUse; });
  const bool stopped = finished_.reason() == v1::FINISH_REASON_STOP_STRING;
  const bool limited = finished_.reason() == v1::FINISH_REASON_MAX_TOKENS;
  const bool full = finished_.usage().completion_tokens() < request_.prompts[0].stopping().max_tokens();
  json["stop_reason"] = limited && full ? "model_context_window_exceeded"
                        : limited       ? "max_tokens"
                        : stopped       ? "stop_sequence"
                        : called        ? "tool_use"
                                        : "end_turn";
  json["stop_sequence"] = stopped ? OrderedJson(finished_.matched_stop()) : OrderedJson();
}

OrderedJson MessagesAnswer::Message() const {
  return {{"id", absl::StrCat("msg_", id_)},
          {"type", "message"},
          {"role", "assistant"},
          {"model", NameOfModel(started_)},
          {"content", OrderedJson::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", Usage()}};
}

std::string MessagesAnswer::Event(OrderedJson event) const {
  if (!request_.stream) return "";
  const std::string type = event["type"];
  return ServerSentEvent(event, type);
}

void MessagesAnswer::EndBlock(std::string& out) {
  if (!std::exchange(in_block_, false)) return;
  out += Event({{"type", "content_block_stop"}, {"index", blocks_.size() - 1}});
}

void MessagesAnswer::OnDelta(const v1::OutputDelta& delta, std::string& out) {
  const Kind kind = delta.has_tool_call()   ? Kind::kToolUse
                    : delta.has_reasoning() ? Kind::kThinking
                                            : Kind::kText;
  const v1::ToolCallDelta& call = delta.tool_call();
  if (!in_block_ || blocks_.back().kind != kind || !call.name().empty()) {
    EndBlock(out);
    blocks_.push_back({.kind = kind, .text = {}, .id = call.id(), .name = call.name()});
    in_block_ = true;
    out += Event({{"type", "content_block_start"},
                  {"index", blocks_.size() - 1},
                  {"content_block", BlockJson(blocks_.back(), /*is_done=*/false)}});
  }
  const std::string& text = kind == Kind::kToolUse    ? call.arguments()
                            : kind == Kind::kThinking ? delta.reasoning()
                                                      : delta.content();
  if (text.empty()) return;
  blocks_.back().text += text;
  OrderedJson piece = kind == Kind::kToolUse
                          ? OrderedJson{{"type", "input_json_delta"}, {"partial_json", text}}
                      : kind == Kind::kThinking ? OrderedJson{{"type", "thinking_delta"}, {"thinking", text}}
                                                : OrderedJson{{"type", "text_delta"}, {"text", text}};
  out += Event({{"type", "content_block_delta"}, {"index", blocks_.size() - 1}, {"delta", std::move(piece)}});
}

std::string MessagesAnswer::OnEvent(size_t, const v1::GenerateResponse& event, const PromptEncoder&) {
  std::string out;
  if (event.has_started()) {
    started_ = event.started();
    out += Event({{"type", "message_start"}, {"message", Message()}});
    out += Event({{"type", "ping"}});
  }
  for (const v1::OutputDelta& delta : event.chunk().deltas()) OnDelta(delta, out);
  if (event.has_finished()) {
    finished_ = event.finished();
    for (const v1::OutputDelta& delta : finished_.deltas()) OnDelta(delta, out);
    EndBlock(out);
  }
  return out;
}

std::string MessagesAnswer::Ending() {
  OrderedJson end = OrderedJson::object();
  SetEnd(end);
  OrderedJson event = {{"type", "message_delta"}, {"delta", std::move(end)}, {"usage", Usage()}};
  event["tandem"] = TandemJson(started_, finished_.speculation());
  return Event(std::move(event)) + Event({{"type", "message_stop"}});
}

std::string MessagesAnswer::Failure(const absl::Status& status) {
  return Event(ErrorBody(HttpStatusOf(status), status, &request_.names));
}

OrderedJson MessagesAnswer::Whole() {
  OrderedJson message = Message();
  for (const Block& block : blocks_) message["content"].push_back(BlockJson(block, /*is_done=*/true));
  SetEnd(message);
  message["tandem"] = TandemJson(started_, finished_.speculation());
  return message;
}

}  // namespace tandem::router

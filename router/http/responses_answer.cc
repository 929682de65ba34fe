#include "router/http/responses_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "router/http/messages_answer.h"
#include "router/http/openai_answer.h"
#include "router/http/parsed_choice.h"

namespace tandem::router {

std::unique_ptr<AnswerWriter> MakeAnswerWriter(const CompletionRequest& request, std::string id,
                                               int64_t created) {
  if (request.api == CompletionRequest::Api::kResponses)
    return std::make_unique<ResponsesAnswer>(request, std::move(id), created);
  if (request.api == CompletionRequest::Api::kMessages)
    return std::make_unique<MessagesAnswer>(request, std::move(id));
  return std::make_unique<CompletionAnswer>(request, std::move(id), created);
}

ResponsesAnswer::ResponsesAnswer(const CompletionRequest& request, std::string id, int64_t created)
    : request_(request), id_(std::move(id)), created_(created) {}

const char* ResponsesAnswer::Status() const {
  return finished_.reason() == v1::FINISH_REASON_MAX_TOKENS ? "incomplete" : "completed";
}

OrderedJson ResponsesAnswer::PartJson(const Item& item, const std::string& text) {
  if (item.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", OrderedJson::array()},
          {"logprobs", OrderedJson::array()}};
}

OrderedJson ResponsesAnswer::ItemJson(const Item& item, bool is_done) const {
  const bool cut = ended_ && item.kind == Kind::kCall && &item == &items_.back() && IsCut(item.text);
  const char* const status = !is_done ? "in_progress" : cut ? "incomplete" : "completed";
  OrderedJson content = OrderedJson::array();
  if (is_done) content.push_back(PartJson(item, item.text));
  switch (item.kind) {
    case Kind::kMessage:
      return {{"id", item.id},
              {"type", "message"},
              {"status", status},
              {"role", "assistant"},
              {"content", std::move(content)}};
    case Kind::kReasoning:
      return {{"id", item.id},
              {"type", "reasoning"},
              {"status", status},
              {"summary", OrderedJson::array()},
              {"content", std::move(content)}};
    case Kind::kCall:
    case Kind::kCustomCall:
      break;
  }
  const bool custom = item.kind == Kind::kCustomCall;
  OrderedJson call = {{"id", item.id}, {"type", custom ? "custom_tool_call" : "function_call"}};
  if (!custom) call["status"] = status;
  call["call_id"] = item.call_id;
  call["name"] = item.tool.name;
  if (!item.tool.space.empty()) call["namespace"] = item.tool.space;
  call[custom ? "input" : "arguments"] = is_done ? item.text : "";
  return call;
}

OrderedJson ResponsesAnswer::Response(const char* status) const {
  OrderedJson response = {{"id", absl::StrCat("resp_", id_)},
                          {"object", "response"},
                          {"created_at", created_},
                          {"status", status},
                          {"background", false},
                          {"error", nullptr},
                          {"incomplete_details", nullptr},
                          {"model", NameOfModel(started_)},
                          {"output", OrderedJson::array()},
                          {"previous_response_id", nullptr},
                          {"store", false},
                          {"truncation", "disabled"},
                          {"usage", nullptr}};
  for (const auto& [name, value] : request_.echoed.items()) response[name] = value;
  if (absl::string_view(status) == "in_progress") return response;
  for (const Item& item : items_) response["output"].push_back(ItemJson(item, /*is_done=*/true));
  if (absl::string_view(status) == "incomplete")
    response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (absl::string_view(status) == "failed") return response;
  const v1::Usage& usage = finished_.usage();
  response["usage"] = {
      {"input_tokens", usage.prompt_tokens()},
      // Writing to a cache has no price here.
      {"input_tokens_details", {{"cached_tokens", usage.cached_prompt_tokens()}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.completion_tokens()},
      {"output_tokens_details", {{"reasoning_tokens", 0}}},
      {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()}};
  response["tandem"] = TandemJson(started_, finished_.speculation());
  return response;
}

std::string ResponsesAnswer::Event(const char* type, OrderedJson fields, bool about_item) {
  if (!request_.stream) return "";
  OrderedJson event = {{"type", type}, {"sequence_number", num_events_++}};
  if (about_item) {
    event["item_id"] = items_.back().id;
    event["output_index"] = items_.size() - 1;
  }
  for (auto& [name, value] : fields.items()) event[name] = std::move(value);
  return ServerSentEvent(event, type);
}

void ResponsesAnswer::BeginItem(Item item, std::string& out) {
  EndItem(out);
  items_.push_back(std::move(item));
  in_item_ = true;
  const Item& begun = items_.back();
  out += Event("response.output_item.added",
               {{"output_index", items_.size() - 1}, {"item", ItemJson(begun, /*is_done=*/false)}}, false);
  if (begun.kind == Kind::kMessage || begun.kind == Kind::kReasoning)
    out += Event("response.content_part.added", {{"content_index", 0}, {"part", PartJson(begun, "")}});
}

void ResponsesAnswer::EndItem(std::string& out) {
  if (!in_item_) return;
  Item& item = items_.back();
  if (item.kind == Kind::kCustomCall) AddText(item.input.Finish(), out);
  in_item_ = false;
  switch (item.kind) {
    case Kind::kMessage:
      out += Event("response.output_text.done",
                   {{"content_index", 0}, {"text", item.text}, {"logprobs", OrderedJson::array()}});
      break;
    case Kind::kReasoning:
      out += Event("response.reasoning_text.done", {{"content_index", 0}, {"text", item.text}});
      break;
    case Kind::kCall:
      out += Event("response.function_call_arguments.done",
                   {{"name", item.tool.name}, {"arguments", item.text}});
      break;
    case Kind::kCustomCall:
      out += Event("response.custom_tool_call_input.done", {{"input", item.text}});
      break;
  }
  if (item.kind == Kind::kMessage || item.kind == Kind::kReasoning)
    out += Event("response.content_part.done", {{"content_index", 0}, {"part", PartJson(item, item.text)}});
  out += Event("response.output_item.done",
               {{"output_index", items_.size() - 1}, {"item", ItemJson(item, /*is_done=*/true)}}, false);
}

void ResponsesAnswer::OnDelta(const v1::OutputDelta& delta, std::string& out) {
  const v1::ToolCallDelta& call = delta.tool_call();
  const auto found = request_.origins.find(call.name());
  Kind kind = delta.has_reasoning() ? Kind::kReasoning : Kind::kMessage;
  if (delta.has_tool_call()) {
    // What goes on with a call has no name.
    const bool goes_on = call.name().empty() && in_item_;
    const bool custom = found != request_.origins.end() && found->second.custom;
    kind = goes_on ? items_.back().kind : custom ? Kind::kCustomCall : Kind::kCall;
  }
  if (!in_item_ || items_.back().kind != kind || !call.name().empty()) {
    static constexpr const char* kPrefixes[] = {"msg_", "rs_", "fc_", "ctc_"};
    BeginItem({.kind = kind,
               .id = absl::StrCat(kPrefixes[static_cast<size_t>(kind)], id_, "-", items_.size()),
               .text = {},
               .call_id = call.id(),
               .tool = found == request_.origins.end() ? ToolOrigin{.name = call.name(), .space = {}}
                                                       : found->second,
               .input = {}},
              out);
  }
  switch (kind) {
    case Kind::kMessage:
      return AddText(delta.content(), out);
    case Kind::kReasoning:
      return AddText(delta.reasoning(), out);
    case Kind::kCall:
      return AddText(call.arguments(), out);
    case Kind::kCustomCall:
      return AddText(items_.back().input.Push(call.arguments()), out);
  }
}

void ResponsesAnswer::AddText(const std::string& text, std::string& out) {
  if (text.empty()) return;
  Item& item = items_.back();
  item.text += text;
  switch (item.kind) {
    case Kind::kMessage:
      out += Event("response.output_text.delta",
                   {{"content_index", 0}, {"delta", text}, {"logprobs", OrderedJson::array()}});
      return;
    case Kind::kReasoning:
      out += Event("response.reasoning_text.delta", {{"content_index", 0}, {"delta", text}});
      return;
    case Kind::kCall:
      out += Event("response.function_call_arguments.delta", {{"delta", text}});
      return;
    case Kind::kCustomCall:
      out += Event("response.custom_tool_call_input.delta", {{"delta", text}});
      return;
  }
}

std::string ResponsesAnswer::OnEvent(size_t, const v1::GenerateResponse& event, const PromptEncoder&) {
  std::string out;
  if (event.has_started()) {
    started_ = event.started();
    out += Event("response.created", {{"response", Response("in_progress")}}, false);
    out += Event("response.in_progress", {{"response", Response("in_progress")}}, false);
  }
  for (const v1::OutputDelta& delta : event.chunk().deltas()) OnDelta(delta, out);
  if (event.has_finished()) {
    finished_ = event.finished();
    for (const v1::OutputDelta& delta : finished_.deltas()) OnDelta(delta, out);
    ended_ = true;
    EndItem(out);
  }
  return out;
}

std::string ResponsesAnswer::Ending() {
  return Event(absl::StrCat("response.", Status()).c_str(), {{"response", Response(Status())}}, false);
}

std::string ResponsesAnswer::Failure(const absl::Status& status) {
  OrderedJson response = Response("failed");
  const OrderedJson error = ErrorJson(status, &request_.names)["error"];
  response["error"] = {{"code", "server_error"}, {"message", error["message"]}};
  return Event("response.failed", {{"response", std::move(response)}}, false);
}

OrderedJson ResponsesAnswer::Whole() {
  return Response(Status());
}

}  // namespace tandem::router

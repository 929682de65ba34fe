#include "router/http/openai_messages.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "router/models/tool_json.h"
#include "router/serving/request.h"

namespace tandem::router {
namespace {

absl::Status ReadMessage(const Json& json, const std::string& path, v1::ChatMessage& message) {
  JsonFields fields(json, path);
  const std::optional<std::string> role = fields.Text("role");
  if (!role.has_value()) fields.Fail("role", "missing");
  // OpenAI's newer name for the same.
  message.set_role(role == "developer" ? "system" : role.value_or(""));
  if (const Json* const calls = fields.Find("tool_calls"))
    fields.Update(ReadToolCalls(OrderedJson(*calls), path + "tool_calls", message));
  if (auto id = fields.Text("tool_call_id")) message.set_tool_call_id(*std::move(id));
  if (auto name = fields.Text("name")) message.set_name(*std::move(name));
  // vLLM has both names.
  for (const char* name : {"reasoning_content", "reasoning"}) {
    if (auto reasoning = fields.Text(name)) message.set_reasoning(*std::move(reasoning));
  }
  if (const Json* const content = fields.Find("content")) {
    absl::StatusOr<std::string> text = ContentOf(*content, path + "content");
    fields.Update(text.status());
    if (text.ok()) message.set_content(*std::move(text));
  } else if (message.tool_calls().empty() && message.reasoning().empty()) {
    fields.Fail("content", "missing");
  }
  fields.Ignore("refusal");
  fields.Ignore("annotations");
  fields.Refuse("audio", "not supported");
  fields.Refuse("function_call", "not supported; expected tool_calls");
  return fields.Finish();
}

absl::Status ReadMessages(const Json& messages, v1::ChatPrompt& chat) {
  if (!messages.is_array()) return absl::InvalidArgumentError("messages: expected a list");
  if (messages.size() > static_cast<size_t>(kMaxChatMessages)) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: ", messages.size(), " of them, expected at most ", kMaxChatMessages));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(
        ReadMessage(messages[i], absl::StrCat("messages[", i, "]."), *chat.add_messages()));
  }
  return absl::OkStatus();
}

// A member of the body, its objects' members in the order in which they stand there.
OrderedJson Ordered(absl::string_view body, const char* name) {
  const OrderedJson whole = OrderedJson::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const auto found = whole.find(name);
  return found == whole.end() ? OrderedJson() : *found;
}

}  // namespace

absl::StatusOr<std::string> ContentOf(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a string or a list of parts"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    JsonFields part(content[i], absl::StrCat(path, "[", i, "]."));
    const std::optional<std::string> type = part.Text("type");
    if (type.has_value() && *type != "text" && *type != "input_text" && *type != "output_text")
      part.Fail("type", absl::StrCat("found \"", PrintableText(*type), "\", expected \"text\""));
    const std::optional<std::string> piece = part.Text("text");
    if (!piece.has_value()) part.Fail("text", "missing");
    TANDEM_RETURN_IF_ERROR(part.status());
    text += *piece;
  }
  return text;
}

namespace {

void ReadToolFields(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat) {
  if (fields.Find("tools") != nullptr) fields.Update(ReadTools(Ordered(body, "tools"), "tools", chat));
  v1::ToolChoice& choice = *chat.mutable_tool_choice();
  if (const Json* const given = fields.Find("tool_choice"))
    fields.Update(ReadToolChoice(OrderedJson(*given), "tool_choice", choice));
  const std::optional<bool> parallel = fields.Flag("parallel_tool_calls");
  choice.set_single_call(parallel == false && !chat.tools().empty() &&
                         choice.mode() != v1::ToolChoice::MODE_NONE);
}

}  // namespace

OrderedJson ReadTemplateVariables(absl::string_view body, JsonFields& fields) {
  const Json* const given = fields.Find("chat_template_kwargs");
  if (given == nullptr) return OrderedJson::object();
  if (given->is_object()) return Ordered(body, "chat_template_kwargs");
  fields.Fail("chat_template_kwargs", "expected an object");
  return OrderedJson::object();
}

void ReadChat(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat) {
  if (const Json* const messages = fields.Find("messages")) {
    fields.Update(ReadMessages(*messages, chat));
  } else {
    fields.Fail("messages", "missing");
  }
  ReadToolFields(body, fields, chat);
  chat.set_parse_output(true);
  fields.Refuse("functions", "not supported; expected tools", Json::array());
  fields.Refuse("function_call", "not supported; expected tool_choice", "none");
  chat.set_continue_final_message(fields.Flag("continue_final_message").value_or(false));
  OrderedJson variables = ReadTemplateVariables(body, fields);
  if (const auto opens = fields.Flag("add_generation_prompt"); opens.has_value()) {
    if (*opens && chat.continue_final_message())
      fields.Fail("add_generation_prompt", "true, and continue_final_message as well; expected one of them");
    if (!*opens && !chat.continue_final_message()) variables["add_generation_prompt"] = false;
  }
  if (!variables.empty()) chat.set_template_variables(variables.dump());
}

}  // namespace tandem::router

#include "router/http/openai_messages.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/rpc/status.h"
#include "router/http/raw_json.h"
#include "router/http/responses_tools.h"
#include "router/models/tool_json.h"
#include "router/serving/request.h"

namespace tandem::router {
namespace {

bool IsCustom(const Json& json) {
  return json.is_object() && json.value("type", Json()) == "custom";
}

// {"id": ..., "type": "custom", "custom": {"name": ..., "input": ...}}: a call of a tool that takes a text.
absl::Status ReadCustomCall(const Json& json, const JsonFields& outer, const std::string& path,
                            v1::ToolCall& call) {
  JsonFields fields(json, outer, path + ".");
  for (const char* name : {"type", "index"}) fields.Ignore(name);
  call.set_id(fields.Text("id").value_or(""));
  const Json* const custom = fields.Find("custom");
  if (custom == nullptr) {
    fields.Missing("custom");
  } else {
    JsonFields own(*custom, fields, path + ".custom.");
    call.set_name(own.Text("name").value_or(""));
    if (call.name().empty()) own.Missing("name");
    call.set_arguments(ArgumentsOfInput(own.Text("input").value_or("")));
    fields.Update(own.Finish());
  }
  return fields.Finish();
}

// `text`: how the calls are written.
absl::Status ReadCalls(const Json& calls, absl::string_view text, const JsonFields& outer,
                       const std::string& path, v1::ChatMessage& message) {
  if (!calls.is_array())
    return WithReason(absl::InvalidArgumentError(path + ": expected a list of calls"), kInvalidType);
  const std::vector<absl::string_view> texts = RawElements(text);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = absl::StrCat(path, "[", i, "]");
    v1::ToolCall& call = *message.add_tool_calls();
    if (IsCustom(calls[i])) {
      TANDEM_RETURN_IF_ERROR(ReadCustomCall(calls[i], outer, place, call));
      continue;
    }
    TANDEM_RETURN_IF_ERROR(ReadToolCall(OrderedJson(calls[i]), place, call, AddTo(outer.ignored())));
    // Arguments that are an object stay as they are spelt.
    const absl::string_view arguments = RawMember(RawMember(texts[i], "function"), "arguments");
    if (absl::StartsWith(arguments, "{")) call.set_arguments(CompactJson(arguments));
  }
  return absl::OkStatus();
}

// `text`: how the message is written.
absl::Status ReadMessage(const Json& json, absl::string_view text, const JsonFields& outer,
                         const std::string& path, v1::ChatMessage& message) {
  JsonFields fields(json, outer, path);
  const std::optional<std::string> role = fields.Text("role");
  if (!role.has_value()) fields.Missing("role");
  // OpenAI's newer name for the same.
  message.set_role(role == "developer" ? "system" : role.value_or(""));
  if (const Json* const calls = fields.Find("tool_calls")) {
    fields.Update(ReadCalls(*calls, RawMember(text, "tool_calls"), fields, path + "tool_calls", message));
  }
  if (auto id = fields.Text("tool_call_id")) message.set_tool_call_id(*std::move(id));
  if (auto name = fields.Text("name")) message.set_name(*std::move(name));
  // vLLM has both names.
  for (const char* name : {"reasoning_content", "reasoning"}) {
    if (auto reasoning = fields.Text(name)) message.set_reasoning(*std::move(reasoning));
  }
  if (const Json* const content = fields.Find("content")) {
    fields.Update(ReadContent(*content, fields, path + "content", message));
  } else if (message.role() == "tool") {
    message.set_content("");  // The tool had nothing to say.
  } else if (message.role() != "assistant") {
    fields.Missing("content");
  }
  fields.Ignore("refusal");
  fields.Ignore("annotations");
  fields.Refuse("audio", "not supported");
  fields.Refuse("function_call", "not supported; expected tool_calls");
  return fields.Finish();
}

// `text`: how they are written.
absl::Status ReadMessages(const Json& messages, absl::string_view text, const JsonFields& outer,
                          v1::ChatPrompt& chat) {
  if (!messages.is_array())
    return WithReason(absl::InvalidArgumentError("messages: expected a list"), kInvalidType);
  if (messages.size() > static_cast<size_t>(kMaxChatMessages)) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: ", messages.size(), " of them, expected at most ", kMaxChatMessages));
  }
  const std::vector<absl::string_view> texts = RawElements(text);
  for (size_t i = 0; i < messages.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(
        ReadMessage(messages[i], texts[i], outer, absl::StrCat("messages[", i, "]."), *chat.add_messages()));
  }
  return absl::OkStatus();
}

// A member of the body, its objects' members in the order in which they stand there.
OrderedJson Ordered(absl::string_view body, const char* name) {
  const absl::string_view text = RawMember(body, name);
  if (text.empty()) return OrderedJson();
  return OrderedJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

// Has the assistant's turn begun as the request says, and gives the template what stands beside its
// variables.
void ReadTemplateFields(JsonFields& fields, v1::ChatPrompt& chat, OrderedJson& variables) {
  const auto set = [&variables](const char* name, OrderedJson value) {
    if (!variables.contains(name)) variables[name] = std::move(value);
  };
  chat.set_continue_final_message(fields.Flag("continue_final_message").value_or(false));
  if (const auto opens = fields.Flag("add_generation_prompt"); opens.has_value()) {
    if (*opens && chat.continue_final_message())
      fields.Fail("add_generation_prompt", "true, and continue_final_message as well; expected one of them");
    if (!*opens && !chat.continue_final_message()) variables["add_generation_prompt"] = false;
  }
  if (const auto effort = ReadReasoningEffort(fields, "reasoning_effort")) set("reasoning_effort", *effort);
  if (const auto thinks = fields.Flag("enable_thinking")) set("enable_thinking", *thinks);
  fields.Refuse("add_special_tokens", "expected false: the chat template adds them");
}

// vLLM's field: a list of objects.
void ReadDocuments(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat) {
  const Json* const given = fields.Find("documents");
  if (given == nullptr) return;
  if (!given->is_array()) return fields.FailType("documents", *given, "a list of objects");
  for (size_t i = 0; i < given->size(); ++i) {
    if (!(*given)[i].is_object())
      return fields.FailType(absl::StrCat("documents[", i, "]"), (*given)[i], "an object");
  }
  if (!given->empty()) chat.set_documents(Ordered(body, "documents").dump());
}

}  // namespace

std::function<void(const std::string&)> AddTo(IgnoredFields* ignored) {
  if (ignored == nullptr) return nullptr;
  return [ignored](const std::string& path) { ignored->Add(path); };
}

void KeepSpelling(absl::string_view text, v1::Tool& tool) {
  if (tool.parameters().empty()) return;
  const absl::string_view function = RawMember(text, "function");
  const bool is_inside = !function.empty() && function != "null";
  tool.set_parameters(CompactJson(RawMember(is_inside ? function : text, "parameters")));
}

std::optional<std::string> ReadReasoningEffort(JsonFields& fields, absl::string_view name) {
  return fields.OneOf(name, {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
}

absl::StatusOr<std::string> ContentOf(const Json& content, const JsonFields& outer, const std::string& path) {
  v1::ChatMessage message;
  TANDEM_RETURN_IF_ERROR(ReadContent(content, outer, path, message));
  std::string text = message.content();
  for (const std::string& part : message.content_parts()) text += part;
  return text;
}

absl::Status ReadContent(const Json& content, const JsonFields& outer, const std::string& path,
                         v1::ChatMessage& message, absl::Span<const char* const> ignored) {
  if (content.is_string()) {
    message.set_content(content.get<std::string>());
    return absl::OkStatus();
  }
  if (!content.is_array()) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat(path, ": expected a string or a list of parts")),
        kInvalidType);
  }
  if (content.empty()) message.set_content("");
  for (size_t i = 0; i < content.size(); ++i) {
    if (content[i].is_string()) {  // As vLLM takes them.
      message.add_content_parts(content[i].get<std::string>());
      continue;
    }
    JsonFields part(content[i], outer, absl::StrCat(path, "[", i, "]."));
    const std::optional<std::string> type = part.Text("type");
    // What the assistant said in refusing is a text of its message.
    const char* const member = type == "refusal" ? "refusal" : "text";
    if (type.has_value() && *type != "text" && *type != "input_text" && *type != "output_text" &&
        *type != "refusal")
      part.Fail("type", absl::StrCat("found \"", PrintableText(*type), "\", expected \"text\""));
    std::optional<std::string> piece = part.Text(member);
    if (!piece.has_value()) part.Missing(member);
    for (const char* name : {"annotations", "logprobs"}) part.Ignore(name);  // Of parts that we sent.
    for (const char* name : ignored) part.Ignore(name);
    TANDEM_RETURN_IF_ERROR(part.Finish());
    message.add_content_parts(*std::move(piece));
  }
  return absl::OkStatus();
}

namespace {

// {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}: the others are not offered.
// `places`: of the tools in the request.
void KeepAllowed(const Json& choice, JsonFields& fields, std::vector<std::string>& places,
                 v1::ChatPrompt& chat) {
  JsonFields own(choice, fields, "tool_choice.");
  own.Ignore("type");
  const Json* const given = own.Find("allowed_tools");
  if (given == nullptr) {
    own.Missing("allowed_tools");
  } else {
    JsonFields allowed(*given, own, "tool_choice.allowed_tools.");
    const std::set<std::string> names = ReadAllowedTools(allowed, *chat.mutable_tool_choice());
    own.Update(allowed.Finish());
    std::vector<v1::Tool> kept;
    std::vector<std::string> kept_places;
    for (size_t i = 0; i < places.size(); ++i) {
      v1::Tool& tool = *chat.mutable_tools(static_cast<int>(i));
      if (!names.contains(tool.name())) continue;
      kept.push_back(std::move(tool));
      kept_places.push_back(std::move(places[i]));
    }
    chat.mutable_tools()->Assign(kept.begin(), kept.end());
    places = std::move(kept_places);
  }
  fields.Update(own.Finish());
}

// {"type": "custom", "custom": {...}}: a tool that takes a text, which is a function to the target.
absl::Status ReadCustom(const Json& json, const JsonFields& outer, const std::string& place,
                        ToolOrigins& origins, v1::Tool& tool) {
  JsonFields fields(json, outer, place + ".");
  fields.Ignore("type");
  const Json* const custom = fields.Find("custom");
  if (custom == nullptr) {
    fields.Missing("custom");
  } else {
    JsonFields own(*custom, fields, place + ".custom.");
    ReadCustomTool(own, tool);
    fields.Update(own.Finish());
  }
  origins[tool.name()] = {.name = tool.name(), .space = {}, .custom = true};
  return fields.Finish();
}

// Reads `tools`. Returns where each of them stands.
std::vector<std::string> ReadToolList(absl::string_view body, JsonFields& fields, ToolOrigins& origins,
                                      v1::ChatPrompt& chat) {
  const Json* const tools = fields.Find("tools");
  if (tools == nullptr) return {};
  if (!tools->is_array()) {
    fields.Fail("tools", "expected a list of tools", kInvalidType);
    return {};
  }
  std::vector<std::string> places;
  const OrderedJson ordered = Ordered(body, "tools");
  const std::vector<absl::string_view> texts = RawElements(RawMember(body, "tools"));
  for (size_t i = 0; i < tools->size() && fields.status().ok(); ++i) {
    const Json& json = (*tools)[i];
    const std::string place = absl::StrCat("tools[", i, "]");
    v1::Tool& tool = *chat.add_tools();
    if (IsCustom(json)) {
      fields.Update(ReadCustom(json, fields, place, origins, tool));
      places.push_back(place + ".custom");
      continue;
    }
    fields.Update(ReadTool(ordered[i], place, tool, AddTo(fields.ignored())));
    KeepSpelling(texts[i], tool);
    const bool nested = json.is_object() && json.contains("function") && !json["function"].is_null();
    places.push_back(nested ? place + ".function" : place);
  }
  return places;
}

// {"type": "custom", "custom": {"name": ...}}.
void ReadCustomChoice(const Json& json, JsonFields& fields, FieldNames& names, v1::ToolChoice& choice) {
  JsonFields own(json, fields, "tool_choice.");
  own.Ignore("type");
  const Json* const custom = own.Find("custom");
  if (custom == nullptr) {
    own.Missing("custom");
  } else {
    JsonFields inner(*custom, own, "tool_choice.custom.");
    choice.set_name(inner.Text("name").value_or(""));
    if (choice.name().empty()) inner.Missing("name");
    own.Update(inner.Finish());
  }
  names.Set("chat.tool_choice.name", "tool_choice.custom.name");
  fields.Update(own.Finish());
}

// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
void ReadToolFields(absl::string_view body, JsonFields& fields, FieldNames& names, ToolOrigins& origins,
                    v1::ChatPrompt& chat) {
  std::vector<std::string> places = ReadToolList(body, fields, origins, chat);
  if (!fields.status().ok()) return;
  v1::ToolChoice& choice = *chat.mutable_tool_choice();
  const Json* const given = fields.Find("tool_choice");
  if (given != nullptr && given->is_object() && given->value("type", Json()) == "allowed_tools") {
    KeepAllowed(*given, fields, places, chat);
  } else if (given != nullptr && IsCustom(*given)) {
    ReadCustomChoice(*given, fields, names, choice);
  } else if (given != nullptr) {
    fields.Update(ReadToolChoice(OrderedJson(*given), "tool_choice", choice, AddTo(fields.ignored())));
    if (given->is_object() && given->contains("function"))
      names.Set("chat.tool_choice.name", "tool_choice.function.name");
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const std::string ours = absl::StrCat("chat.tools[", i, "]");
    names.Set(ours, places[i]);
    names.Set(ours + ".input", places[i] + ".format.grammar.definition");
  }
  const std::optional<bool> parallel = fields.Flag("parallel_tool_calls");
  choice.set_single_call(parallel == false && !chat.tools().empty() &&
                         choice.mode() != v1::ToolChoice::MODE_NONE);
}

}  // namespace

OrderedJson ReadTemplateVariables(absl::string_view body, JsonFields& fields) {
  const Json* const given = fields.Find("chat_template_kwargs");
  if (given == nullptr) return OrderedJson::object();
  if (given->is_object()) return Ordered(body, "chat_template_kwargs");
  fields.Fail("chat_template_kwargs", "expected an object", kInvalidType);
  return OrderedJson::object();
}

void ReadChat(absl::string_view body, JsonFields& fields, FieldNames& names, ToolOrigins& origins,
              v1::ChatPrompt& chat) {
  if (const Json* const messages = fields.Find("messages")) {
    fields.Update(ReadMessages(*messages, RawMember(body, "messages"), fields, chat));
  } else {
    fields.Missing("messages");
  }
  ReadToolFields(body, fields, names, origins, chat);
  ReadDocuments(body, fields, chat);
  chat.set_parse_output(true);
  fields.Refuse("functions", "not supported; expected tools", Json::array());
  fields.Refuse("function_call", "not supported; expected tool_choice", "none");
  OrderedJson variables = ReadTemplateVariables(body, fields);
  ReadTemplateFields(fields, chat, variables);
  if (!variables.empty()) chat.set_template_variables(variables.dump());
}

}  // namespace tandem::router

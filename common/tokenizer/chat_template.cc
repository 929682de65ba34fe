#include "common/tokenizer/chat_template.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja/jinja_from_json.h"
#include "common/tokenizer/jinja/jinja_interpreter.h"
#include "common/tokenizer/jinja/python_text.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/unicode/unicode.h"

namespace tandem {
namespace {

// How many bytes a rendering may copy and search for each byte of its limit: templates slice, strip and split
// the same texts many times.
constexpr int64_t kBytesPerOutputByte = 256;

// Marks the end of the content of a message to continue, until the prompt is cut there. This is the tag that
// transformers uses, because some templates know it.
constexpr absl::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

std::string Seen(std::string text, const ChatTemplateOptions& options) {
  return options.on_text == nullptr ? std::move(text) : options.on_text(std::move(text));
}

// Adds a member unless the text is empty.
void AddText(const char* name, const std::string& text, const ChatTemplateOptions& options,
             JinjaValue::Members& members) {
  if (!text.empty()) members.emplace_back(JinjaValue::String(name), JinjaValue::String(Seen(text, options)));
}

// Parses a JSON text. `what` names it in errors.
absl::StatusOr<JinjaValue> ParsedJson(const std::string& text, const std::string& what,
                                      const ChatTemplateOptions& options) {
  // JsonView checks bounds and makes the errors.
  TANDEM_RETURN_IF_ERROR(JsonView::Parse(text, what).status());
  return JinjaFromJson(text, options.on_text);
}

absl::StatusOr<JinjaValue> FunctionValue(JinjaValue::Members function, JinjaValue::Members wrapped) {
  TANDEM_ASSIGN_OR_RETURN(JinjaValue inner, JinjaValue::Dict(std::move(function)));
  wrapped.emplace_back(JinjaValue::String("type"), JinjaValue::String("function"));
  wrapped.emplace_back(JinjaValue::String("function"), std::move(inner));
  return JinjaValue::Dict(std::move(wrapped));
}

// The target may have written no JSON, or no object; then the text itself is used.
absl::StatusOr<JinjaValue> ArgumentsOf(const ChatToolCall& call, const ChatTemplateOptions& options) {
  if (options.spelling.arguments_as_text)
    return JinjaValue::String(call.arguments.empty() ? "{}" : Seen(call.arguments, options));
  if (call.arguments.empty()) return JinjaValue::Dict({});
  const absl::StatusOr<JsonView> view = JsonView::Parse(call.arguments, "arguments");
  if (!view.ok() || !view->value().is_object()) return JinjaValue::String(Seen(call.arguments, options));
  return ParsedJson(call.arguments, "arguments", options);
}

absl::StatusOr<JinjaValue> CallList(const ChatMessage& message, const ChatTemplateOptions& options) {
  JinjaValue::Items calls;
  for (const ChatToolCall& call : message.tool_calls) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue arguments, ArgumentsOf(call, options));
    JinjaValue::Members wrapped;
    AddText("id", call.id, options, wrapped);
    TANDEM_ASSIGN_OR_RETURN(
        JinjaValue item,
        FunctionValue({{JinjaValue::String("name"), JinjaValue::String(Seen(call.name, options))},
                       {JinjaValue::String("arguments"), std::move(arguments)}},
                      std::move(wrapped)));
    calls.push_back(std::move(item));
  }
  return JinjaValue::List(std::move(calls));
}

absl::Status CheckUtf8(const ChatMessage& message, size_t index) {
  std::vector<const std::string*> texts = {&message.role, &message.tool_call_id, &message.name,
                                           &message.reasoning};
  if (message.content.has_value()) texts.push_back(&*message.content);
  for (const std::string& part : message.parts) texts.push_back(&part);
  for (const ChatToolCall& call : message.tool_calls)
    texts.insert(texts.end(), {&call.id, &call.name, &call.arguments});
  for (const std::string* text : texts) {
    if (FindInvalidUtf8(*text).has_value())
      return absl::InvalidArgumentError(absl::StrCat("message ", index, " is not UTF-8"));
  }
  return absl::OkStatus();
}

absl::StatusOr<JinjaValue> PartList(const std::vector<std::string>& parts,
                                    const ChatTemplateOptions& options) {
  JinjaValue::Items items;
  for (const std::string& part : parts) {
    TANDEM_ASSIGN_OR_RETURN(
        JinjaValue item,
        JinjaValue::Dict({{JinjaValue::String("type"), JinjaValue::String("text")},
                          {JinjaValue::String("text"), JinjaValue::String(Seen(part, options))}}));
    items.push_back(std::move(item));
  }
  return JinjaValue::List(std::move(items));
}

// The content as the template expects it; nullopt for a message without that member. `tag` is put behind it.
absl::StatusOr<std::optional<JinjaValue>> ContentValue(const ChatMessage& message, absl::string_view tag,
                                                       const ChatTemplateOptions& options) {
  const ChatSpelling& spelling = options.spelling;
  std::vector<std::string> parts = message.parts;
  if (parts.empty()) parts.push_back(message.content.value_or(""));
  parts.back().append(tag.data(), tag.size());
  const bool is_blank = parts.size() == 1 && parts[0].empty();
  const bool is_given = message.content.has_value() || !message.parts.empty();
  ChatSpelling::Blank blank = ChatSpelling::Blank::kEmpty;
  if (is_blank && !message.tool_calls.empty())
    blank = is_given ? spelling.empty_content : spelling.no_content;
  if (blank == ChatSpelling::Blank::kAbsent) return std::nullopt;
  if (blank == ChatSpelling::Blank::kNone) return JinjaValue();
  if (spelling.text_as_parts || (spelling.takes_parts && !message.parts.empty()))
    return PartList(parts, options);
  return JinjaValue::String(Seen(absl::StrJoin(parts, "\n"), options));
}

absl::StatusOr<JinjaValue> MessageList(absl::Span<const ChatMessage> messages,
                                       const ChatTemplateOptions& options) {
  JinjaValue::Items items;
  items.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    TANDEM_RETURN_IF_ERROR(CheckUtf8(message, i));
    const bool continued = options.continue_final_message && i + 1 == messages.size();
    JinjaValue::Members members = {{JinjaValue::String("role"), JinjaValue::String(message.role)}};
    TANDEM_ASSIGN_OR_RETURN(std::optional<JinjaValue> content,
                            ContentValue(message, continued ? kContinueTag : "", options));
    if (content.has_value()) members.emplace_back(JinjaValue::String("content"), *std::move(content));
    AddText(options.spelling.reasoning_name.c_str(), message.reasoning, options, members);
    if (!message.tool_calls.empty()) {
      TANDEM_ASSIGN_OR_RETURN(JinjaValue calls, CallList(message, options));
      members.emplace_back(JinjaValue::String("tool_calls"), std::move(calls));
    }
    AddText("tool_call_id", message.tool_call_id, options, members);
    AddText("name", message.name, options, members);
    TANDEM_ASSIGN_OR_RETURN(JinjaValue item, JinjaValue::Dict(std::move(members)));
    items.push_back(std::move(item));
  }
  return JinjaValue::List(std::move(items));
}

// In the form that transformers' get_json_schema makes of functions. None if there are no tools.
absl::StatusOr<JinjaValue> ToolList(const ChatTemplateOptions& options) {
  if (options.tools.empty()) return JinjaValue();
  JinjaValue::Items items;
  for (size_t i = 0; i < options.tools.size(); ++i) {
    const ChatTool& tool = options.tools[i];
    TANDEM_ASSIGN_OR_RETURN(
        JinjaValue parameters,
        ParsedJson(tool.parameters.empty() ? R"({"type":"object","properties":{}})" : tool.parameters,
                   absl::StrCat("tools[", i, "].parameters"), options));
    JinjaValue::Members function = {
        {JinjaValue::String("name"), JinjaValue::String(Seen(tool.name, options))}};
    AddText("description", tool.description, options, function);
    function.emplace_back(JinjaValue::String("parameters"), std::move(parameters));
    TANDEM_ASSIGN_OR_RETURN(JinjaValue item, FunctionValue(std::move(function), {}));
    items.push_back(std::move(item));
  }
  return JinjaValue::List(std::move(items));
}

// The prompt up to the end of the last message's content. As in transformers, white space before the tag is
// dropped if the template has trimmed the tag's own.
absl::StatusOr<std::string> CutAtTag(std::string prompt) {
  const absl::string_view tag = kContinueTag;
  const size_t at = absl::string_view(prompt).rfind(absl::StripTrailingAsciiWhitespace(tag));
  if (at == std::string::npos) {
    return absl::InvalidArgumentError(
        "the template does not render the content of the last message, which the output continues");
  }
  const bool keeps_spacing = absl::StartsWith(absl::string_view(prompt).substr(at), tag);
  prompt.resize(at);
  return keeps_spacing ? prompt : std::string(PythonStrip(prompt, std::nullopt, StripSide::kRight));
}

JinjaValue VariableValue(const ChatTemplateOptions::Variable& variable) {
  if (const bool* b = std::get_if<bool>(&variable)) return JinjaValue::Bool(*b);
  if (const int64_t* i = std::get_if<int64_t>(&variable)) return JinjaValue::Int(*i);
  return JinjaValue::String(std::get<std::string>(variable));
}

absl::Status AddJsonVariables(const ChatTemplateOptions& options, JinjaScope* variables) {
  if (options.json_variables.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const JsonView view, JsonView::Parse(options.json_variables, "template_variables"));
  if (!view.value().is_object()) return view.Invalid("expected an object");
  TANDEM_ASSIGN_OR_RETURN(const JinjaValue values, JinjaFromJson(options.json_variables, options.on_text));
  for (const auto& [key, value] : values.AsDict()->members) {
    const std::string& name = *key.AsString();
    for (const absl::string_view own : {"messages", "tools"}) {
      if (name == own) return view.Invalid(absl::StrCat(name, " is reserved for the conversation"));
    }
    if (name == "add_generation_prompt" && (value.As<bool>() == nullptr || options.continue_final_message))
      return view.Invalid("add_generation_prompt: expected true or false, and no message that is continued");
    (*variables)[name] = value;
  }
  return absl::OkStatus();
}

absl::Status InTemplate(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("chat template: ", status.message()));
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source) {
  absl::StatusOr<JinjaBody> body = ParseJinja(source);
  if (!body.ok()) return InTemplate(body.status());
  return ChatTemplate(*std::move(body), source);
}

absl::StatusOr<std::string> ChatTemplate::Render(absl::Span<const ChatMessage> messages,
                                                 const std::map<std::string, std::string>& special_tokens,
                                                 const ChatTemplateOptions& options) const {
  JinjaScope variables;
  for (const auto& [name, content] : special_tokens) variables[name] = JinjaValue::String(content);
  TANDEM_ASSIGN_OR_RETURN(variables["messages"], MessageList(messages, options));
  variables["add_generation_prompt"] =
      JinjaValue::Bool(options.add_generation_prompt && !options.continue_final_message);
  // transformers always passes these, as None when the caller has none.
  TANDEM_ASSIGN_OR_RETURN(variables["tools"], ToolList(options));
  variables["documents"] = JinjaValue();
  if (!options.documents.empty()) {
    TANDEM_ASSIGN_OR_RETURN(variables["documents"], ParsedJson(options.documents, "documents", options));
    if (variables["documents"].AsItems() == nullptr)
      return absl::InvalidArgumentError("documents: expected a list");
  }
  for (const auto& [name, value] : options.variables) variables[name] = VariableValue(value);
  TANDEM_RETURN_IF_ERROR(AddJsonVariables(options, &variables));

  const JinjaBudget budget(options.max_steps,
                           kBytesPerOutputByte * static_cast<int64_t>(options.max_output_bytes));
  JinjaInterpreter interpreter(std::move(variables), options.now, options.max_output_bytes, budget);
  absl::StatusOr<std::string> text = interpreter.Run(*body_);
  if (!text.ok()) return InTemplate(text.status());
  return options.continue_final_message ? CutAtTag(*std::move(text)) : std::move(text);
}

}  // namespace tandem

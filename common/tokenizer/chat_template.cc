#include "common/tokenizer/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja_interpreter.h"
#include "common/tokenizer/json_view.h"
#include "common/tokenizer/unicode.h"

namespace tandem {
namespace {

// What a rendering may copy and search, as a multiple of its output: templates slice, strip and split what
// they were given many times over.
constexpr int64_t kBytesPerOutputByte = 256;

std::string Seen(std::string text, const ChatTemplateOptions& options) {
  return options.on_text == nullptr ? std::move(text) : options.on_text(std::move(text));
}

absl::StatusOr<JinjaValue> MessageList(absl::Span<const ChatMessage> messages,
                                       const ChatTemplateOptions& options) {
  JinjaValue::Items items;
  items.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (FindInvalidUtf8(message.role).has_value() || FindInvalidUtf8(message.content).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("message ", i, " is not UTF-8"));
    }
    TANDEM_ASSIGN_OR_RETURN(
        JinjaValue item, JinjaValue::Dict({{"role", JinjaValue::String(message.role)},
                                           {"content", JinjaValue::String(Seen(message.content, options))}}));
    items.push_back(std::move(item));
  }
  return JinjaValue::List(std::move(items));
}

JinjaValue VariableValue(const ChatTemplateOptions::Variable& variable) {
  if (const bool* b = std::get_if<bool>(&variable)) return JinjaValue::Bool(*b);
  if (const int64_t* i = std::get_if<int64_t>(&variable)) return JinjaValue::Int(*i);
  return JinjaValue::String(std::get<std::string>(variable));
}

// No deeper than JsonView lets it be.
absl::StatusOr<JinjaValue> FromJson(const nlohmann::ordered_json& json, const ChatTemplateOptions& options) {
  if (json.is_boolean()) return JinjaValue::Bool(json.get<bool>());
  if (json.is_number_integer()) return JinjaValue::Int(json.get<int64_t>());
  if (json.is_number()) return JinjaValue::Float(json.get<double>());
  if (json.is_string()) return JinjaValue::String(Seen(json.get<std::string>(), options));
  if (json.is_array()) {
    JinjaValue::Items items;
    for (const nlohmann::ordered_json& entry : json) {
      TANDEM_ASSIGN_OR_RETURN(JinjaValue item, FromJson(entry, options));
      items.push_back(std::move(item));
    }
    return JinjaValue::List(std::move(items));
  }
  if (!json.is_object()) return JinjaValue();
  JinjaValue::Members members;
  for (const auto& [name, entry] : json.items()) {
    TANDEM_ASSIGN_OR_RETURN(JinjaValue member, FromJson(entry, options));
    members.emplace_back(Seen(name, options), std::move(member));
  }
  return JinjaValue::Dict(std::move(members));
}

absl::Status AddJsonVariables(const ChatTemplateOptions& options, JinjaScope* variables) {
  if (options.json_variables.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const JsonView view, JsonView::Parse(options.json_variables, "template_variables"));
  if (!view.value().is_object()) return view.Invalid("expected an object");
  const auto json =
      nlohmann::ordered_json::parse(options.json_variables, nullptr, /*allow_exceptions=*/false);
  for (const auto& [name, value] : json.items()) {
    for (const absl::string_view own : {"messages", "add_generation_prompt", "tools", "documents"}) {
      if (name == own) return view.Invalid(absl::StrCat(name, " is the conversation's own"));
    }
    TANDEM_ASSIGN_OR_RETURN((*variables)[name], FromJson(value, options));
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
  return ChatTemplate(*std::move(body));
}

absl::StatusOr<std::string> ChatTemplate::Render(absl::Span<const ChatMessage> messages,
                                                 const std::map<std::string, std::string>& special_tokens,
                                                 const ChatTemplateOptions& options) const {
  JinjaScope variables;
  for (const auto& [name, content] : special_tokens) variables[name] = JinjaValue::String(content);
  TANDEM_ASSIGN_OR_RETURN(variables["messages"], MessageList(messages, options));
  variables["add_generation_prompt"] = JinjaValue::Bool(options.add_generation_prompt);
  // transformers always passes these, as None when the caller has none.
  variables["tools"] = JinjaValue();
  variables["documents"] = JinjaValue();
  for (const auto& [name, value] : options.variables) variables[name] = VariableValue(value);
  TANDEM_RETURN_IF_ERROR(AddJsonVariables(options, &variables));

  const JinjaBudget budget(options.max_steps,
                           kBytesPerOutputByte * static_cast<int64_t>(options.max_output_bytes));
  JinjaInterpreter interpreter(std::move(variables), options.now, options.max_output_bytes, budget);
  absl::StatusOr<std::string> text = interpreter.Run(*body_);
  if (!text.ok()) return InTemplate(text.status());
  return text;
}

}  // namespace tandem

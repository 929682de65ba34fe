#include "common/tokenizer/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/jinja_interpreter.h"
#include "common/tokenizer/unicode.h"

namespace tandem {
namespace {

// What a rendering may copy and search, as a multiple of its output: templates slice, strip and split what
// they were given many times over.
constexpr int64_t kBytesPerOutputByte = 256;

absl::StatusOr<JinjaValue> MessageList(absl::Span<const ChatMessage> messages) {
  JinjaValue::Items items;
  items.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (FindInvalidUtf8(message.role).has_value() || FindInvalidUtf8(message.content).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("message ", i, " is not UTF-8"));
    }
    TANDEM_ASSIGN_OR_RETURN(JinjaValue item,
                            JinjaValue::Dict({{"role", JinjaValue::String(message.role)},
                                              {"content", JinjaValue::String(message.content)}}));
    items.push_back(std::move(item));
  }
  return JinjaValue::List(std::move(items));
}

JinjaValue VariableValue(const ChatTemplateOptions::Variable& variable) {
  if (const bool* b = std::get_if<bool>(&variable)) return JinjaValue::Bool(*b);
  if (const int64_t* i = std::get_if<int64_t>(&variable)) return JinjaValue::Int(*i);
  return JinjaValue::String(std::get<std::string>(variable));
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
  TANDEM_ASSIGN_OR_RETURN(variables["messages"], MessageList(messages));
  variables["add_generation_prompt"] = JinjaValue::Bool(options.add_generation_prompt);
  // transformers always passes these, as None when the caller has none.
  variables["tools"] = JinjaValue();
  variables["documents"] = JinjaValue();
  for (const auto& [name, value] : options.variables) variables[name] = VariableValue(value);

  const JinjaBudget budget(options.max_steps,
                           kBytesPerOutputByte * static_cast<int64_t>(options.max_output_bytes));
  JinjaInterpreter interpreter(std::move(variables), options.now, options.max_output_bytes, budget);
  absl::StatusOr<std::string> text = interpreter.Run(*body_);
  if (!text.ok()) return InTemplate(text.status());
  return text;
}

}  // namespace tandem

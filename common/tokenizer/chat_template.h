#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/tokenizer/jinja_syntax.h"

namespace tandem {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ChatTemplateOptions {
  using Variable = std::variant<bool, int64_t, std::string>;

  // End with the opening of the assistant's turn.
  bool add_generation_prompt = true;
  // The time that strftime_now() tells, in UTC. Without one that function does not exist, and templates fall
  // back to a fixed date, so that a conversation is always rendered the same.
  std::optional<absl::Time> now;
  // More variables for the template, such as "enable_thinking".
  std::map<std::string, Variable> variables;
  // As many more, as a JSON object; empty: none. Not the names that are the conversation's own.
  std::string json_variables;
  // What becomes of the texts of messages and JSON before the template sees them. Empty: nothing.
  std::function<std::string(std::string)> on_text;
  // Beyond these, rendering ends in ResourceExhausted.
  int64_t max_steps = 1'000'000;
  size_t max_output_bytes = size_t{1} << 20;
};

// A chat template of a model folder: the part of Jinja that such templates use, with the settings that
// transformers gives it (trim_blocks, lstrip_blocks, immutable values). Immutable, safe to share between
// threads.
class ChatTemplate {
 public:
  // InvalidArgument or Unimplemented with the line of what cannot be used.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);

  // The prompt of a conversation. `special_tokens` are variables such as bos_token. InvalidArgument with the
  // text of raise_exception(), or for an error in the template; ResourceExhausted beyond the limits.
  absl::StatusOr<std::string> Render(absl::Span<const ChatMessage> messages,
                                     const std::map<std::string, std::string>& special_tokens,
                                     const ChatTemplateOptions& options) const;

 private:
  explicit ChatTemplate(JinjaBody body) : body_(std::make_shared<const JinjaBody>(std::move(body))) {}

  std::shared_ptr<const JinjaBody> body_;
};

}  // namespace tandem

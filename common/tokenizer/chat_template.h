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
#include "common/tokenizer/jinja/jinja_syntax.h"

namespace tandem {

// A call of a function in a message.
struct ChatToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  // JSON text: an object, as a rule. Empty: none.
};

struct ChatMessage {
  std::string role = {};  // "system", "user", "assistant", "tool"
  // Absent: none was given, which is another thing than an empty one where the message makes calls.
  std::optional<std::string> content = {};
  std::vector<std::string> parts = {};  // The content in pieces, in place of `content`.
  std::vector<ChatToolCall> tool_calls = {};
  std::string tool_call_id = {};
  std::string name = {};
  std::string reasoning = {};
};

// A function that the assistant may call.
struct ChatTool {
  std::string name = {};
  std::string description = {};
  std::string parameters = {};  // JSON schema as JSON text. Empty: of an object without members.
};

// How a template expects the parts of a message that OpenAI's API leaves open. The defaults are what
// transformers passes; TryTemplate (template_trials.h) finds what else a template needs.
struct ChatSpelling {
  // A content that is not there, or has no text.
  enum class Blank { kNone, kEmpty, kAbsent };

  // The arguments of a call are their JSON text, not an object.
  bool arguments_as_text = false;
  // What a message has that makes calls and has no content.
  Blank no_content = Blank::kNone;
  // Likewise where its content is empty.
  Blank empty_content = Blank::kEmpty;
  // A content that is a text becomes a list of one part.
  bool text_as_parts = false;
  // A content of several parts stays a list. Otherwise it is one text, the parts on lines of their own.
  bool takes_parts = false;
  // The member with the assistant's reasoning.
  std::string reasoning_name = "reasoning_content";

  bool operator==(const ChatSpelling&) const = default;
};

struct ChatTemplateOptions {
  using Variable = std::variant<bool, int64_t, std::string>;

  // End with the opening of the assistant's turn. Not with continue_final_message.
  bool add_generation_prompt = true;
  // End with the last message's content, as if the message were not over.
  bool continue_final_message = false;
  // Functions, which the template gets as `tools`.
  std::vector<ChatTool> tools = {};
  // Documents, which the template gets as `documents`: a JSON list. Empty: none.
  std::string documents = {};
  ChatSpelling spelling = {};
  // The time of strftime_now(), in UTC. Without it that function does not exist, and templates use a fixed
  // date, so that a conversation is always rendered in the same way.
  std::optional<absl::Time> now;
  // More variables for the template, such as "enable_thinking".
  std::map<std::string, Variable> variables;
  // More variables, as a JSON object; empty: none. The conversation's own names are not allowed.
  std::string json_variables;
  // Changes the texts of messages and JSON before the template gets them. May be empty.
  std::function<std::string(std::string)> on_text;
  // Beyond these, rendering ends in ResourceExhausted.
  int64_t max_steps = 1'000'000;
  size_t max_output_bytes = size_t{1} << 20;
};

// A chat template of a model folder: the part of Jinja that such templates use, with transformers' settings
// (trim_blocks, lstrip_blocks, immutable values). Immutable, so thread-safe.
//
// A template gets the same variables as in transformers:
//
//   tools     [{"type": "function", "function": {"name", "description", "parameters"}}], or none
//   messages  "role", "content"; if given, "tool_calls", "tool_call_id", "name" and "reasoning_content".
//             A call is {"id", "type": "function", "function": {"name", "arguments"}}. Its arguments are an
//             object, or text if they are not a JSON object. ChatSpelling says what else they can be.
//   documents the list that the caller gave, or none
class ChatTemplate {
 public:
  // InvalidArgument or Unimplemented, with the line that cannot be used.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);

  // The text it was parsed from.
  absl::string_view source() const { return *source_; }

  // The prompt of a conversation. `special_tokens` are variables such as bos_token. InvalidArgument with the
  // text of raise_exception(), or for an error in the template; ResourceExhausted beyond the limits.
  absl::StatusOr<std::string> Render(absl::Span<const ChatMessage> messages,
                                     const std::map<std::string, std::string>& special_tokens,
                                     const ChatTemplateOptions& options) const;

 private:
  ChatTemplate(JinjaBody body, absl::string_view source)
      : body_(std::make_shared<const JinjaBody>(std::move(body))),
        source_(std::make_shared<const std::string>(source)) {}

  std::shared_ptr<const JinjaBody> body_;
  std::shared_ptr<const std::string> source_;
};

}  // namespace tandem

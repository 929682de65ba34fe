#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads the prompt of a chat completion: messages, tools, and variables of the template. `fields`: those of
// `body`. Errors go to `fields`.
void ReadChat(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat);

// Reads `tools`, `tool_choice` and `parallel_tool_calls`, which both APIs have.
void ReadToolFields(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat);

// Reads `chat_template_kwargs`, vLLM's field: an object with variables for the template. Empty if there are
// none.
OrderedJson ReadTemplateVariables(absl::string_view body, JsonFields& fields);

// Reads a message's content, a text or a list of text parts, as the client spelled it. `path`: its name in
// errors.
absl::Status ReadContent(const Json& content, const std::string& path, v1::ChatMessage& message);

// The same as one text.
absl::StatusOr<std::string> ContentOf(const Json& content, const std::string& path);

}  // namespace tandem::router

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads the prompt of a chat completion: messages, tools, and variables of the template. `fields`: those of
// `body`. Errors go to `fields`.
void ReadChat(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat);

// Reads `chat_template_kwargs`, vLLM's field: an object with variables for the template. Empty if there are
// none.
OrderedJson ReadTemplateVariables(absl::string_view body, JsonFields& fields);

// A message's content: text, or a list of text parts. `path`: its name in errors.
absl::StatusOr<std::string> ContentOf(const Json& content, const std::string& path);

}  // namespace tandem::router

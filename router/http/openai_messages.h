#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads what a chat completion says of its prompt: messages, tools, and how the template lays them out.
// `fields` are those of `body`, and take the errors.
void ReadChat(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat);

// `tools`, `tool_choice` and `parallel_tool_calls`, which both APIs have.
void ReadToolFields(absl::string_view body, JsonFields& fields, v1::ChatPrompt& chat);

// `chat_template_kwargs`, vLLM's field: variables for the template, an object. Empty when there are none.
OrderedJson ReadTemplateVariables(absl::string_view body, JsonFields& fields);

// A message's content: text, or a list of parts that are text. `path` names it.
absl::StatusOr<std::string> ContentOf(const Json& content, const std::string& path);

}  // namespace tandem::router

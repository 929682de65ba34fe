#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads `tools`, `tool_choice` and `parallel_tool_calls` of /v1/responses: functions, tools that take a text
// (`custom`), and namespaces of both. To the target all of them are functions; `completion.origins` says what
// they are to the client. Tools that a provider would run are left out. Errors go to `fields`.
void ReadResponsesTools(absl::string_view body, JsonFields& fields, CompletionRequest& completion,
                        v1::ChatPrompt& chat);

// Reads a tool that takes a text: its name, its description and its `format`, whose grammar stands in the
// format itself or in its member `grammar`. Errors go to `fields`.
void ReadCustomTool(JsonFields& fields, v1::Tool& tool);

// Reads `mode` and `tools` of a choice among some tools, and returns the names that these have for the
// target. Errors go to `allowed`.
std::set<std::string> ReadAllowedTools(JsonFields& allowed, v1::ToolChoice& choice);

// The name that a tool of a namespace has for the target. `space`: empty for tools in none.
std::string NameInSpace(absl::string_view space, absl::string_view name);

// The arguments of a call of a tool that takes a text.
std::string ArgumentsOfInput(absl::string_view input);

// The other way round: reads the text out of such arguments as they come. Arguments of another form, from a
// target that is not held to it, are the text themselves.
class CustomInput {
 public:
  // The part of the text that is certain now.
  std::string Push(absl::string_view arguments);
  // The rest, when the arguments are over.
  std::string Finish();

 private:
  enum class State : uint8_t { kBefore, kText, kAfter };

  State state_ = State::kBefore;
  std::string held_;  // Before the text: all of it. Within it: what is not decoded yet.
};

}  // namespace tandem::router

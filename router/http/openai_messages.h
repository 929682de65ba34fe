#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/http/field_names.h"
#include "router/http/openai_json.h"
#include "router/http/openai_request.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads the prompt of a chat completion: messages, tools, and variables of the template. `fields`: those of
// `body`. Errors go to `fields`; `names` gets those of the tools,
// and `origins` the tools that take a text.
void ReadChat(absl::string_view body, JsonFields& fields, FieldNames& names, ToolOrigins& origins,
              v1::ChatPrompt& chat);

// Reads `chat_template_kwargs`, vLLM's field: an object with variables for the template. Empty if there are
// none.
OrderedJson ReadTemplateVariables(absl::string_view body, JsonFields& fields);

// Gives a tool its parameters as `text`, which ReadTool has read, spells them: with all digits of numbers.
void KeepSpelling(absl::string_view text, v1::Tool& tool);

// How much the target is to reason, for the template.
std::optional<std::string> ReadReasoningEffort(JsonFields& fields, absl::string_view name);

// Reads a message's content, a text or a list of text parts, as the client spelled it. `path`: its name in
// errors. `outer`: of the object that it is in. `ignored`: members of a part that the API knows and that have
// no effect.
absl::Status ReadContent(const Json& content, const JsonFields& outer, const std::string& path,
                         v1::ChatMessage& message, absl::Span<const char* const> ignored = {});

// The same as one text.
absl::StatusOr<std::string> ContentOf(const Json& content, const JsonFields& outer, const std::string& path);

// Takes down fields that nobody knows, for readers that are not JsonFields; empty if they are refused.
std::function<void(const std::string&)> AddTo(IgnoredFields* ignored);

}  // namespace tandem::router

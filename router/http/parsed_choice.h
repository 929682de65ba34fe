#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/http/openai_json.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// The content, reasoning and calls of a chat's output so far.
struct ParsedChoice {
  std::string content;
  std::string reasoning;
  std::vector<v1::ToolCall> calls;

  void Add(const v1::OutputDelta& delta);
};

// Whether a call's arguments are the beginning of a JSON object, whose end is missing.
bool IsCut(absl::string_view arguments);

// A delta in the format of chat completion streams.
OrderedJson ChatDelta(const v1::OutputDelta& delta);
// The message of a chat completion.
OrderedJson ChatMessageJson(const ParsedChoice& choice);

}  // namespace tandem::router

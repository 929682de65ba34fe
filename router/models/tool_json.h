#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// Reads tools and calls in the JSON of OpenAI's APIs. InvalidArgument names the place, beginning with `path`.
// Members that nobody knows are refused, or, with `on_unknown`, told by their place and without effect.
using OnUnknownMember = std::function<void(const std::string& place)>;

// A list of {"type": "function", "function": {"name", "description", "parameters", "strict"}}, or of the same
// without "function" around it. Schemas keep the order of their members.
absl::Status ReadTools(const nlohmann::ordered_json& json, absl::string_view path, v1::ChatPrompt& chat,
                       const OnUnknownMember& on_unknown = nullptr);

// One of them, to which `path` leads.
absl::Status ReadTool(const nlohmann::ordered_json& json, const std::string& path, v1::Tool& tool,
                      const OnUnknownMember& on_unknown = nullptr);

// "none", "auto", "required", or {"type": "function", "function": {"name"}}, or without "function" around it.
absl::Status ReadToolChoice(const nlohmann::ordered_json& json, absl::string_view path,
                            v1::ToolChoice& choice, const OnUnknownMember& on_unknown = nullptr);

// A list of {"id", "type": "function", "function": {"name", "arguments"}}: calls in a message. Arguments are
// a text, or the object that it spells.
absl::Status ReadToolCalls(const nlohmann::ordered_json& json, absl::string_view path,
                           v1::ChatMessage& message, const OnUnknownMember& on_unknown = nullptr);

// One of them, to which `path` leads.
absl::Status ReadToolCall(const nlohmann::ordered_json& json, const std::string& path, v1::ToolCall& call,
                          const OnUnknownMember& on_unknown = nullptr);

}  // namespace tandem::router

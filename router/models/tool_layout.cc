#include "router/models/tool_layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace tandem::router {
namespace {

constexpr char kNoParameters[] = R"({"type":"object","properties":{}})";

// A text as JSON.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string CallText(const OutputFormat& format, const ChatToolCall& call) {
  const CallFrame frame = FrameOfCall(format, call.name);
  return absl::StrCat(frame.begin, call.arguments.empty() ? "{}" : call.arguments, frame.end);
}

std::string ToolsText(const OutputFormat& format, const std::vector<ChatTool>& tools) {
  std::string text = "You can call these functions:\n";
  for (const ChatTool& tool : tools) {
    absl::StrAppend(&text, "\n{\"name\": ", Quoted(tool.name));
    if (!tool.description.empty()) absl::StrAppend(&text, ", \"description\": ", Quoted(tool.description));
    absl::StrAppend(&text, ", \"parameters\": ", tool.parameters.empty() ? kNoParameters : tool.parameters,
                    "}");
  }
  absl::StrAppend(
      &text, "\n\nTo call a function, answer with this and nothing else:\n\n",
      CallText(format, {.name = "NAME", .arguments = "ARGUMENTS"}),
      "\n\nNAME is the name of the function and ARGUMENTS a JSON object that its parameters allow. "
      "If no function is needed, answer in words.");
  return text;
}

std::string DocumentsText(const std::string& documents) {
  return absl::StrCat("Answer with the help of these documents:\n\n", documents);
}

// Puts a text before or behind what a message says.
void AddText(const std::string& text, bool behind, ChatMessage& message) {
  if (!message.parts.empty()) {
    message.parts.insert(behind ? message.parts.end() : message.parts.begin(), text);
    return;
  }
  const std::string said = message.content.value_or("");
  const absl::string_view gap = said.empty() ? "" : "\n\n";
  message.content = behind ? absl::StrCat(said, gap, text) : absl::StrCat(text, gap, said);
}

void AddToSystem(const std::string& text, bool takes_system, std::vector<ChatMessage>& messages) {
  if (!messages.empty() && messages[0].role == "system") return AddText(text, /*behind=*/true, messages[0]);
  const auto user = std::find_if(messages.begin(), messages.end(),
                                 [](const ChatMessage& message) { return message.role == "user"; });
  if (!takes_system && user != messages.end()) return AddText(text, /*behind=*/false, *user);
  messages.insert(messages.begin(), ChatMessage{.role = "system", .content = text});
}

void CallsToText(const OutputFormat& format, ChatMessage& message) {
  std::vector<std::string> calls;
  for (const ChatToolCall& call : message.tool_calls) calls.push_back(CallText(format, call));
  message.tool_calls.clear();
  if (!calls.empty()) AddText(absl::StrJoin(calls, "\n"), /*behind=*/true, message);
}

// The name of the function whose call has this id.
std::string NameOfCall(const std::vector<ChatMessage>& messages, const ChatMessage& result) {
  if (!result.name.empty()) return result.name;
  for (const ChatMessage& message : messages) {
    for (const ChatToolCall& call : message.tool_calls) {
      if (!result.tool_call_id.empty() && call.id == result.tool_call_id) return call.name;
    }
  }
  return "the call";
}

// Results become the user's text. Those in a row, and what the user says behind them, are one message: many
// templates want user and assistant to take turns.
void ResultsToText(std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> changed;
  bool joins = false;
  for (ChatMessage& message : messages) {
    const bool is_result = message.role == "tool";
    if (is_result) {
      ChatMessage said{.role = "user",
                       .content = absl::StrCat("Result of ", NameOfCall(messages, message), ":\n",
                                               message.parts.empty() ? message.content.value_or("")
                                                                     : absl::StrJoin(message.parts, "\n"))};
      message = std::move(said);
    }
    if (joins && message.role == "user" && message.parts.empty()) {
      AddText(message.content.value_or(""), /*behind=*/true, changed.back());
    } else {
      changed.push_back(message);
    }
    joins = is_result || (joins && message.role == "user");
  }
  messages = std::move(changed);
}

}  // namespace

void LayOutInTexts(const TemplateTraits& traits, const OutputFormat& format,
                   std::vector<ChatMessage>& messages, ChatTemplateOptions& options) {
  if (!traits.problem.ok()) return;
  if (!traits.takes_results) ResultsToText(messages);
  if (!traits.takes_calls) {
    for (ChatMessage& message : messages) CallsToText(format, message);
  }
  if (!traits.takes_documents && !options.documents.empty()) {
    AddToSystem(DocumentsText(options.documents), traits.takes_system, messages);
    options.documents.clear();
  }
  if (!traits.takes_tools && !options.tools.empty()) {
    AddToSystem(ToolsText(format, options.tools), traits.takes_system, messages);
    options.tools.clear();
  }
}

}  // namespace tandem::router

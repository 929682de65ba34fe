#include "router/http/field_names.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem::router {
namespace {

struct Name {
  const char* ours;
  const char* theirs;  // Empty: what is below it stands for itself.
};

// In all APIs. Fields that are not here have the same name everywhere.
constexpr Name kNames[] = {
    {"sampling", ""},
    {"sampling.allowed_tokens", "allowed_token_ids"},
    {"sampling.banned_tokens", "tandem.banned_token_ids"},
    {"sampling.banned_sequences", "bad_words"},
    {"stopping", ""},
    {"stopping.include_stop", "include_stop_str_in_output"},
    {"output", ""},
    {"output.include_special_tokens", "skip_special_tokens"},
    {"output.live_page", "tandem.live_page"},
    {"output.prompt_token_ids", "return_token_ids"},
    {"speculation", "tandem"},
    {"speculation.mode", "tandem.speculation"},
    {"num_outputs", "n"},
    {"plain", "add_special_tokens"},
    {"adapter", "tandem.adapter"},
    {"request_id", "x-request-id"},
    {"prediction.text", "prediction.content"},
    {"prediction.token_ids", "prediction.content"},
    {"chat", ""},
    {"chat.template_variables", "chat_template_kwargs"},
    {"chat.tool_choice.mode", "tool_choice"},
    {"chat.tool_choice.single_call", "parallel_tool_calls"},
    {"constraint", "response_format"},
};
constexpr Name kTextNames[] = {
    {"text", "prompt"}, {"token_ids", "prompt"}, {"token_ids.ids", "prompt"}, {"prompt.ids", "prompt"}};
constexpr Name kChatNames[] = {{"output.logprobs", "top_logprobs"}, {"prompt", "messages"}};
constexpr Name kResponsesNames[] = {{"stopping.max_tokens", "max_output_tokens"},
                                    {"constraint", "text.format"},
                                    {"prompt", "input"},
                                    {"chat.messages", "input"}};

constexpr Name kMessagesNames[] = {{"constraint", "output_config.format"},
                                   {"prompt", "messages"},
                                   {"stopping.stop", "stop_sequences"},
                                   {"chat.continue_final_message", "messages"},
                                   {"chat.tool_choice.mode", "tool_choice.type"},
                                   {"chat.tool_choice.single_call", "tool_choice.disable_parallel_tool_use"}};

constexpr const char* kForms[] = {"json_schema", "json_schema.schema", "json_object", "regex", "grammar",
                                  "choices",     "structural_tags"};

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
}
bool IsPathCharacter(char c) {
  return IsNameCharacter(c) || c == '.' || c == '[' || c == ']';
}

// Whether the text is a field's path, such as "tools[0].name".
bool IsPath(absl::string_view text) {
  if (text.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(text[0]))) return false;
  for (const char c : text) {
    if (!IsPathCharacter(c)) return false;
  }
  return true;
}

// The path that a message begins with, if it is about what the client sent.
std::optional<std::string> FieldOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
      break;
    default:
      return std::nullopt;
  }
  const absl::string_view message(status.message().data(), status.message().size());
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos || !IsPath(message.substr(0, colon))) return std::nullopt;
  return std::string(message.substr(0, colon));
}

// A JSON pointer's end of a path: "/a/0/b" is ".a[0].b". Names that are none in a path are quoted.
std::string PathOfPointer(absl::string_view pointer) {
  std::string path;
  if (pointer.empty()) return path;
  for (const absl::string_view part : absl::StrSplit(pointer.substr(1), '/')) {
    const std::string name = absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}});
    bool is_number = !name.empty();
    bool is_name = !name.empty();
    for (const char c : name) {
      is_number = is_number && absl::ascii_isdigit(static_cast<unsigned char>(c));
      is_name = is_name && IsNameCharacter(c);
    }
    if (is_number) {
      absl::StrAppend(&path, "[", name, "]");
    } else if (is_name) {
      absl::StrAppend(&path, ".", name);
    } else {
      absl::StrAppend(&path, "[\"", name, "\"]");
    }
  }
  return path;
}

}  // namespace

FieldNames::FieldNames(HttpApi api) {
  for (const Name& name : kNames) names_[name.ours] = name.theirs;
  const auto add = [this](const auto& names) {
    for (const Name& name : names) names_[name.ours] = name.theirs;
  };
  switch (api) {
    case HttpApi::kText:
      add(kTextNames);
      break;
    case HttpApi::kChat:
      names_["chat"] = "messages";
      add(kChatNames);
      break;
    case HttpApi::kResponses:
      names_["chat"] = "input";
      add(kResponsesNames);
      break;
    case HttpApi::kMessages:
      names_["chat"] = "messages";
      add(kMessagesNames);
      break;
  }
  // Errors about the whole chat are about its messages; what is below has its own name.
  for (const char* below : {"messages", "tools", "tool_choice", "continue_final_message"})
    names_.try_emplace(absl::StrCat("chat.", below), below);
  if (const auto form = names_.find("constraint"); form != names_.end()) {
    const std::string theirs = form->second;
    SetConstraint(theirs);
  }
}

void FieldNames::Set(absl::string_view ours, absl::string_view theirs) {
  names_[std::string(ours)] = std::string(theirs);
}

void FieldNames::SetConstraint(absl::string_view theirs) {
  Set("constraint", theirs);
  for (const char* form : kForms) Set(absl::StrCat("constraint.", form), theirs);
}

std::string FieldNames::Of(absl::string_view ours) const {
  for (size_t end = ours.size(); end > 0; --end) {
    // What is behind a prefix begins a name or an index.
    if (end < ours.size() && ours[end] != '.' && ours[end] != '[') continue;
    const auto found = names_.find(ours.substr(0, end));
    if (found == names_.end()) continue;
    absl::string_view rest = ours.substr(end);
    if (found->second.empty()) absl::ConsumePrefix(&rest, ".");
    return absl::StrCat(found->second, rest);
  }
  return std::string(ours);
}

// Paths of ours within a message, which have a dot; what is quoted is the client's own.
std::string FieldNames::RenameMentions(absl::string_view text) const {
  std::string renamed;
  bool quoted = false;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (!quoted && end < text.size() && IsPathCharacter(text[end])) ++end;
    if (end == at) {
      if (text[at] == '"' && (at == 0 || text[at - 1] != '\\')) quoted = !quoted;
      renamed.push_back(text[at++]);
      continue;
    }
    const absl::string_view word = absl::StripSuffix(text.substr(at, end - at), ".");
    bool ours = false;
    for (const char* group : {"sampling.", "stopping.", "output.", "speculation.", "chat."})
      ours = ours || absl::StartsWith(word, group);
    absl::StrAppend(&renamed, ours ? Of(word) : std::string(word));
    at += word.size();
    if (at < end) renamed.push_back(text[at++]);
  }
  return renamed;
}

FieldNames::Error FieldNames::AsTold(const absl::Status& status) {
  const absl::string_view message(status.message().data(), status.message().size());
  Error error{.field = FieldOf(status), .message = std::string(message)};
  // The body as a whole is no field.
  if (error.field == "body") error.field.reset();
  return error;
}

FieldNames::Error FieldNames::Describe(const absl::Status& status) const {
  const absl::string_view message(status.message().data(), status.message().size());
  const std::optional<std::string> ours = FieldOf(status);
  std::string field = ours.has_value() ? Of(*ours) : "";
  if (field.empty()) return {.field = std::nullopt, .message = RenameMentions(message)};
  absl::string_view rest = message.substr(ours->size() + 2);
  // A place within structural tags.
  if (ours == "constraint.structural_tags") {
    const absl::string_view part = rest.substr(0, rest.find(": "));
    if (part.size() < rest.size() &&
        (absl::StartsWith(part, "tags[") || absl::StartsWith(part, "triggers["))) {
      field = Of(absl::StrCat(*ours, ".", part));
      rest.remove_prefix(part.size() + 2);
    }
  }
  // A place within a schema.
  const size_t end = rest.find(": ");
  if (end != absl::string_view::npos && (rest[0] == '#' && (end == 1 || rest[1] == '/'))) {
    field += PathOfPointer(rest.substr(1, end - 1));
    rest.remove_prefix(end + 2);
  }
  std::string told = absl::StrCat(field, ": ", RenameMentions(rest));
  return {.field = std::move(field), .message = std::move(told)};
}

}  // namespace tandem::router

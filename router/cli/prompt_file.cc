#include "router/cli/prompt_file.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::json;

absl::StatusOr<FilePrompt> PromptOf(absl::string_view line) {
  const json object = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return absl::InvalidArgumentError("begins with { but is not a JSON object");
  for (const char* key : {"prompt", "text", "question", "chat"}) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) continue;
    return FilePrompt{.text = found->get<std::string>(), .chat = key == absl::string_view("chat")};
  }
  const auto turns = object.find("turns");
  if (turns != object.end() && turns->is_array() && !turns->empty() && turns->front().is_string()) {
    return FilePrompt{.text = turns->front().get<std::string>()};
  }
  return absl::InvalidArgumentError(R"(has no text under "prompt", "text", "question", "chat" or "turns")");
}

}  // namespace

absl::StatusOr<std::vector<FilePrompt>> ParsePrompts(absl::string_view content) {
  std::vector<FilePrompt> prompts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (line[0] != '{') {
      prompts.push_back({.text = std::string(line.data(), line.size())});
      continue;
    }
    absl::StatusOr<FilePrompt> prompt = PromptOf(line);
    if (!prompt.ok() || prompt->text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", prompt.ok() ? "an empty prompt" : prompt.status().message()));
    }
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) return absl::InvalidArgumentError("contains no prompts");
  return prompts;
}

}  // namespace tandem::cli

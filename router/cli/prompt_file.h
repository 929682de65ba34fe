#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {

struct FilePrompt {
  std::string text;
  bool chat = false;  // One message of the user.
};

// Parses prompts, one per line. A line is plain text or, if it begins with "{", a JSON object with the text
// under "prompt", "text", "question" or, as the first of a list, "turns"; text under "chat" is one message of
// the user. Empty lines are skipped. InvalidArgument names the line.
absl::StatusOr<std::vector<FilePrompt>> ParsePrompts(absl::string_view content);

}  // namespace tandem::cli

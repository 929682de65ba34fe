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

// The prompts of a file's content: one a line, as plain text or, where a line begins with "{", as a JSON
// object with the text under "prompt", "text", "question" or, as the first of a list, "turns"; under "chat"
// it is one message of the user. Empty lines are skipped. InvalidArgument names the line.
absl::StatusOr<std::vector<FilePrompt>> ParsePrompts(absl::string_view content);

}  // namespace tandem::cli

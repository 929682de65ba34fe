#include "router/cli/prompt_input.h"

#include <istream>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"

namespace tandem::cli {
namespace {

// More than any router accepts.
constexpr size_t kMaxPromptBytes = size_t{4} << 20;

}  // namespace

absl::StatusOr<std::string> ReadPromptText(const std::optional<std::string>& file,
                                           const std::optional<std::string>& prompt, std::istream& in) {
  if (file.value_or(prompt.value_or("")) != "-") {
    if (file.has_value()) return ReadFile(*file, kMaxPromptBytes);
    return *prompt;
  }
  std::string text(kMaxPromptBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() <= kMaxPromptBytes) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("standard input is longer than ", kMaxPromptBytes, " bytes"));
}

void SetPrompt(const std::string& prompt, bool chat, v1::GenerateRequest* request) {
  if (!chat) {
    request->set_text(prompt);
    return;
  }
  v1::ChatMessage& message = *request->mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content(prompt);
}

}  // namespace tandem::cli

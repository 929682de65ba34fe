#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

// The prompt that a command was given, as text or as a file; "-" is standard input. InvalidArgument for one
// that is longer than any router accepts.
absl::StatusOr<std::string> ReadPromptText(const std::optional<std::string>& file,
                                           const std::optional<std::string>& prompt, std::istream& in);

// As text, or as one message of the user.
void SetPrompt(const std::string& prompt, bool chat, v1::GenerateRequest* request);

}  // namespace tandem::cli

#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::cli {

// Reads a command's prompt, given as text or as a file; "-" is standard input. InvalidArgument if it is
// longer than any router accepts.
absl::StatusOr<std::string> ReadPromptText(const std::optional<std::string>& file,
                                           const std::optional<std::string>& prompt, std::istream& in);

// Sets the request's prompt, as text or as one message of the user.
void SetPrompt(const std::string& prompt, bool chat, v1::GenerateRequest* request);

}  // namespace tandem::cli

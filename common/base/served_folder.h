#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// What calls say of models and adapters that a server is to load.

inline constexpr size_t kMostServedNameBytes = 128;

// InvalidArgument, which names the field, unless it is 1 to 128 printable ASCII characters without blanks.
absl::Status CheckServedName(absl::string_view field, const std::string& name);

// The folder below `root` that `path` names, whatever links and dots are in it. `flag` is whose value `root`
// is, and `server` what has it, for messages. FailedPrecondition without a root; InvalidArgument for what is
// not below it, which is not told from what is not there.
absl::StatusOr<std::string> ServedFolder(absl::string_view server, absl::string_view flag,
                                         const std::string& root, const std::string& path);

}  // namespace tandem

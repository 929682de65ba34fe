#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Checks of names and folders in calls that load models and adapters.

inline constexpr size_t kMostServedNameBytes = 128;

// InvalidArgument, which names the field, unless it is 1 to 128 printable ASCII characters without blanks.
absl::Status CheckServedName(absl::string_view field, const std::string& name);

// The folder below `root` that `path` names, after resolving links and dots. `flag`: the flag with the value
// `root`; `server`: the server with that flag; both for messages. FailedPrecondition without a root;
// InvalidArgument, with the same message, for a folder that is not below it and for one that does not exist.
absl::StatusOr<std::string> ServedFolder(absl::string_view server, absl::string_view flag,
                                         const std::string& root, const std::string& path);

}  // namespace tandem

#include "common/base/served_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tandem {

absl::Status CheckServedName(absl::string_view field, const std::string& name) {
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (!name.empty() && name.size() <= kMostServedNameBytes && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": \"", absl::CHexEscape(name.substr(0, kMostServedNameBytes)), "\", expected at most ",
      kMostServedNameBytes, " printable ASCII characters without blanks"));
}

absl::StatusOr<std::string> ServedFolder(absl::string_view server, absl::string_view flag,
                                         const std::string& root, const std::string& path) {
  std::error_code error;
  const std::filesystem::path base = std::filesystem::canonical(root, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(flag, " ", root, ": ", error.message()));
  const std::filesystem::path folder = std::filesystem::canonical(base / path, error);
  const auto [end, at] = std::mismatch(base.begin(), base.end(), folder.begin(), folder.end());
  // The file system sees a path up to its first zero byte.
  const bool has_zero = path.find('\0') != std::string::npos;
  if (error || path.empty() || has_zero || end != base.end() || at == folder.end()) {
    return absl::InvalidArgumentError(absl::StrCat("folder: \"", absl::CHexEscape(path.substr(0, 200)),
                                                   "\" does not exist below the ", server, "'s ", flag));
  }
  return folder.string();
}

}  // namespace tandem

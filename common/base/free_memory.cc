#include "common/base/free_memory.h"

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

// The lines of a file of the system's, whose size is not known before; none if it is missing.
std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

// The number after `name` in lines of names and numbers; of the only line if there is no name.
std::optional<uint64_t> NumberIn(const std::string& path, absl::string_view name) {
  for (const std::string& line : Lines(path)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, name)) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(rest, ' ', absl::SkipWhitespace());
    uint64_t number = 0;
    // "max" is no number: there is no limit.
    if (!words.empty() && absl::SimpleAtoi(words.front(), &number)) return number;
  }
  return std::nullopt;
}

// The names that a version of control groups has for the same.
struct GroupFiles {
  absl::string_view folder;    // Where the groups are.
  absl::string_view limit;     // In bytes,
  absl::string_view used;      // with caches of files,
  absl::string_view inactive;  // of which the line of memory.stat says what can be dropped first.
};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file "};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

// What the limit of one group leaves; nullopt without one.
std::optional<uint64_t> LeftInGroup(const std::string& folder, const GroupFiles& files) {
  const auto limit = NumberIn(absl::StrCat(folder, "/", files.limit), "");
  const auto used = NumberIn(absl::StrCat(folder, "/", files.used), "");
  if (!limit.has_value() || !used.has_value()) return std::nullopt;
  const uint64_t inactive = NumberIn(absl::StrCat(folder, "/memory.stat"), files.inactive).value_or(0);
  const uint64_t taken = *used - std::min(*used, inactive);
  return *limit - std::min(*limit, taken);
}

}  // namespace

std::optional<FreeMemory> FindFreeMemory(const std::string& root) {
  std::optional<FreeMemory> least;
  const auto bound = [&least](std::optional<uint64_t> bytes, std::string of) {
    if (bytes.has_value() && (!least.has_value() || *bytes < least->bytes)) least = {*bytes, std::move(of)};
  };
  if (const auto kib = NumberIn(absl::StrCat(root, "/proc/meminfo"), "MemAvailable:")) {
    bound(*kib << 10, "the machine");
  }
  // "0::/path" of version 2, "4:memory:/path" of version 1. In a container whose own group looks like the
  // root, the path may lead nowhere; the root is looked at in any case.
  for (const std::string& line : Lines(absl::StrCat(root, "/proc/self/cgroup"))) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const bool is_version1 = std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (!is_version1 && parts[0] != "0") continue;
    const GroupFiles& files = is_version1 ? kVersion1 : kVersion2;
    std::string path = parts[2];
    for (;;) {
      while (absl::EndsWith(path, "/")) path.pop_back();
      bound(LeftInGroup(absl::StrCat(root, files.folder, path), files),
            absl::StrCat("the control group ", path.empty() ? "/" : path));
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least;
}

}  // namespace tandem

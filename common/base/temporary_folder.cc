#include "common/base/temporary_folder.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

[[noreturn]] void GiveUp(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", what.c_str(), std::strerror(errno));
  std::abort();
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    errno = error.value();
    GiveUp("no folder for temporary files");
  }
  path_ = (parent / "tandem-XXXXXX").string();  // mkdtemp replaces these six letters.
  if (mkdtemp(path_.data()) == nullptr) GiveUp("cannot create a folder like " + path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // What somebody else has removed already is gone too.
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::PathOf(absl::string_view name) const {
  return name.empty() ? path_ : absl::StrCat(path_, "/", name);
}

std::string TemporaryFolder::Write(absl::string_view name, absl::string_view content) const {
  std::string path = PathOf(name);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) GiveUp("cannot write " + path);
  return path;
}

void TemporaryFolder::Remove(absl::string_view name) const {
  std::error_code error;
  std::filesystem::remove(PathOf(name), error);
  if (error) GiveUp("cannot remove " + PathOf(name));
}

}  // namespace tandem

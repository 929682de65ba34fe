#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// For tests and measuring programs: a folder of its own among the machine's temporary ones, which is removed
// with its content at the end. Whoever cannot have one, or write to it, can do nothing that is to be done:
// the process then says why and aborts.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // The folder itself when `name` is empty.
  std::string PathOf(absl::string_view name) const;
  // Replaces the file if there is one. Returns its path.
  std::string Write(absl::string_view name, absl::string_view content) const;
  // Does nothing where there is no such file.
  void Remove(absl::string_view name) const;

 private:
  std::string path_;
};

}  // namespace tandem

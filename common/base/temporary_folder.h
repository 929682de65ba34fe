#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// For tests and benchmarks: a temporary folder, removed with its content at the end. If it cannot be created
// or written, the process prints the reason and aborts.
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
  // Does nothing if there is no such file.
  void Remove(absl::string_view name) const;

 private:
  std::string path_;
};

}  // namespace tandem

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Reads a whole file that is expected to be at most `max_bytes` long. Errors name the path: NotFound when it
// is missing, InvalidArgument when it is longer than allowed or not a regular file, Unavailable on a read
// error.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

// Puts a file of these bytes in the place of `path`, with its mode, or leaves what is there: it is written
// beside it, synced to disk and renamed. What is no regular file, such as a pipe, is written to. Errors name
// the path: NotFound when there is no such folder, PermissionDenied, or Unavailable with the system's words.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

// What was renamed in the folder of `path` is on disk from now on. Errors as of ReplaceFile.
absl::Status SyncFolderOf(const std::string& path);

// A regular file mapped read-only. Movable, not copyable; unmapped on destruction.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  absl::string_view bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const char* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tandem

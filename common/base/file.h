#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Reads a whole file of at most `max_bytes`. Errors name the path: NotFound if it is missing, InvalidArgument
// if it is longer or not a regular file, Unavailable on a read error.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

// Replaces the file at `path` atomically, keeping its mode: writes a temporary file in the same folder, syncs
// it to disk and renames it. If `path` is no regular file, such as a pipe, writes to it. Errors name the
// path: NotFound if the folder does not exist, PermissionDenied, or Unavailable with the system's message.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

// Syncs renames in the folder of `path` to disk. Errors as in ReplaceFile.
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

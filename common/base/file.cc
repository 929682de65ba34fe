#include "common/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

absl::Status ErrnoStatus(const std::string& path, absl::string_view what, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", what, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::StatusOr<size_t> RegularFileSize(const std::string& path, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  return static_cast<size_t>(info.st_size);
}

absl::Status WriteAll(const std::string& path, int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(path, "write", errno);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

// A new file whose name has random characters at the end, with the bytes on disk.
absl::Status WriteNew(std::string& name, mode_t mode, absl::string_view bytes) {
  const Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) return ErrnoStatus(name, "create", errno);
  absl::Status status = WriteAll(name, file.get(), bytes);
  if (status.ok() && (::fchmod(file.get(), mode) != 0 || ::fsync(file.get()) != 0)) {
    status = ErrnoStatus(name, "write", errno);
  }
  if (!status.ok()) ::unlink(name.c_str());
  return status;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ErrnoStatus(path, "open", errno);
  absl::StatusOr<size_t> size = RegularFileSize(path, file.get());
  if (!size.ok()) return size.status();
  if (*size > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", *size, " bytes, expected at most ", max_bytes));
  }
  std::string content(*size, '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t count = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(path, "read", errno);
    if (count == 0) break;  // The file shrank while it was read.
    filled += static_cast<size_t>(count);
  }
  if (filled != content.size()) {
    return absl::UnavailableError(
        absl::StrCat(path, ": ended at byte ", filled, ", expected ", content.size()));
  }
  return content;
}

absl::Status ReplaceFile(const std::string& path, absl::string_view bytes) {
  std::error_code ignored;
  std::string target = path;
  struct stat info {};
  info.st_mode = 0644;
  if (::stat(path.c_str(), &info) == 0) {
    // A terminal or a pipe is written to.
    if (!S_ISREG(info.st_mode)) {
      const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      return file.get() < 0 ? ErrnoStatus(path, "open", errno) : WriteAll(path, file.get(), bytes);
    }
    // A link stays one.
    target = std::filesystem::canonical(path, ignored).string();
    if (ignored) target = path;
  }
  std::string name = absl::StrCat(target, ".XXXXXX");  // mkostemp puts random characters in place of the X.
  const absl::Status status = WriteNew(name, info.st_mode & 0777, bytes);
  if (!status.ok()) return status;
  if (std::rename(name.c_str(), target.c_str()) != 0) {
    const int error = errno;
    ::unlink(name.c_str());
    return ErrnoStatus(path, "replace", error);
  }
  return SyncFolderOf(target);
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string name = folder.empty() ? "." : folder.string();
  const Descriptor opened(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync folders, and need not.
  if (opened.get() < 0 || (::fsync(opened.get()) != 0 && errno != EINVAL)) {
    return ErrnoStatus(name, "sync", errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ErrnoStatus(path, "open", errno);
  absl::StatusOr<size_t> size = RegularFileSize(path, file.get());
  if (!size.ok()) return size.status();
  if (*size == 0) return MappedFile(path, nullptr, 0);
  void* data = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(path, "map", errno);
  return MappedFile(path, static_cast<const char*>(data), *size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace tandem

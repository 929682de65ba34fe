#include "common/rpc/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

absl::Status CannotListen(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("socket ", path, ": ", what));
}

// The caller has looked at the length.
sockaddr_un SocketAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status CheckLength(const std::string& path) {
  if (!path.empty() && path.size() <= kMaxSocketPath) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("socket \"", path, "\": a path of ", path.size(),
                                                 " bytes, expected 1 to ", kMaxSocketPath,
                                                 ", the system's limit for the path of a socket"));
}

}  // namespace

std::optional<std::string> UnixSocketPath(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "unix:")) return std::nullopt;
  absl::ConsumePrefix(&address, "//");
  return std::string(address);
}

bool IsListening(const std::string& path) {
  if (!CheckLength(path).ok()) return false;
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;
  const sockaddr_un address = SocketAddress(path);
  const bool refused = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
                       (errno == ECONNREFUSED || errno == ENOENT);
  close(probe);
  return !refused;
}

absl::StatusOr<std::unique_ptr<UnixSocket>> UnixSocket::Listen(const std::string& path) {
  // Next to it, since a rename does not cross file systems.
  const std::string made_as = absl::StrCat(path, "~");
  TANDEM_RETURN_IF_ERROR(CheckLength(made_as));
  struct stat found = {};
  if (lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode)) return CannotListen(path, "a file exists there that is not a socket");
    if (IsListening(path)) return CannotListen(path, "another process listens there");
  }
  struct stat folder = {};
  if (stat(FolderOf(path).c_str(), &folder) != 0) {
    return CannotListen(path, absl::StrCat("its folder: ", std::strerror(errno)));
  }
  std::unique_ptr<UnixSocket> made(new UnixSocket());
  made->descriptor_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made->descriptor_ < 0) return CannotListen(path, std::strerror(errno));
  // What a process left that ended between the lines below.
  if (lstat(made_as.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) unlink(made_as.c_str());
  const sockaddr_un address = SocketAddress(made_as);
  if (bind(made->descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return CannotListen(path, std::strerror(errno));
  }
  const mode_t mode = (folder.st_mode & S_ISGID) != 0 ? 0660 : 0600;
  if (chmod(made_as.c_str(), mode) != 0 || listen(made->descriptor_, SOMAXCONN) != 0 ||
      lstat(made_as.c_str(), &found) != 0 || std::rename(made_as.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    unlink(made_as.c_str());
    return CannotListen(path, why);
  }
  made->path_ = path;
  made->device_ = found.st_dev;
  made->inode_ = found.st_ino;
  return made;
}

UnixSocket::~UnixSocket() {
  if (descriptor_ >= 0) close(descriptor_);
  struct stat found = {};
  if (path_.empty() || lstat(path_.c_str(), &found) != 0) return;
  if (found.st_dev == device_ && found.st_ino == inode_) unlink(path_.c_str());
}

int UnixSocket::Release() {
  return std::exchange(descriptor_, -1);
}

}  // namespace tandem

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// The longest path that a Unix domain socket can have, in bytes: sun_path less its end.
inline constexpr size_t kMaxSocketPath = 107;

// The path of "unix:PATH" or "unix:///PATH"; nothing for other addresses, abstract sockets included.
std::optional<std::string> UnixSocketPath(absl::string_view address);

// Whether a process listens, or may listen, at the socket. False only if connections are refused.
bool IsListening(const std::string& path);

// A listening socket in the file system. It is created under another name and renamed once it listens, so
// that a client that finds the path can connect. If there is a socket at the path whose process has died, it
// is replaced.
//
// Only the process's user may connect (mode 0600), or, where the folder has the set-group-ID bit, its group
// too (0660).
class UnixSocket {
 public:
  // InvalidArgument for a path that is too long; Unavailable, naming the path, if a process listens there, if
  // the file there is no socket, or if the socket cannot be created.
  static absl::StatusOr<std::unique_ptr<UnixSocket>> Listen(const std::string& path);
  // Removes the path if it still leads to this socket.
  ~UnixSocket();
  UnixSocket(const UnixSocket&) = delete;
  UnixSocket& operator=(const UnixSocket&) = delete;

  const std::string& path() const { return path_; }
  // Releases the descriptor to the caller.
  int Release();

 private:
  UnixSocket() = default;

  std::string path_;
  int descriptor_ = -1;
  uint64_t device_ = 0;  // What the path led to when it was made.
  uint64_t inode_ = 0;
};

}  // namespace tandem

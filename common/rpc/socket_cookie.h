#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

namespace tandem {

// The unique number of a socket, which, unlike a descriptor's, is never reused. nullopt if the descriptor is
// no socket, and for kernels before 4.12.
inline std::optional<uint64_t> SocketCookie(int descriptor) {
  // Linux's SO_COOKIE, which the C library's headers may not have.
  constexpr int kCookie = 57;
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  if (getsockopt(descriptor, SOL_SOCKET, kCookie, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

}  // namespace tandem

#include "common/rpc/socket_reads.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/types/span.h"
#include "common/rpc/header_bounds.h"
#include "common/rpc/socket_cookie.h"

namespace tandem {
namespace {

// One for each descriptor. What is read from one connection is read by one thread at a time, which comes
// after the one that accepted it; a descriptor that has become another socket's is known by its cookie.
struct Reads {
  std::atomic<uint64_t> cookie{0};  // 0: nobody looks.
  HeaderBounds bounds;
};

constexpr size_t kMostDescriptors = 1 << 20;

// Of every descriptor that was a connection's. Zeroed memory that nobody has touched costs nothing.
struct Table {
  Table() {
    rlimit limit = {};
    const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    size = known ? std::min<size_t>(limit.rlim_max, kMostDescriptors) : 1024;
    reads = static_cast<std::atomic<Reads*>*>(std::calloc(size, sizeof(std::atomic<Reads*>)));
    if (reads == nullptr) size = 0;
  }
  size_t size = 0;
  std::atomic<Reads*>* reads = nullptr;
};

// Set by the first connection and there for good: sockets are read until the process ends.
std::atomic<Table*> table{nullptr};
std::atomic<int> num_cut{0};

Reads* Watched(int descriptor) {
  Table* const all = table.load(std::memory_order_acquire);
  if (all == nullptr || descriptor < 0 || static_cast<size_t>(descriptor) >= all->size) return nullptr;
  Reads* const reads = all->reads[static_cast<size_t>(descriptor)].load(std::memory_order_acquire);
  if (reads == nullptr) return nullptr;
  const uint64_t cookie = reads->cookie.load(std::memory_order_acquire);
  if (cookie == 0) return nullptr;
  if (SocketCookie(descriptor) == cookie) return reads;
  return nullptr;
}

// Whether what was read may go on to its reader.
bool Take(Reads& reads, const msghdr& message, size_t size) {
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const size_t part = std::min(size, message.msg_iov[i].iov_len);
    if (!reads.bounds.Take(
            absl::MakeConstSpan(static_cast<const uint8_t*>(message.msg_iov[i].iov_base), part))) {
      return false;
    }
    size -= part;
  }
  return true;
}

}  // namespace

void BoundHeaderLists(int descriptor) {
  static Table* const made = [] {
    auto* const one = new Table();
    table.store(one, std::memory_order_release);
    return one;
  }();
  if (descriptor < 0 || static_cast<size_t>(descriptor) >= made->size) return;
  std::atomic<Reads*>& place = made->reads[static_cast<size_t>(descriptor)];
  Reads* reads = place.load(std::memory_order_acquire);
  if (reads == nullptr) place.store(reads = new Reads(), std::memory_order_release);
  reads->bounds = HeaderBounds();
  reads->cookie.store(SocketCookie(descriptor).value_or(0), std::memory_order_release);
}

int TakeNumCutHeaderLists() {
  return num_cut.exchange(0, std::memory_order_relaxed);
}

}  // namespace tandem

// In place of the C library's, for libraries that are linked dynamically too. ThreadSanitizer has to see the
// C library's, by which it knows what happened before what.
#if !defined(__SANITIZE_THREAD__)
extern "C" ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  const ssize_t size = syscall(SYS_recvmsg, descriptor, message, flags);
  if (size <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return size;
  tandem::Reads* const reads = tandem::Watched(descriptor);
  if (reads == nullptr || tandem::Take(*reads, *message, static_cast<size_t>(size))) return size;
  tandem::num_cut.fetch_add(1, std::memory_order_relaxed);
  shutdown(descriptor, SHUT_RDWR);
  return 0;
}
#endif

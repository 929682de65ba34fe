#include "common/rpc/socket_reads.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/rpc/header_bounds.h"
#include "common/rpc/socket_cookie.h"

namespace tandem {
namespace {

// One for each descriptor. A descriptor that has become another socket's is known by its cookie.
struct Reads {
  std::atomic<uint64_t> cookie{0};  // 0: nobody looks.
  // One thread at a time reads a connection, so nobody waits here: this orders those that have the descriptor
  // in turn.
  absl::Mutex mutex;
  HeaderBounds bounds ABSL_GUARDED_BY(mutex);
  uint64_t most_calls ABSL_GUARDED_BY(mutex) = 0;
  uint64_t look_at_calls ABSL_GUARDED_BY(mutex) = 0;  // When there are more, at what was written.
};

constexpr int kTcpLevel = 6;
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
std::atomic<int> num_cut_header_lists{0};
std::atomic<int> num_cut_calls{0};

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

// What has been written to a socket since it is there.
uint64_t WrittenBytes(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  int queued = 0;
  if (getsockopt(descriptor, kTcpLevel, TCP_INFO, &info, &size) != 0) return 0;
  if (ioctl(descriptor, SIOCOUTQ, &queued) != 0) return 0;
  return info.tcpi_bytes_acked + static_cast<uint64_t>(queued);
}

bool HasTooManyCalls(int descriptor, Reads& reads) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reads.mutex) {
  const uint64_t calls = reads.bounds.num_calls();
  if (calls <= reads.look_at_calls) return false;
  const uint64_t answered = WrittenBytes(descriptor) / kLeastAnswerBytes;
  reads.look_at_calls = answered + reads.most_calls;
  return calls > reads.look_at_calls;
}

// Whether all header lists may go on to their reader.
bool Take(Reads& reads, const msghdr& message, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reads.mutex) {
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

void BoundReads(int descriptor, uint64_t most_calls) {
  static Table* const made = [] {
    auto* const one = new Table();
    table.store(one, std::memory_order_release);
    return one;
  }();
  if (descriptor < 0 || static_cast<size_t>(descriptor) >= made->size) return;
  std::atomic<Reads*>& place = made->reads[static_cast<size_t>(descriptor)];
  Reads* reads = place.load(std::memory_order_acquire);
  if (reads == nullptr) place.store(reads = new Reads(), std::memory_order_release);
  absl::MutexLock lock(&reads->mutex);
  reads->bounds = HeaderBounds();
  reads->most_calls = reads->look_at_calls = most_calls;
  reads->cookie.store(SocketCookie(descriptor).value_or(0), std::memory_order_release);
}

CutReads TakeCutReads() {
  return {.header_lists = num_cut_header_lists.exchange(0, std::memory_order_relaxed),
          .calls = num_cut_calls.exchange(0, std::memory_order_relaxed)};
}

// True when the reader is to find the end of the connection.
static bool CutsRead(int descriptor, const msghdr& message, size_t size) {
  Reads* const reads = Watched(descriptor);
  if (reads == nullptr) return false;
  absl::MutexLock lock(&reads->mutex);
  if (!Take(*reads, message, size)) {
    num_cut_header_lists.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  if (!HasTooManyCalls(descriptor, *reads)) return false;
  num_cut_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace tandem

// In place of the C library's, for libraries that are linked dynamically too. ThreadSanitizer has to see the
// C library's, by which it knows what happened before what.
#if !defined(__SANITIZE_THREAD__)
extern "C" ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  const ssize_t size = syscall(SYS_recvmsg, descriptor, message, flags);
  if (size <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return size;
  if (!tandem::CutsRead(descriptor, *message, static_cast<size_t>(size))) return size;
  shutdown(descriptor, SHUT_RDWR);
  return 0;
}
#endif

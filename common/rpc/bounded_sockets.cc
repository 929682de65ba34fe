#include "common/rpc/bounded_sockets.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/rpc/connection_frames.h"
#include "common/rpc/socket_cookie.h"

namespace tandem {
namespace {

// One for each descriptor. A descriptor that has become another socket's is known by its cookie.
struct Bounds {
  std::atomic<uint64_t> cookie{0};  // 0: nobody looks.
  // Between the connection's reader and its writer, and between those that have the descriptor in turn.
  absl::Mutex mutex;
  ConnectionFrames frames ABSL_GUARDED_BY(mutex);
  uint64_t most_calls ABSL_GUARDED_BY(mutex) = 0;
  std::function<void()> on_cut ABSL_GUARDED_BY(mutex);
  // Frames that carry nothing: how many more there might be at the last look, and what was counted then.
  double idle_credit ABSL_GUARDED_BY(mutex) = 0;
  uint64_t idle_frames ABSL_GUARDED_BY(mutex) = 0;
  uint64_t sent_messages ABSL_GUARDED_BY(mutex) = 0;
  std::chrono::steady_clock::time_point looked_at ABSL_GUARDED_BY(mutex);
};

constexpr size_t kMostDescriptors = 1 << 20;

// For every descriptor that was a connection's. Untouched zeroed memory costs nothing.
struct Table {
  Table() {
    rlimit limit = {};
    const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    size = known ? std::min<size_t>(limit.rlim_max, kMostDescriptors) : 1024;
    bounds = static_cast<std::atomic<Bounds*>*>(std::calloc(size, sizeof(std::atomic<Bounds*>)));
    if (bounds == nullptr) size = 0;
  }
  size_t size = 0;
  std::atomic<Bounds*>* bounds = nullptr;
};

// Set by the first connection and there for good: sockets are read until the process ends.
std::atomic<Table*> table{nullptr};
std::atomic<int> num_cut_header_lists{0};
std::atomic<int> num_cut_calls{0};
std::atomic<int> num_cut_idle_frames{0};

Bounds* Watched(int descriptor) {
  Table* const all = table.load(std::memory_order_acquire);
  if (all == nullptr || descriptor < 0 || static_cast<size_t>(descriptor) >= all->size) return nullptr;
  Bounds* const bounds = all->bounds[static_cast<size_t>(descriptor)].load(std::memory_order_acquire);
  if (bounds == nullptr) return nullptr;
  const uint64_t cookie = bounds->cookie.load(std::memory_order_acquire);
  if (cookie == 0) return nullptr;
  if (SocketCookie(descriptor) == cookie) return bounds;
  return nullptr;
}

// Looks at the clock only when there are many since the last time.
bool HasTooManyIdleFrames(Bounds& bounds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(bounds.mutex) {
  constexpr uint64_t kLookEvery = 64;
  const uint64_t frames = bounds.frames.num_idle_frames();
  if (frames < bounds.idle_frames + kLookEvery) return false;
  const auto now = std::chrono::steady_clock::now();
  const double most = static_cast<double>(bounds.most_calls);
  const double earned = 2 * most * std::chrono::duration<double>(now - bounds.looked_at).count() +
                        static_cast<double>(bounds.frames.num_sent_messages() - bounds.sent_messages);
  bounds.idle_credit =
      std::min(most, bounds.idle_credit + earned) - static_cast<double>(frames - bounds.idle_frames);
  bounds.idle_frames = frames;
  bounds.sent_messages = bounds.frames.num_sent_messages();
  bounds.looked_at = now;
  return bounds.idle_credit < 0;
}

// Shows the first `size` bytes that the message has room for, in their parts, while `see` is true.
template <typename See>
bool ForEachPart(const msghdr& message, size_t size, const See& see) {
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const size_t part = std::min(size, message.msg_iov[i].iov_len);
    if (!see(absl::MakeConstSpan(static_cast<const uint8_t*>(message.msg_iov[i].iov_base), part)))
      return false;
    size -= part;
  }
  return true;
}

}  // namespace

void BoundSocket(int descriptor, uint64_t most_calls, std::function<void()> on_cut) {
  static Table* const made = [] {
    auto* const one = new Table();
    table.store(one, std::memory_order_release);
    return one;
  }();
  if (descriptor < 0 || static_cast<size_t>(descriptor) >= made->size) return;
  std::atomic<Bounds*>& place = made->bounds[static_cast<size_t>(descriptor)];
  Bounds* bounds = place.load(std::memory_order_acquire);
  if (bounds == nullptr) place.store(bounds = new Bounds(), std::memory_order_release);
  absl::MutexLock lock(&bounds->mutex);
  bounds->frames = ConnectionFrames();
  bounds->most_calls = most_calls;
  bounds->on_cut = std::move(on_cut);
  bounds->idle_credit = static_cast<double>(most_calls);
  bounds->idle_frames = bounds->sent_messages = 0;
  bounds->looked_at = std::chrono::steady_clock::now();
  bounds->cookie.store(SocketCookie(descriptor).value_or(0), std::memory_order_release);
}

CutSockets TakeCutSockets() {
  return {.header_lists = num_cut_header_lists.exchange(0, std::memory_order_relaxed),
          .calls = num_cut_calls.exchange(0, std::memory_order_relaxed),
          .idle_frames = num_cut_idle_frames.exchange(0, std::memory_order_relaxed)};
}

// True when the reader is to find the end of the connection.
static bool CutsRead(int descriptor, const msghdr& message, size_t size) {
  Bounds* const bounds = Watched(descriptor);
  if (bounds == nullptr) return false;
  absl::MutexLock lock(&bounds->mutex);
  const bool takes = ForEachPart(message, size, [&](absl::Span<const uint8_t> part) {
    bounds->mutex.AssertHeld();
    return bounds->frames.Receive(part, bounds->most_calls);
  });
  if (takes && !HasTooManyIdleFrames(*bounds)) return false;
  auto& cut = takes                             ? num_cut_idle_frames
              : bounds->frames.too_many_calls() ? num_cut_calls
                                                : num_cut_header_lists;
  cut.fetch_add(1, std::memory_order_relaxed);
  if (bounds->on_cut) bounds->on_cut();
  // Once: later input until gRPC closes the socket does not count.
  bounds->on_cut = nullptr;
  return true;
}

static void NoteWritten(int descriptor, const msghdr& message, size_t size) {
  Bounds* const bounds = Watched(descriptor);
  if (bounds == nullptr) return;
  absl::MutexLock lock(&bounds->mutex);
  ForEachPart(message, size, [&](absl::Span<const uint8_t> part) {
    bounds->mutex.AssertHeld();
    bounds->frames.Send(part);
    return true;
  });
}

}  // namespace tandem

// In place of the C library's, for libraries that are linked dynamically too. ThreadSanitizer has to see the
// C library's, by which it knows what happened before what.
#ifndef TANDEM_THREAD_SANITIZED
extern "C" ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  const ssize_t size = syscall(SYS_recvmsg, descriptor, message, flags);
  if (size <= 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) return size;
  if (!tandem::CutsRead(descriptor, *message, static_cast<size_t>(size))) return size;
  shutdown(descriptor, SHUT_RDWR);
  return 0;
}

extern "C" ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  const ssize_t size = syscall(SYS_sendmsg, descriptor, message, flags);
  if (size > 0) tandem::NoteWritten(descriptor, *message, static_cast<size_t>(size));
  return size;
}
#endif

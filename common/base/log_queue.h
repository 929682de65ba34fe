#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// A queue of lines for a file descriptor, written in order by a separate thread, so that a stalled reader,
// such as a log collector, does not block threads that log. The queue is bounded: further lines are dropped
// and counted, and one line reports them as soon as there is room again.
//
// Push never waits for the reader. A child of fork, which does not have the thread, writes directly.
// Thread-safe, except for the destructor.
class LogQueue {
 public:
  struct Options {
    int fd = -1;  // Stays open.
    size_t max_bytes = size_t{1} << 20;
    // Makes the line, with its line feed, that reports this many dropped lines.
    std::function<std::string(uint64_t)> describe_dropped;
  };
  // How long the destructor, and the end of the process, wait for a stalled reader.
  static constexpr absl::Duration kLastPatience = absl::Seconds(1);

  explicit LogQueue(Options options);
  // Writes all queued lines, for at most kLastPatience.
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // `line` must end with a line feed.
  void Push(std::string line);
  // Waits until all pushed lines are written; false after `patience`.
  bool Flush(absl::Duration patience);
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // Bytes that are not written yet. Safe in a signal handler.
  size_t pending_bytes() const { return pending_bytes_.load(std::memory_order_acquire); }

 private:
  void Run();
  // The next lines to write together: whole lines, as many as one write takes. Empty: end the thread.
  std::string Take();
  // False if the queue ends first, or the descriptor fails.
  bool WriteAll(const std::string& bytes);
  bool stopping() const { return stop_at_ns_.load(std::memory_order_acquire) != 0; }

  const Options options_;
  const pid_t process_;
  absl::Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  uint64_t untold_ ABSL_GUARDED_BY(mutex_) = 0;  // Dropped since the last line that reported them.
  std::atomic<size_t> pending_bytes_{0};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<int64_t> stop_at_ns_{0};  // On the steady clock; 0 while the queue runs.
  std::thread thread_;
};

// Sends lines of common/base/log.h to standard error through a queue, which is flushed at exit and when a
// signal such as SIGABRT or SIGSEGV ends the process. For servers. Call it once.
void QueueLogLines();
// Waits until all logged lines are written; returns at once without a queue.
bool FlushLog(absl::Duration patience);
// The number of lines dropped because the reader was too slow.
uint64_t DroppedLogLines();
// Writes a line of a log, or queues it.
void WriteLogLine(std::string line);

}  // namespace tandem

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

// Lines on their way to a file descriptor, which a thread of its own writes in their order: whoever reads the
// other end, such as a log collector, may stall without holding up those who log. What is queued is bounded;
// lines beyond are dropped, counted, and told of by one line in their place as soon as there is room again.
//
// Push never waits for the reader. A child of fork, which has no such thread, writes by itself. Safe to call
// from any thread; destruction belongs to one.
class LogQueue {
 public:
  struct Options {
    int fd = -1;  // Stays open.
    size_t max_bytes = size_t{1} << 20;
    // The line, with its line feed, that tells of so many that were dropped.
    std::function<std::string(uint64_t)> describe_dropped;
  };
  // How long the end of the queue, and that of the process, wait for a reader that does not read.
  static constexpr absl::Duration kLastPatience = absl::Seconds(1);

  explicit LogQueue(Options options);
  // Writes what is queued, unless that takes longer than kLastPatience.
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // `line` has its line feed.
  void Push(std::string line);
  // Waits until all that was pushed is written; false when that takes longer.
  bool Flush(absl::Duration patience);
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // Bytes that are not written yet. Safe in a signal handler.
  size_t pending_bytes() const { return pending_bytes_.load(std::memory_order_acquire); }

 private:
  void Run();
  // The next lines to write together, whole ones as far as a write takes them at once; empty: to end.
  std::string Take();
  // False when the queue ends first, or the descriptor takes nothing any more.
  bool WriteAll(const std::string& bytes);
  bool stopping() const { return stop_at_ns_.load(std::memory_order_acquire) != 0; }

  const Options options_;
  const pid_t process_;
  absl::Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  uint64_t untold_ ABSL_GUARDED_BY(mutex_) = 0;  // Dropped since the last line that told of them.
  std::atomic<size_t> pending_bytes_{0};
  std::atomic<uint64_t> dropped_{0};
  std::atomic<int64_t> stop_at_ns_{0};  // On the steady clock; 0 while the queue goes on.
  std::thread thread_;
};

// From now on lines of common/base/log.h go to standard error through a queue, which is written out at the
// process' exit and when a signal such as SIGABRT or SIGSEGV ends it. For servers; once.
void QueueLogLines();
// Waits until all that was logged is written; at once without a queue.
bool FlushLog(absl::Duration patience);
// Lines that were dropped because nobody read those before them.
uint64_t DroppedLogLines();
// Writes a line of a log, or queues it.
void WriteLogLine(std::string line);

}  // namespace tandem

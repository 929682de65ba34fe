#include "common/base/log_queue.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log_line.h"

namespace tandem {
namespace {

// How often the writing thread looks whether the queue ends while its reader stalls.
constexpr int kLookMs = 50;
// For how long a process that crashes lets the writing thread go on.
constexpr int kCrashLooks = 50;
constexpr timespec kCrashLook = {.tv_sec = 0, .tv_nsec = 10'000'000};

// Of standard error; never destroyed, so that logging works to the end of the process.
std::atomic<LogQueue*> process_queue{nullptr};

int64_t SteadyNanos() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void WriteDirectly(int fd, const std::string& line) {
  [[maybe_unused]] const ssize_t written = ::write(fd, line.data(), line.size());
}

// The thread that writes goes on while this one, which is about to die, waits.
void OnCrash(int signal_number) {
  const LogQueue* const queue = process_queue.load(std::memory_order_acquire);
  for (int i = 0; i < kCrashLooks && queue != nullptr && queue->pending_bytes() > 0; ++i) {
    nanosleep(&kCrashLook, nullptr);
  }
  // The handler is reset: this, or the instruction that is tried again, ends the process.
  raise(signal_number);
}

void HandleCrashes() {
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
    struct sigaction before = {};
    // Sanitizers have theirs.
    if (sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
    struct sigaction action = {};
    action.sa_handler = OnCrash;
    sigemptyset(&action.sa_mask);
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    sigaction(number, &action, nullptr);
  }
}

}  // namespace

LogQueue::LogQueue(Options options)
    : options_(std::move(options)), process_(getpid()), thread_([this] {
        // Signals are for threads that expect them; a reader that is gone is an error of write, and not a
        // signal.
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        Run();
      }) {}

LogQueue::~LogQueue() {
  stop_at_ns_.store(SteadyNanos() + absl::ToInt64Nanoseconds(kLastPatience), std::memory_order_release);
  {
    // Wakes the thread, which waits for lines or the end.
    absl::MutexLock lock(&mutex_);
  }
  thread_.join();
}

void LogQueue::Push(std::string line) {
  if (getpid() != process_) return WriteDirectly(options_.fd, line);
  absl::MutexLock lock(&mutex_);
  const size_t pending = pending_bytes_.load(std::memory_order_relaxed);
  if (pending > 0 && (line.size() > options_.max_bytes || pending > options_.max_bytes - line.size())) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    ++untold_;
    return;
  }
  size_t added = line.size();
  if (untold_ > 0 && options_.describe_dropped) {
    lines_.push_back(options_.describe_dropped(std::exchange(untold_, 0)));
    added += lines_.back().size();
  }
  lines_.push_back(std::move(line));
  pending_bytes_.fetch_add(added, std::memory_order_release);
}

bool LogQueue::Flush(absl::Duration patience) {
  if (getpid() != process_) return true;
  absl::MutexLock lock(&mutex_);
  const auto written = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return pending_bytes() == 0; };
  return mutex_.AwaitWithTimeout(absl::Condition(&written), patience);
}

std::string LogQueue::Take() {
  absl::MutexLock lock(&mutex_);
  const auto something = [this]()
                             ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !lines_.empty() || stopping(); };
  mutex_.Await(absl::Condition(&something));
  std::string bytes;
  while (!lines_.empty() && (bytes.empty() || bytes.size() + lines_.front().size() <= PIPE_BUF)) {
    bytes += lines_.front();
    lines_.pop_front();
  }
  return bytes;
}

bool LogQueue::WriteAll(const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const int64_t stop_at_ns = stop_at_ns_.load(std::memory_order_acquire);
    if (stop_at_ns != 0 && SteadyNanos() > stop_at_ns) return false;
    pollfd ready = {.fd = options_.fd, .events = POLLOUT, .revents = 0};
    if (poll(&ready, 1, kLookMs) <= 0) continue;
    // A pipe that is ready has room for so much: the write does not block, and lines of several processes on
    // one pipe do not mix.
    const ssize_t written =
        ::write(options_.fd, bytes.data() + done, std::min<size_t>(bytes.size() - done, PIPE_BUF));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (written > 0) done += static_cast<size_t>(written);
  }
  return true;
}

void LogQueue::Run() {
  while (true) {
    const std::string bytes = Take();
    if (bytes.empty()) return;
    if (!WriteAll(bytes)) dropped_.fetch_add(1, std::memory_order_relaxed);
    // With the mutex, so that those who wait for it see it.
    absl::MutexLock lock(&mutex_);
    pending_bytes_.fetch_sub(bytes.size(), std::memory_order_release);
  }
}

void QueueLogLines() {
  if (process_queue.load() != nullptr) return;
  auto* const queue = new LogQueue({.fd = STDERR_FILENO, .describe_dropped = [](uint64_t count) {
                                      return LogLine(LogLevel::kWarning,
                                                     "log lines were dropped: standard error was not read",
                                                     {{"lines", absl::StrCat(count)}});
                                    }});
  process_queue.store(queue, std::memory_order_release);
  std::atexit([] { FlushLog(LogQueue::kLastPatience); });
  HandleCrashes();
}

bool FlushLog(absl::Duration patience) {
  LogQueue* const queue = process_queue.load(std::memory_order_acquire);
  return queue == nullptr || queue->Flush(patience);
}

uint64_t DroppedLogLines() {
  const LogQueue* const queue = process_queue.load(std::memory_order_acquire);
  return queue == nullptr ? 0 : queue->dropped();
}

void WriteLogLine(std::string line) {
  if (LogQueue* const queue = process_queue.load(std::memory_order_acquire))
    return queue->Push(std::move(line));
  WriteDirectly(STDERR_FILENO, line);
}

}  // namespace tandem

#include "common/engine/cpu/thread_team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_list.h"

namespace tandem {
namespace {

constexpr int kMaxThreads = 1024;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long a thread spins before it sleeps: the next work usually comes within that time.
constexpr std::chrono::microseconds kLooking(20);
constexpr int kPausesBetweenClocks = 32;
// After this many waits in a row in which spinning did not help, a thread spins only in one of some waits: on
// busy cores, the others may be waiting for this very processor.
constexpr uint32_t kVainLooks = 3;
constexpr uint32_t kWaitsPerLook = 16;

// The kernel's wait queue of a word. std::atomic's own wait first offers the processor to others
// (sched_yield). A thread that computes then loses a whole time slice of milliseconds at every barrier,
// whereas a thread that has slept runs again soon after it is woken.
void SleepWhile(std::atomic<uint32_t>& word, uint32_t old) {
  static_assert(sizeof(word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

}  // namespace

void ThreadTeam::Count::Advance() {
  value_.fetch_add(1, std::memory_order_seq_cst);
  // Either this thread sees the sleeper, or the sleeper sees the new value: the kernel compares again before
  // it lets the thread sleep.
  if (num_sleepers_.load(std::memory_order_seq_cst) > 0) WakeAll(value_);
}

bool ThreadTeam::Count::LookAfter(uint32_t old) const {
  const auto deadline = std::chrono::steady_clock::now() + kLooking;
  do {
    for (int i = 0; i < kPausesBetweenClocks; ++i) {
      if (value_.load(std::memory_order_acquire) != old) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

void ThreadTeam::Count::AwaitAfter(uint32_t old) {
  if (value_.load(std::memory_order_acquire) != old) return;
  // Several threads may count at once: an error of one does not matter.
  const uint32_t vain = num_vain_.load(std::memory_order_relaxed);
  const bool look = vain < kVainLooks || vain % kWaitsPerLook == 0;
  if (look && LookAfter(old)) {
    if (vain != 0) num_vain_.store(0, std::memory_order_relaxed);
    return;
  }
  num_vain_.store(vain + 1, std::memory_order_relaxed);
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == old) SleepWhile(value_, old);
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

ThreadTeam::ThreadTeam(int num_threads, const std::vector<int>& cpus)
    : num_threads_(num_threads), cpus_(cpus) {}

absl::StatusOr<std::unique_ptr<ThreadTeam>> ThreadTeam::Create(int num_threads,
                                                               const std::vector<int>& cpus) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("a team has 1 to ", kMaxThreads, " threads, not ", num_threads));
  }
  if (!cpus.empty() && cpus.size() != static_cast<size_t>(num_threads)) {
    return absl::InvalidArgumentError(
        absl::StrCat(cpus.size(), " CPUs for ", num_threads, " threads, expected one for each"));
  }
  std::unique_ptr<ThreadTeam> team(new ThreadTeam(num_threads, cpus));
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      team->workers_.emplace_back([team = team.get(), thread] { team->Work(thread); });
      if (!cpus.empty()) {
        TANDEM_RETURN_IF_ERROR(
            PinThread(team->workers_.back().native_handle(), cpus[static_cast<size_t>(thread)]));
      }
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start thread ", thread + 1, " of ", num_threads, ": ", error.what()));
    }
  }
  return team;
}

ThreadTeam::~ThreadTeam() {
  body_ = nullptr;
  num_runs_.Advance();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Run(absl::FunctionRef<void(int)> body) {
  const CallerPin pin(cpus_.empty() ? -1 : cpus_.front());
  if (num_threads_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  num_runs_.Advance();
  body(0);
  WaitForAll();
}

void ThreadTeam::Work(int thread) {
  for (uint32_t run = 0;; ++run) {
    num_runs_.AwaitAfter(run);
    if (body_ == nullptr) return;
    (*body_)(thread);
    WaitForAll();
  }
}

void ThreadTeam::WaitForAll() {
  // Read before arriving. This barrier cannot complete without this thread, so the count is still this
  // barrier's.
  const uint32_t barrier = num_barriers_.value();
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    num_arrived_.store(0, std::memory_order_relaxed);
    num_barriers_.Advance();
  } else {
    num_barriers_.AwaitAfter(barrier);
  }
}

}  // namespace tandem

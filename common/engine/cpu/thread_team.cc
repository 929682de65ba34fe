#include "common/engine/cpu/thread_team.h"

#include <pthread.h>

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

// How often a thread looks before it sleeps: some ten microseconds, in which the next piece of work usually
// comes. It does not offer its processor to others (sched_yield) in between: to a thread that computes, that
// is a whole time slice of milliseconds, at every barrier, whereas one that has slept runs again as soon as
// it is woken.
constexpr int kNumPauses = 1000;

}  // namespace

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
  num_runs_.fetch_add(1, std::memory_order_release);
  num_runs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Run(absl::FunctionRef<void(int)> body) {
  const CallerPin pin(cpus_.empty() ? -1 : cpus_.front());
  if (num_threads_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  num_runs_.fetch_add(1, std::memory_order_release);
  num_runs_.notify_all();
  body(0);
  WaitForAll();
}

void ThreadTeam::Work(int thread) {
  for (uint32_t run = 0;; ++run) {
    WaitWhile(num_runs_, run);
    if (body_ == nullptr) return;
    (*body_)(thread);
    WaitForAll();
  }
}

void ThreadTeam::WaitForAll() {
  // Read before arriving: nobody can finish this barrier without us, so the count is still this barrier's.
  const uint32_t barrier = num_barriers_.load(std::memory_order_relaxed);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    num_arrived_.store(0, std::memory_order_relaxed);
    num_barriers_.fetch_add(1, std::memory_order_release);
    num_barriers_.notify_all();
  } else {
    WaitWhile(num_barriers_, barrier);
  }
}

void ThreadTeam::WaitWhile(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kNumPauses; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace tandem

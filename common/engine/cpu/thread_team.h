#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tandem {

// A fixed set of threads that run one function together, in step; the caller is one of them. Waiting
// threads spin for about ten microseconds, because the next piece of work usually comes at once, and then
// sleep. So a team never keeps a processor from other threads for longer, even if it is pinned to the one
// that they need.
//
//   team->Run([&](int thread) {
//     ...                 // part `thread` of num_threads()
//     team->Barrier();    // every part is done, and visible to all
//     ...
//   });
//
// Only one thread at a time may call Run, and the function must not throw. Every thread must pass the same
// barriers.
class ThreadTeam {
 public:
  // Thread i is pinned to `cpus`[i] (cpu_list.h), and the caller only during Run, so that threads it starts
  // do not inherit the pinning. With empty `cpus` no thread is pinned. InvalidArgument unless 1 <=
  // num_threads <= 1024, there is a CPU for each thread or for none, and the system lets them run there;
  // ResourceExhausted if the system creates no thread.
  static absl::StatusOr<std::unique_ptr<ThreadTeam>> Create(int num_threads,
                                                            const std::vector<int>& cpus = {});
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(0) here and body(1) ... body(num_threads() - 1) elsewhere; returns when all have.
  void Run(absl::FunctionRef<void(int)> body);

  // Only inside a body.
  void Barrier() {
    if (num_threads_ > 1) WaitForAll();
  }

 private:
  // A counter on which threads can wait. Writes before Advance are visible after AwaitAfter.
  class Count {
   public:
    uint32_t value() const { return value_.load(std::memory_order_relaxed); }
    void Advance();
    // Returns once the value differs from `old`.
    void AwaitAfter(uint32_t old);

   private:
    // Spins. Returns whether the value came to differ within some microseconds.
    bool LookAfter(uint32_t old) const;

    std::atomic<uint32_t> value_{0};
    std::atomic<uint32_t> num_sleepers_{0};
    std::atomic<uint32_t> num_vain_{0};  // Waits since spinning last helped.
  };

  ThreadTeam(int num_threads, const std::vector<int>& cpus);

  void Work(int thread);
  void WaitForAll();

  const int num_threads_;
  const std::vector<int> cpus_;
  // Each is on its own cache line: the first is written once per run, the others at every barrier.
  alignas(64) Count num_runs_;
  alignas(64) std::atomic<int> num_arrived_{0};
  alignas(64) Count num_barriers_;
  // What to run; null ends the workers. Written before num_runs_ grows.
  const absl::FunctionRef<void(int)>* body_ = nullptr;
  std::vector<std::thread> workers_;
};

// The part of `count` items for `thread` of `num_threads`: consecutive items, in parts as equal as
// possible.
struct Share {
  uint32_t begin = 0;
  uint32_t end = 0;
};
constexpr Share ShareOf(uint32_t count, int thread, int num_threads) {
  const uint64_t all = count;
  return {
      static_cast<uint32_t>(all * static_cast<uint32_t>(thread) / static_cast<uint32_t>(num_threads)),
      static_cast<uint32_t>(all * (static_cast<uint32_t>(thread) + 1) / static_cast<uint32_t>(num_threads))};
}

}  // namespace tandem

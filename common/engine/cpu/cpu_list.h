#pragma once

#include <pthread.h>
#include <sched.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// More CPUs than any kernel manages, and more than cpu_set_t holds.
inline constexpr int kMaxCpus = 8192;
struct CpuSet {
  alignas(cpu_set_t) unsigned char bytes[kMaxCpus / 8] = {};
  cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(bytes); }
};

// The CPUs in a list like "0-3,8", in its order. InvalidArgument says what is wrong: no number or range, a
// descending range, a CPU twice, a number above 8191.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view list);

// CPUs that the calling thread may run on, ascending.
absl::StatusOr<std::vector<int>> AllowedCpus();

// A CPU for each of `num_threads` threads, from `list`; empty for the empty list. InvalidArgument also if the
// number of CPUs differs from that of threads, if the machine does not have one of them, or if the calling
// thread may not run there.
absl::StatusOr<std::vector<int>> CpusForThreads(absl::string_view list, int num_threads);

// Lets `thread` run on `cpu` only. InvalidArgument if it may not run there.
absl::Status PinThread(pthread_t thread, int cpu);

// Pins the calling thread to one CPU while this exists; no pinning if `cpu` is negative. If the process has
// lost that CPU, the thread runs where it is allowed to. Allocates no memory.
class CallerPin {
 public:
  explicit CallerPin(int cpu);
  ~CallerPin();
  CallerPin(const CallerPin&) = delete;
  CallerPin& operator=(const CallerPin&) = delete;

 private:
  bool is_pinned_ = false;
  CpuSet before_;
};

}  // namespace tandem

#pragma once

#include <pthread.h>
#include <sched.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Of this many CPUs: more than any kernel manages, and more than cpu_set_t holds.
inline constexpr int kMaxCpus = 8192;
struct CpuSet {
  alignas(cpu_set_t) unsigned char bytes[kMaxCpus / 8] = {};
  cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(bytes); }
};

// The CPUs that a list like "0-3,8" names, in its order. InvalidArgument says what is wrong with it: not a
// number or range, a range that goes down, a CPU twice, a number above 8191.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view list);

// CPUs that the calling thread may run on, ascending.
absl::StatusOr<std::vector<int>> AllowedCpus();

// A CPU for each of `num_threads` threads, as `list` names them; none for the empty list. InvalidArgument
// also when there are more or fewer CPUs than threads, or when the machine does not have one of them or the
// calling thread may not run there.
absl::StatusOr<std::vector<int>> CpusForThreads(absl::string_view list, int num_threads);

// Lets `thread` run on `cpu` only. InvalidArgument when it may not.
absl::Status PinThread(pthread_t thread, int cpu);

// Lets the calling thread run on one CPU only for as long as this lives; anywhere when `cpu` is negative. A
// CPU that has been taken from the process leaves the thread where it is allowed to be. Takes no memory.
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

#include "common/engine/cpu/cpu_list.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

std::optional<int> ParseCpu(absl::string_view text) {
  int cpu = 0;
  // SimpleAtoi would accept signs and blanks.
  if (text.empty() || !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }) ||
      !absl::SimpleAtoi(text, &cpu) || cpu >= kMaxCpus) {
    return std::nullopt;
  }
  return cpu;
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view list) {
  std::vector<int> cpus;
  std::vector<bool> named(kMaxCpus);
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    const std::optional<int> first = ParseCpu(ends.front());
    const std::optional<int> last = ParseCpu(ends.back());
    if (!first.has_value() || !last.has_value() || *first > *last) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" in \"", list,
                                                     "\", expected a CPU from 0 to ", kMaxCpus - 1,
                                                     " or a range of them, as in 0-3,8"));
    }
    for (int cpu = *first; cpu <= *last; ++cpu) {
      if (named[static_cast<size_t>(cpu)]) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", list, "\" names CPU ", cpu, " twice, expected every CPU once"));
      }
      named[static_cast<size_t>(cpu)] = true;
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

absl::StatusOr<std::vector<int>> AllowedCpus() {
  CpuSet set;
  if (sched_getaffinity(0, sizeof(set), set.get()) != 0) {
    return absl::InternalError(absl::StrCat("cannot read the CPU affinity: ", std::strerror(errno)));
  }
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof(set), set.get())) cpus.push_back(cpu);
  }
  return cpus;
}

absl::StatusOr<std::vector<int>> CpusForThreads(absl::string_view list, int num_threads) {
  if (list.empty()) return std::vector<int>();
  TANDEM_ASSIGN_OR_RETURN(std::vector<int> cpus, ParseCpuList(list));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> allowed, AllowedCpus());
  const long num_existing = sysconf(_SC_NPROCESSORS_CONF);
  for (int cpu : cpus) {
    if (std::binary_search(allowed.begin(), allowed.end(), cpu)) continue;
    if (cpu >= num_existing) {
      return absl::InvalidArgumentError(
          absl::StrCat("CPU ", cpu, " does not exist, this machine has ", num_existing));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "CPU ", cpu, " is not in this process's affinity mask, which allows ", absl::StrJoin(allowed, ",")));
  }
  if (cpus.size() != static_cast<size_t>(num_threads)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", list, "\" names ", cpus.size(), " CPUs for ",
                                                   num_threads, " threads, expected one for each"));
  }
  return cpus;
}

absl::Status PinThread(pthread_t thread, int cpu) {
  if (cpu < 0 || cpu >= kMaxCpus) {
    return absl::InvalidArgumentError(absl::StrCat("CPU ", cpu, ", expected 0 to ", kMaxCpus - 1));
  }
  CpuSet set;
  CPU_SET_S(cpu, sizeof(set), set.get());
  const int error = pthread_setaffinity_np(thread, sizeof(set), set.get());
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot run a thread on CPU ", cpu, ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

CallerPin::CallerPin(int cpu) {
  if (cpu < 0 || sched_getaffinity(0, sizeof(before_), before_.get()) != 0) return;
  CpuSet set;
  CPU_SET_S(cpu, sizeof(set), set.get());
  is_pinned_ = sched_setaffinity(0, sizeof(set), set.get()) == 0;
}

CallerPin::~CallerPin() {
  if (is_pinned_) (void)sched_setaffinity(0, sizeof(before_), before_.get());
}

}  // namespace tandem

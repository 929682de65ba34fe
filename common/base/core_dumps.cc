#include "common/base/core_dumps.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/base/log.h"

namespace tandem {
namespace {

// A set of kinds of memory, none of which is dumped.
constexpr char kFilter[] = "/proc/self/coredump_filter";

// 0, or the system's error.
int WriteFilter() {
  const int file = ::open(kFilter, O_WRONLY | O_CLOEXEC);
  if (file < 0) return errno;
  const int error = ::write(file, "0", 1) == 1 ? 0 : errno;
  ::close(file);
  return error;
}

}  // namespace

void KeepMemoryOutOfCoreDumps() {
  const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
  int error = ::setrlimit(RLIMIT_CORE, &none) == 0 ? 0 : errno;
  if (error == 0) error = WriteFilter();
  // A kernel without the file makes no dumps.
  if (error == 0 || error == ENOENT) return;
  LogWarning("a crash may leave this process's memory in a core dump", {{"error", std::strerror(error)}});
}

}  // namespace tandem

// tandem-grammar: compiles constraints for the verifier that started it. What takes too long or too much
// memory ends with this process, and no verifier (compile_process.h).

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "common/grammar/compile_process.h"

namespace tandem {
namespace {

// Others on this machine go first: requests that run need their tokens.
constexpr int kNiceness = 10;

int Main(int argc, char** argv) {
  uint64_t max_bytes = 0;
  if (argc != 2 || !absl::SimpleAtoi(argv[1], &max_bytes)) {
    std::fputs("tandem-grammar: started by tandem-verifier to compile constraints; not for direct use\n",
               stderr);
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpriority(PRIO_PROCESS, 0, kNiceness);
  const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
#ifndef TANDEM_SANITIZED  // Whose shadow memory would count.
  if (max_bytes > 0) {
    const rlimit memory = {.rlim_cur = max_bytes, .rlim_max = max_bytes};
    setrlimit(RLIMIT_AS, &memory);
  }
#endif
  const absl::Status served = ServeCompileJobs(STDIN_FILENO, STDOUT_FILENO);
  // Whoever wanted to know may be gone.
  if (served.ok() || absl::IsUnavailable(served)) return 0;
  std::fprintf(stderr, "tandem-grammar: %s\n", served.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}

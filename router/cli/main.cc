// `tandem`: the command line client of a router. `tandem serve` becomes the program tandem-serve, which
// starts one.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "common/config/flags.h"
#include "router/cli/commands.h"

namespace {

// Returns only if there is no such program, with the exit code.
int BecomeServe(char** argv) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (self.parent_path() / "tandem-serve").string();
  execv(beside.c_str(), argv + 1);
  std::cerr << "tandem: cannot start " << beside << ": " << std::strerror(errno) << "\n";
  return tandem::kExitFailure;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "serve") == 0) return BecomeServe(argv);
  // Before any thread exists, so that all of them leave Ctrl-C to the one below.
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
  // Never destroyed: the thread waits for as long as the process lives.
  auto* interrupts = new tandem::cli::Interrupts;
  std::thread([interrupt, interrupts] {
    int signal = 0;
    while (sigwait(&interrupt, &signal) == 0) {
      constexpr int kInterruptedExitCode = 130;  // As shells report it.
      if (!interrupts->Trigger()) _exit(kInterruptedExitCode);
    }
  }).detach();

  const char* no_color = std::getenv("NO_COLOR");
  tandem::cli::Terminal terminal{.in = std::cin,
                                 .out = std::cout,
                                 .err = std::cerr,
                                 .in_is_terminal = isatty(STDIN_FILENO) == 1,
                                 .out_is_terminal = isatty(STDOUT_FILENO) == 1,
                                 .no_color = no_color != nullptr && *no_color != '\0'};
  return tandem::cli::Run(std::vector<std::string>(argv + 1, argv + argc), terminal, tandem::SystemClock(),
                          *interrupts);
}

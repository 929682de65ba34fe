// `tandem`: the command line client of a router.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "router/cli/commands.h"

int main(int argc, char** argv) {
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

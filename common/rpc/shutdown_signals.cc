#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "common/rpc/server.h"

namespace tandem {
namespace {

// The pipe's writing end, for the handler; -1 while there is no ShutdownSignals.
std::atomic<int> write_end{-1};
int read_end = -1;

void OnSignal(int number) {
  const int saved_errno = errno;
  const char byte = static_cast<char>(number);
  // A full pipe has told the reader already.
  [[maybe_unused]] const ssize_t written = write(write_end.load(), &byte, 1);
  errno = saved_errno;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  assert(write_end.load() < 0 && "one ShutdownSignals per process");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  read_end = ends[0];
  write_end.store(ends[1]);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  // The handler takes one signal of each kind; the next one has its default effect.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

ShutdownSignals::~ShutdownSignals() {
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  close(write_end.exchange(-1));
  close(read_end);
}

int ShutdownSignals::Wait() {
  char byte = 0;
  while (read(read_end, &byte, 1) < 0) {
    if (errno != EINTR) std::abort();
  }
  return byte;
}

bool ShutdownSignals::Arrived() const {
  pollfd end = {.fd = read_end, .events = POLLIN, .revents = 0};
  return poll(&end, 1, 0) > 0;
}

}  // namespace tandem

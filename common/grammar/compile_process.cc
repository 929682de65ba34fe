#include "common/grammar/compile_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/grammar/compile_job.h"

namespace tandem {
namespace {

absl::Status Failure(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CompileProcess>> CompileProcess::Start(const Options& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Failure("a socket for the compiler of constraints", errno);
  }
  const auto [ours, its] = ends;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const absl::Cleanup destroy = [&] { posix_spawn_file_actions_destroy(&actions); };
  posix_spawn_file_actions_adddup2(&actions, its, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, its, STDOUT_FILENO);
  // Neither sockets nor anything else of ours.
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  std::string program = options.program;
  std::string max_bytes = absl::StrCat(options.max_bytes);
  char* arguments[] = {program.data(), max_bytes.data(), nullptr};
  char* environment[] = {nullptr};
  pid_t process = -1;
  const int error = posix_spawn(&process, program.c_str(), &actions, nullptr, arguments, environment);
  close(its);
  if (error != 0) {
    close(ours);
    return Failure(absl::StrCat("the compiler of constraints, ", program), error);
  }
  std::unique_ptr<CompileProcess> started(new CompileProcess(process, ours));
  TANDEM_RETURN_IF_ERROR(WriteFrame(started->socket_, options.vocabulary));
  return started;
}

CompileProcess::~CompileProcess() {
  close(socket_);
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::Status CompileProcess::Send(const ConstraintSource& source) {
  return WriteFrame(socket_, EncodeJob(source));
}

absl::StatusOr<std::string> CompileProcess::Receive(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  for (;;) {
    // The length first, so that an answer takes no more memory than it needs.
    size_t wanted = sizeof(uint32_t);
    if (received_.size() >= wanted) {
      TANDEM_ASSIGN_OR_RETURN(const size_t bytes,
                              ParseFrameLength(absl::string_view(received_).substr(0, wanted)));
      wanted += bytes;
      if (received_.size() == wanted) {
        std::string frame = std::exchange(received_, {});
        frame.erase(0, sizeof(uint32_t));
        return DecodeAnswer(std::move(frame));
      }
      received_.reserve(wanted);
    }
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    const int64_t left = std::clamp<int64_t>(absl::ToInt64Milliseconds(end - absl::Now()), 0, 60'000);
    const int ready = poll(&waiting, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return Failure("waiting for the compiler of constraints", errno);
    if (ready <= 0) {
      if (absl::Now() >= end) return absl::DeadlineExceededError("the constraint is still being compiled");
      continue;
    }
    char piece[1 << 16];
    const ssize_t read = ::read(socket_, piece, std::min(sizeof(piece), wanted - received_.size()));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return Failure("the compiler of constraints", errno);
    if (read == 0) return absl::UnavailableError("the compiler of constraints has ended");
    received_.append(piece, static_cast<size_t>(read));
  }
}

absl::Duration CompileProcess::CpuTime() const {
  clockid_t clock = {};
  timespec time = {};
  if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    return absl::ZeroDuration();  // It has ended, which Receive tells.
  }
  return absl::DurationFromTimespec(time);
}

std::string DefaultCompileProgram() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return "tandem-grammar";
  const absl::string_view self(path, static_cast<size_t>(length));
  return absl::StrCat(self.substr(0, self.rfind('/') + 1), "tandem-grammar");
}

absl::Status ServeCompileJobs(int input, int output) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadFrame(input));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const GrammarVocabulary> vocabulary, DecodeVocabulary(bytes));
  TANDEM_RETURN_IF_ERROR(WriteFrame(output, EncodeAnswer(std::string())));
  for (;;) {
    const absl::StatusOr<std::string> job = ReadFrame(input);
    if (absl::IsOutOfRange(job.status())) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(job.status());
    TANDEM_ASSIGN_OR_RETURN(const ConstraintSource source, DecodeJob(*job));
    TANDEM_RETURN_IF_ERROR(WriteFrame(output, EncodeAnswer(CompileConstraint(source, *vocabulary))));
  }
}

}  // namespace tandem

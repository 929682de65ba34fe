#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/grammar/compiled.h"

namespace tandem {

// A process of the program tandem-grammar, which compiles one constraint at a time. If a constraint makes the
// compiler run for ever, take all memory or overflow the stack, only this process suffers. It can be killed,
// unlike a thread.
//
//   Start -> Receive (nothing yet)* -> Receive (ready) -> [ Send -> Receive (nothing yet)* -> Receive ]*
//
// and killed by the destructor.
//
// Not thread-safe. Use it on the thread that started it: the process ends with that thread.
class CompileProcess {
 public:
  struct Options {
    std::string program;     // Path of tandem-grammar.
    size_t max_bytes = 0;    // Of memory; 0: as much as there is.
    std::string vocabulary;  // EncodeVocabulary.
  };
  // Unavailable says what is missing.
  static absl::StatusOr<std::unique_ptr<CompileProcess>> Start(const Options& options);
  ~CompileProcess();
  CompileProcess(const CompileProcess&) = delete;
  CompileProcess& operator=(const CompileProcess&) = delete;

  absl::Status Send(const ConstraintSource& source);
  // The result of CompileConstraint for the sent job or, before any job, that the process is ready.
  // DeadlineExceeded: nothing came within `timeout`; call again. Unavailable: the process has ended.
  absl::StatusOr<std::string> Receive(absl::Duration timeout);
  // The process's CPU time so far, which measures a job's cost even on a busy machine.
  absl::Duration CpuTime() const;

 private:
  CompileProcess(pid_t process, int socket) : process_(process), socket_(socket) {}

  const pid_t process_;
  const int socket_;
  std::string received_;
};

// The default path of tandem-grammar: next to the running program.
std::string DefaultCompileProgram();

// The main loop of that program: compiles jobs from `input` until its end.
absl::Status ServeCompileJobs(int input, int output);

}  // namespace tandem

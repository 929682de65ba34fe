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

// A process of the program tandem-grammar, which compiles one constraint after the other. What a constraint
// can do to a compiler (run for ever, take all memory, overflow the stack) it does to that process, which is
// then killed: a thread could not be.
//
//   Start -> Receive (nothing yet)* -> Receive (ready) -> [ Send -> Receive (nothing yet)* -> Receive ]*
//
// and killed by the destructor.
//
// Not thread-safe, and to be used on the thread that started it: with that the process ends as well.
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
  // What CompileConstraint made of the job that was sent, or before any job that the process is ready.
  // DeadlineExceeded: nothing within `timeout`, and this may be asked again; Unavailable: the process has
  // ended.
  absl::StatusOr<std::string> Receive(absl::Duration timeout);
  // Processor time that it has taken so far: what a job costs, however busy the machine is.
  absl::Duration CpuTime() const;

 private:
  CompileProcess(pid_t process, int socket) : process_(process), socket_(socket) {}

  const pid_t process_;
  const int socket_;
  std::string received_;
};

// Where tandem-grammar is as a rule: beside the program that runs.
std::string DefaultCompileProgram();

// What that program does: compiles the jobs that come from `input` until there are no more.
absl::Status ServeCompileJobs(int input, int output);

}  // namespace tandem

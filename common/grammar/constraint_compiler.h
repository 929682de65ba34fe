#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/grammar/compile_process.h"
#include "common/grammar/compiled.h"

namespace tandem {

// Receives a ConstraintCompiler's events, for metrics. Called on any thread.
class ConstraintCompilerListener {
 public:
  virtual ~ConstraintCompilerListener() = default;
  // A request's constraint was in the cache (`known`), or not.
  virtual void OnLookup(bool known) = 0;
  virtual void OnCompiled(double seconds, bool ok) = 0;
  virtual void OnCacheChange(int64_t bytes) = 0;
};

// Compiles constraints for one vocabulary, in separate processes that are killed if they take too long
// (compile_process.h). Results, including failures, are cached by source, up to a number of bytes; then the
// tenant that has most of them loses its least recently used. Thread-safe.
//
// Tenants take turns, and one that has more waiting than others gives way when too many wait. There are two
// lanes, of a thread and a process each, and only one of them may be held by a slow constraint, which has
// taken kQuickTime:
//
//   waits -> is compiled -> done
//               | kQuickTime, and no other is slow: goes on as the slow one -> done
//               | kQuickTime, and another one is slow: waits for that one's end, and begins anew
//
// So whatever one tenant sends, the others' constraints wait for no more than kQuickTime and a start of the
// process.
class ConstraintCompiler {
 public:
  struct Options {
    std::string program = DefaultCompileProgram();
    // CPU time to compile one constraint; on a busy machine it may take kMostSlowdown times as long.
    absl::Duration max_time = absl::Seconds(10);
    size_t max_bytes = size_t{1} << 30;  // Of memory of each process that compiles.
    size_t cache_bytes = size_t{256} << 20;
    size_t max_waiting = 64;  // Constraints that wait to be compiled.
  };
  static constexpr int kMostSlowdown = 10;
  // CPU time after which a constraint is slow.
  static constexpr absl::Duration kQuickTime = absl::Milliseconds(500);
  using Compiled = std::shared_ptr<const CompiledConstraint>;
  using Done = absl::AnyInvocable<void(absl::StatusOr<Compiled>) &&>;

  // `clock` (of deadlines) and `listener` (may be null) outlive the compiler.
  ConstraintCompiler(Options options, std::shared_ptr<const GrammarVocabulary> vocabulary, const Clock* clock,
                     ConstraintCompilerListener* listener);
  // Stop.
  ~ConstraintCompiler();

  // Calls `done` once, possibly before this returns. Errors: InvalidArgument for a constraint that cannot be
  // compiled within the bounds; DeadlineExceeded soon after `deadline`; ResourceExhausted if too many wait;
  // Unavailable after Stop, or if there is no process to compile.
  void Compile(const ConstraintSource& source, absl::string_view tenant, absl::Time deadline, Done done);
  // Stops compiling; waiting constraints fail.
  void Stop();

 private:
  struct Waiter {
    absl::Time deadline;
    Done done;
  };
  struct Job {
    std::string key;
    ConstraintSource source;
    std::string tenant;
    std::vector<Waiter> waiters;
    bool slow = false;
  };
  // A thread's process. Each thread has one, since the process ends with the thread that started it.
  using Process = std::unique_ptr<CompileProcess>;
  struct Entry {
    std::string key;
    std::string tenant;  // That asked first.
    absl::StatusOr<Compiled> compiled;
    size_t bytes = 0;
  };

  void RunLane();
  std::shared_ptr<Job> NextJob();
  // Whether a lane may begin with it.
  bool MayBegin(const Job& job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !job.slow || !slow_runs_; }
  bool MayStop();
  // Aborted: it waits again.
  absl::StatusOr<Compiled> CompileJob(const std::shared_ptr<Job>& job, Process* process);
  absl::StatusOr<std::string> AskProcess(const std::shared_ptr<Job>& job, Process* process);
  // `job`: the one that is compiled, or null.
  absl::StatusOr<std::string> AwaitAnswer(const Process& process, Job* job, absl::Duration max_cpu_time,
                                          absl::Duration max_time);
  absl::Status StartProcess(Process* process);
  // Whether it may go on as the slow one.
  bool BecomeSlow(Job* job);
  void Finish(const std::shared_ptr<Job>& job, const absl::StatusOr<Compiled>& compiled);
  void FailAll();
  void Expire();
  // Takes out of a full queue the last job of the tenant with most of them, unless `tenant` has as many
  // itself.
  std::vector<Waiter> GiveWay(absl::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status QueueIsFull() const;
  void Keep(const Job& job, const absl::StatusOr<Compiled>& compiled, size_t bytes);
  std::list<Entry>::iterator Victim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsWanted() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !queue_.empty() || num_jobs_ > 0;
  }

  const Options options_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const Clock* const clock_;
  ConstraintCompilerListener* const listener_;
  const std::string encoded_vocabulary_;

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Job>> queue_ ABSL_GUARDED_BY(mutex_);
  bool slow_runs_ ABSL_GUARDED_BY(mutex_) = false;  // One that is slow is being compiled.
  // That wait or are being compiled.
  absl::flat_hash_map<std::string, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  // Number of the job that was a tenant's last.
  absl::flat_hash_map<std::string, uint64_t> turns_ ABSL_GUARDED_BY(mutex_);
  uint64_t num_jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Entry> kept_ ABSL_GUARDED_BY(mutex_);  // Used last first.
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> kept_by_key_ ABSL_GUARDED_BY(mutex_);
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, size_t> tenant_bytes_ ABSL_GUARDED_BY(mutex_);  // Of these.
  std::vector<std::thread> lanes_;
};

}  // namespace tandem

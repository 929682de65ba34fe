#include "common/grammar/constraint_compiler.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/grammar/compile_job.h"
#include "common/grammar/constraint.h"

namespace tandem {
namespace {

// How often it looks for deadlines, and whether it is to stop, while a constraint is compiled.
constexpr absl::Duration kGlance = absl::Milliseconds(20);
// How long the process may take until it has sorted the vocabulary: seconds for the largest, on a busy
// machine.
constexpr absl::Duration kStartTime = absl::Seconds(60);
constexpr int kNumLanes = 2;
// Tenants whose turns are remembered.
constexpr size_t kMostTurns = 1024;
// That an entry takes besides what it holds.
constexpr size_t kEntryBytes = 512;

}  // namespace

ConstraintCompiler::ConstraintCompiler(Options options, std::shared_ptr<const GrammarVocabulary> vocabulary,
                                       const Clock* clock, ConstraintCompilerListener* listener)
    : options_(std::move(options)),
      vocabulary_(std::move(vocabulary)),
      clock_(clock),
      listener_(listener),
      encoded_vocabulary_(EncodeVocabulary(*vocabulary_)) {
  for (int i = 0; i < kNumLanes; ++i) lanes_.emplace_back([this] { RunLane(); });
}

ConstraintCompiler::~ConstraintCompiler() {
  Stop();
  for (std::thread& lane : lanes_) lane.join();
}

void ConstraintCompiler::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void ConstraintCompiler::Compile(const ConstraintSource& source, absl::string_view tenant,
                                 absl::Time deadline, Done done) {
  std::string key = KeyOf(source);
  absl::StatusOr<Compiled> known = absl::UnavailableError("the server is shutting down");
  std::vector<Waiter> given_way;
  bool is_queued = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto kept = kept_by_key_.find(key);
    const auto job = jobs_.find(key);
    const bool is_known = kept != kept_by_key_.end();
    if (listener_ != nullptr) listener_->OnLookup(is_known);
    if (is_known && !stopped_) {
      kept_.splice(kept_.begin(), kept_, kept->second);
      known = kept->second->compiled;
    } else if (!stopped_ && job != jobs_.end()) {
      job->second->waiters.push_back({.deadline = deadline, .done = std::move(done)});
      return;
    } else if (!stopped_) {
      if (queue_.size() >= options_.max_waiting) given_way = GiveWay(tenant);
      is_queued = queue_.size() < options_.max_waiting;
      if (is_queued) {
        auto added = std::make_shared<Job>(
            Job{.key = std::move(key), .source = source, .tenant = std::string(tenant), .waiters = {}});
        added->waiters.push_back({.deadline = deadline, .done = std::move(done)});
        jobs_.emplace(added->key, added);
        queue_.push_back(std::move(added));
      } else {
        known = QueueIsFull();
      }
    }
  }
  for (Waiter& waiter : given_way) std::move(waiter.done)(QueueIsFull());
  if (!is_queued) std::move(done)(std::move(known));
}

absl::Status ConstraintCompiler::QueueIsFull() const {
  return absl::ResourceExhaustedError(
      absl::StrCat(options_.max_waiting, " constraints wait to be compiled, which is the limit"));
}

std::vector<ConstraintCompiler::Waiter> ConstraintCompiler::GiveWay(absl::string_view tenant) {
  absl::flat_hash_map<absl::string_view, size_t> waiting;
  for (const std::shared_ptr<Job>& job : queue_) ++waiting[job->tenant];
  const auto most = std::max_element(waiting.begin(), waiting.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto own = waiting.find(tenant);
  if (most == waiting.end() || most->second <= 1 + (own == waiting.end() ? 0 : own->second)) return {};
  const auto last = std::find_if(queue_.rbegin(), queue_.rend(),
                                 [&](const std::shared_ptr<Job>& job) { return job->tenant == most->first; });
  const std::shared_ptr<Job> job = *last;
  queue_.erase(std::next(last).base());
  jobs_.erase(job->key);
  return std::exchange(job->waiters, {});
}

bool ConstraintCompiler::HasWork() const {
  return stopped_ || std::any_of(queue_.begin(), queue_.end(),
                                 [this](const std::shared_ptr<Job>& job)
                                     ABSL_NO_THREAD_SAFETY_ANALYSIS { return MayBegin(*job); });
}

// The first in the queue, of those that may begin, of the tenant whose last turn is longest ago.
std::shared_ptr<ConstraintCompiler::Job> ConstraintCompiler::NextJob() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ConstraintCompiler::HasWork));
  if (stopped_) return nullptr;
  const auto turn = [this](const std::shared_ptr<Job>& job) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = turns_.find(job->tenant);
    const uint64_t last = found == turns_.end() ? 0 : found->second;
    return std::pair(!MayBegin(*job), last);
  };
  const auto next = std::min_element(queue_.begin(), queue_.end(),
                                     [&](const auto& a, const auto& b) { return turn(a) < turn(b); });
  std::shared_ptr<Job> job = *next;
  queue_.erase(next);
  if (turns_.size() >= kMostTurns) turns_.clear();
  turns_[job->tenant] = ++num_jobs_;
  slow_runs_ |= job->slow;
  return job;
}

bool ConstraintCompiler::BecomeSlow(Job* job) {
  absl::MutexLock lock(&mutex_);
  if (job->slow) return true;
  job->slow = true;
  return !std::exchange(slow_runs_, true);
}

void ConstraintCompiler::RunLane() {
  Process process;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &ConstraintCompiler::IsWanted));
  }
  for (;;) {
    // Before there is something to compile, so that this waits for no start. What is wrong is told then.
    if (process == nullptr && !MayStop()) StartProcess(&process).IgnoreError();
    const std::shared_ptr<Job> job = NextJob();
    if (job == nullptr) break;
    const absl::Time start = clock_->Now();
    const absl::StatusOr<Compiled> compiled = CompileJob(job, &process);
    if (absl::IsAborted(compiled.status())) continue;
    if (listener_ != nullptr) {
      listener_->OnCompiled(absl::ToDoubleSeconds(clock_->Now() - start), compiled.ok());
    }
    Finish(job, compiled);
  }
  FailAll();
}

void ConstraintCompiler::Finish(const std::shared_ptr<Job>& job, const absl::StatusOr<Compiled>& compiled) {
  std::vector<Waiter> waiters;
  {
    absl::MutexLock lock(&mutex_);
    if (job->slow) slow_runs_ = false;
    jobs_.erase(job->key);
    waiters = std::exchange(job->waiters, {});
  }
  for (Waiter& waiter : waiters) std::move(waiter.done)(compiled);
}

// Of those that wait when the compiler stops.
void ConstraintCompiler::FailAll() {
  std::vector<Waiter> waiters;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::shared_ptr<Job>& job : std::exchange(queue_, {})) {
      jobs_.erase(job->key);
      std::move(job->waiters.begin(), job->waiters.end(), std::back_inserter(waiters));
      job->waiters.clear();
    }
  }
  for (Waiter& waiter : waiters) {
    std::move(waiter.done)(absl::UnavailableError("the server is shutting down"));
  }
}

absl::StatusOr<ConstraintCompiler::Compiled> ConstraintCompiler::CompileJob(const std::shared_ptr<Job>& job,
                                                                            Process* process) {
  absl::StatusOr<std::string> answer = AskProcess(job, process);
  if (absl::IsAborted(answer.status())) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(job);
    return answer.status();
  }
  absl::StatusOr<Compiled> compiled =
      answer.ok() ? LoadConstraint(*answer, vocabulary_) : absl::StatusOr<Compiled>(answer.status());
  // A failure that the constraint did not cause may not recur.
  if (compiled.ok()) {
    Keep(*job, compiled, (*compiled)->memory_bytes());
  } else if (absl::IsInvalidArgument(compiled.status())) {
    Keep(*job, compiled, compiled.status().message().size());
  }
  return compiled;
}

// What the process answers next, if that comes in time; DeadlineExceeded if not; Aborted if the job must let
// others go first.
absl::StatusOr<std::string> ConstraintCompiler::AwaitAnswer(const Process& process, Job* job,
                                                            absl::Duration max_cpu_time,
                                                            absl::Duration max_time) {
  const absl::Duration cpu_begin = process->CpuTime();
  const absl::Time end = absl::Now() + max_time;
  for (;;) {
    if (MayStop()) return absl::CancelledError("the server is shutting down");
    const absl::Duration cpu_time = process->CpuTime() - cpu_begin;
    const absl::Duration left = std::min(end - absl::Now(), max_cpu_time - cpu_time);
    absl::StatusOr<std::string> answer = process->Receive(std::clamp(left, absl::ZeroDuration(), kGlance));
    Expire();
    if (!absl::IsDeadlineExceeded(answer.status()) || left <= absl::ZeroDuration()) return answer;
    if (job != nullptr && cpu_time >= kQuickTime && !BecomeSlow(job)) {
      return absl::AbortedError("another slow constraint is being compiled");
    }
  }
}

absl::Status ConstraintCompiler::StartProcess(Process* process) {
  TANDEM_ASSIGN_OR_RETURN(*process, CompileProcess::Start({.program = options_.program,
                                                           .max_bytes = options_.max_bytes,
                                                           .vocabulary = encoded_vocabulary_}));
  const absl::Status ready = AwaitAnswer(*process, nullptr, kStartTime, kStartTime).status();
  if (ready.ok()) return absl::OkStatus();
  process->reset();
  return absl::UnavailableError(
      absl::StrCat("the compiler of constraints does not start: ", ready.message()));
}

absl::StatusOr<std::string> ConstraintCompiler::AskProcess(const std::shared_ptr<Job>& job,
                                                           Process* process) {
  if (*process == nullptr) {
    if (absl::Status started = StartProcess(process); !started.ok()) {
      if (!MayStop()) LogWarning("cannot compile constraints", {{"error", started.ToString()}});
      return started;
    }
  }
  const absl::Status sent = (*process)->Send(job->source);
  absl::StatusOr<std::string> answer =
      sent.ok() ? AwaitAnswer(*process, job.get(), options_.max_time, kMostSlowdown * options_.max_time)
                : sent;
  if (absl::IsCancelled(answer.status())) return absl::UnavailableError(answer.status().message());
  if (absl::IsAborted(answer.status())) process->reset();
  if (absl::IsDeadlineExceeded(answer.status())) {
    process->reset();
    return absl::InvalidArgumentError(
        absl::StrCat("its compilation takes more than ", absl::FormatDuration(options_.max_time)));
  }
  if (absl::IsUnavailable(answer.status())) {
    process->reset();
    return absl::InvalidArgumentError("its compilation takes too much memory, or nests too deep");
  }
  return answer;
}

bool ConstraintCompiler::MayStop() {
  absl::MutexLock lock(&mutex_);
  return stopped_;
}

void ConstraintCompiler::Expire() {
  const absl::Time now = clock_->Now();
  std::vector<Waiter> expired;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [key, job] : jobs_) {
      const auto late = std::stable_partition(job->waiters.begin(), job->waiters.end(),
                                              [now](const Waiter& waiter) { return waiter.deadline > now; });
      std::move(late, job->waiters.end(), std::back_inserter(expired));
      job->waiters.erase(late, job->waiters.end());
    }
    // Nobody waits for them any more.
    for (auto job = queue_.begin(); job != queue_.end();) {
      if (!(*job)->waiters.empty()) {
        ++job;
        continue;
      }
      jobs_.erase((*job)->key);
      job = queue_.erase(job);
    }
  }
  for (Waiter& waiter : expired) {
    std::move(waiter.done)(
        absl::DeadlineExceededError("the request's deadline passed while its constraint was compiled"));
  }
}

// The least recently used of the tenant with most bytes.
std::list<ConstraintCompiler::Entry>::iterator ConstraintCompiler::Victim() {
  const auto most = std::max_element(tenant_bytes_.begin(), tenant_bytes_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  auto victim = std::prev(kept_.end());
  while (victim->tenant != most->first) --victim;
  return victim;
}

void ConstraintCompiler::Keep(const Job& job, const absl::StatusOr<Compiled>& compiled, size_t bytes) {
  int64_t change = 0;
  std::list<Entry> dropped;  // Ends without the lock.
  {
    absl::MutexLock lock(&mutex_);
    const auto before = static_cast<int64_t>(kept_bytes_);
    // Each key stands here twice.
    kept_.push_front({.key = job.key,
                      .tenant = job.tenant,
                      .compiled = compiled,
                      .bytes = bytes + 2 * job.key.size() + 2 * job.tenant.size() + kEntryBytes});
    kept_by_key_[job.key] = kept_.begin();
    kept_bytes_ += kept_.front().bytes;
    tenant_bytes_[job.tenant] += kept_.front().bytes;
    while (kept_bytes_ > options_.cache_bytes) {
      const auto victim = Victim();
      kept_bytes_ -= victim->bytes;
      const auto owner = tenant_bytes_.find(victim->tenant);
      owner->second -= victim->bytes;
      if (owner->second == 0) tenant_bytes_.erase(owner);
      kept_by_key_.erase(victim->key);
      dropped.splice(dropped.end(), kept_, victim);
    }
    change = static_cast<int64_t>(kept_bytes_) - before;
  }
  if (listener_ != nullptr) listener_->OnCacheChange(change);
}

}  // namespace tandem

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "drafter/drafting/draft_session.h"
#include "drafter/drafting/score_job.h"

namespace tandem {

using ScoreId = uint64_t;

// The answer to one score.
struct ScoreAnswer {
  ScoreId id = 0;
  absl::StatusOr<ScoreResult> result;
  absl::Duration took;  // Since it was submitted.
};

// The scores that wait and the running one. Scores run one at a time, in order of arrival, so that scoring
// holds the keys and values of at most one sequence.
//
//   Submit --> waiting --> under way --Step, Step, ...--> answered
//                 '-----------'---- Cancel, the deadline --'
//
// The owner decides when to run a step and how large it is. Logic without I/O. Used only by the thread that
// owns the engines.
class ScoreQueue {
 public:
  struct Options {
    // Including the running one; more are refused with ResourceExhausted.
    uint32_t max_scores = 64;
    // Of one request.
    uint32_t max_tokens = 32768;
  };
  // The clock outlives this.
  ScoreQueue(const Options& options, const Clock* clock) : options_(options), clock_(clock) {}

  // `id` must be new. The model outlives the score.
  void Submit(ScoreId id, const DraftModel* model, ScoreRequest request, absl::Time deadline);
  // Answers at once.
  void Refuse(ScoreId id, absl::Status status) { Answer(id, std::move(status), clock_->Now()); }
  // Does nothing if the score is answered already.
  void Cancel(ScoreId id, const absl::Status& reason);
  void CancelAll(const absl::Status& reason);
  // Ends scores whose deadline has passed.
  void Expire();

  // Whether there is something to compute, and memory for it.
  bool CanStep() const { return !queue_.empty() && queue_.front().CanStep(); }
  // One pass of at most `max_rows` rows, or that many tokens of a replay.
  void Step(uint32_t max_rows);
  // Frees memory held in `pool`, for sessions that need it more.
  void GiveWay(const BlockPool* pool);
  void ListBlocks(const BlockPool* pool, std::vector<BlockId>* held) const;
  // Whether a score waits for the model or runs on it.
  bool Uses(const DraftModel* model) const;

  std::vector<ScoreAnswer> TakeAnswers() { return std::exchange(answers_, {}); }
  uint32_t size() const { return static_cast<uint32_t>(queue_.size()); }
  // The number of answers, by code.
  const std::map<absl::StatusCode, uint64_t>& answered() const { return answered_; }

 private:
  struct Entry {
    ScoreId id = 0;
    const DraftModel* model = nullptr;
    ScoreRequest request;           // Until the job is made.
    std::unique_ptr<ScoreJob> job;  // Made when it is its turn.
    absl::Time arrival;
    absl::Time deadline;

    bool CanStep() const { return job == nullptr || job->CanReserve(); }
  };

  void Answer(ScoreId id, absl::StatusOr<ScoreResult> result, absl::Time arrival);
  absl::Status StepJob(ScoreJob& job, uint32_t max_rows);

  const Options options_;
  const Clock* clock_;
  std::deque<Entry> queue_;
  StepBatch batch_;
  std::vector<ScoreAnswer> answers_;
  std::map<absl::StatusCode, uint64_t> answered_;
};

}  // namespace tandem

#include "drafter/drafting/score_queue.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

void ScoreQueue::Submit(ScoreId id, const DraftModel* model, ScoreRequest request, absl::Time deadline) {
  const absl::Time now = clock_->Now();
  if (absl::Status status = CheckScoreRequest(request, *model, options_.max_tokens); !status.ok()) {
    return Answer(id, std::move(status), now);
  }
  if (queue_.size() >= options_.max_scores) {
    return Answer(id,
                  absl::ResourceExhaustedError(
                      absl::StrCat("all ", options_.max_scores, " places for scores are in use")),
                  now);
  }
  queue_.push_back({.id = id,
                    .model = model,
                    .request = std::move(request),
                    .job = nullptr,
                    .arrival = now,
                    .deadline = deadline});
}

void ScoreQueue::Answer(ScoreId id, absl::StatusOr<ScoreResult> result, absl::Time arrival) {
  ++answered_[result.status().code()];
  answers_.push_back({.id = id,
                      .result = std::move(result),
                      .took = std::max(clock_->Now() - arrival, absl::ZeroDuration())});
}

void ScoreQueue::Cancel(ScoreId id, const absl::Status& reason) {
  const auto found = absl::c_find_if(queue_, [id](const Entry& entry) { return entry.id == id; });
  if (found == queue_.end()) return;
  const absl::Time arrival = found->arrival;
  queue_.erase(found);
  Answer(id, reason, arrival);
}

void ScoreQueue::CancelAll(const absl::Status& reason) {
  while (!queue_.empty()) Cancel(queue_.front().id, reason);
}

void ScoreQueue::Expire() {
  if (queue_.empty()) return;
  const absl::Time now = clock_->Now();
  std::vector<ScoreId> late;
  for (const Entry& entry : queue_) {
    if (entry.deadline <= now) late.push_back(entry.id);
  }
  for (ScoreId id : late) Cancel(id, absl::DeadlineExceededError("the score's deadline has passed"));
}

void ScoreQueue::Step(uint32_t max_rows) {
  if (queue_.empty()) return;
  Entry& entry = queue_.front();
  if (entry.job == nullptr) entry.job = std::make_unique<ScoreJob>(entry.model, std::move(entry.request));
  absl::Status status;
  if (!entry.job->done()) status = StepJob(*entry.job, std::max(max_rows, 1u));
  if (status.ok() && !entry.job->done()) return;
  absl::StatusOr<ScoreResult> result =
      status.ok() ? absl::StatusOr<ScoreResult>(entry.job->TakeResult()) : std::move(status);
  const ScoreId id = entry.id;
  const absl::Time arrival = entry.arrival;
  queue_.pop_front();
  Answer(id, std::move(result), arrival);
}

absl::Status ScoreQueue::StepJob(ScoreJob& job, uint32_t max_rows) {
  Engine* const engine = job.model().engine;
  if (engine == nullptr) {
    job.Replay(max_rows);
    return absl::OkStatus();
  }
  if (!job.Reserve()) return absl::OkStatus();
  batch_.Clear();
  job.AddRows(std::min(max_rows, engine->max_rows()), &batch_);
  const absl::Status stepped = engine->Step(batch_.rows());
  if (!stepped.ok()) {
    return absl::InternalError(absl::StrCat("draft model ", job.model().name, ": ", stepped.message()));
  }
  return job.OnStep();
}

void ScoreQueue::GiveWay(const BlockPool* pool) {
  for (Entry& entry : queue_) {
    if (entry.job != nullptr && entry.model->pool == pool) entry.job->Suspend();
  }
}

void ScoreQueue::ListBlocks(const BlockPool* pool, std::vector<BlockId>* held) const {
  for (const Entry& entry : queue_) {
    if (entry.job != nullptr && entry.model->pool == pool) entry.job->ListBlocks(held);
  }
}

bool ScoreQueue::Uses(const DraftModel* model) const {
  return absl::c_any_of(queue_, [model](const Entry& entry) { return entry.model == model; });
}

}  // namespace tandem

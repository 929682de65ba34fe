#include "router/spool/spool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

// What a record takes, in memory and on disk, up to a factor of two.
uint64_t BytesOf(const SpoolRecord& record) {
  uint64_t bytes =
      kSpoolRecordHeadBytes + record.request_id.size() + record.model.size() + 4 * record.prompt.size();
  for (const SpoolRecord::OutputToken& token : record.output) bytes += 9 + 8 * token.top.size();
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Spool>> Spool::Open(Options options, const Clock* clock,
                                                   MetricsRegistry* registry) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SpoolFolder> folder, SpoolFolder::Open(options.folder));
  return std::unique_ptr<Spool>(new Spool(std::move(options), std::move(folder), clock, registry));
}

Spool::Spool(Options options, std::unique_ptr<SpoolFolder> folder, const Clock* clock,
             MetricsRegistry* registry)
    : options_(std::move(options)),
      clock_(clock),
      records_(registry->AddCounter(
          {"tandem_router_spool_records_total", "Requests written to the spool, by tenant.", {"tenant"}})),
      dropped_(registry->AddCounter({"tandem_router_spool_dropped_total",
                                     "Requests of recorded tenants that were not written: the queue was full "
                                     "(queue), the tenant exceeded its rate (rate), the files could not be "
                                     "written (disk), or the tenant's records were deleted first (deleted).",
                                     {"reason"}})),
      bytes_(registry
                 ->AddGauge(
                     {"tandem_router_spool_bytes", "Bytes of the spool's segments at the last clean-up.", {}})
                 .With()),
      folder_(std::move(folder)) {
  thread_ = std::thread([this] { Run(); });
}

Spool::~Spool() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  thread_.join();
}

void Spool::Offer(SpoolRecord record) {
  const uint64_t bytes = BytesOf(record);
  const absl::Time now = clock_->Now();
  const auto rate = static_cast<double>(options_.bytes_per_second);
  absl::MutexLock lock(&mutex_);
  Quota& quota = quotas_[record.tenant];
  const double most = rate * 60.0;
  const double seconds = quota.last == absl::InfinitePast() ? 60.0 : absl::ToDoubleSeconds(now - quota.last);
  quota.bytes = std::min(quota.bytes + std::max(seconds, 0.0) * rate, most);
  quota.last = now;
  if (quota.bytes < static_cast<double>(bytes)) {
    dropped_.With({"rate"}).Increment();
    return;
  }
  if (bytes > options_.queue_bytes - std::min(queued_bytes_, options_.queue_bytes)) {
    dropped_.With({"queue"}).Increment();
    return;
  }
  quota.bytes -= static_cast<double>(bytes);
  queued_bytes_ += bytes;
  queue_.push_back({std::move(record), bytes});
}

void Spool::Run() {
  absl::Time next_clean_up = absl::Now();
  while (true) {
    std::optional<Queued> next;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      mutex_.AwaitWithDeadline(absl::Condition(
                                   +[](Spool* self) ABSL_SHARED_LOCKS_REQUIRED(self->mutex_) {
                                     return !self->queue_.empty() || self->ending_;
                                   },
                                   this),
                               next_clean_up);
      if (!queue_.empty()) {
        next = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= next->bytes;
        writing_ = true;
      } else if (ending_) {
        return;
      }
    }
    if (next.has_value()) {
      absl::MutexLock lock(&files_mutex_);
      Write(next->record);
    }
    if (absl::Now() >= next_clean_up) {
      CleanUp();
      next_clean_up = absl::Now() + options_.clean_up_interval;
    }
  }
}

// With the files' mutex held.
void Spool::Write(const SpoolRecord& record) {
  const absl::Time now = clock_->Now();
  if (now < quiet_until_) {
    dropped_.With({"disk"}).Increment();
    return;
  }
  const absl::Status status = folder_->Append(record, now);
  if (status.ok()) {
    error_.clear();
    records_.With({record.tenant}).Increment();
    return;
  }
  dropped_.With({"disk"}).Increment();
  quiet_until_ = now + options_.pause_after_error;
  const std::string error(status.message());
  if (error != error_)
    LogWarning("the spool cannot be written; requests are served without it", {{"error", error}});
  error_ = error;
}

void Spool::CleanUp() {
  absl::MutexLock lock(&files_mutex_);
  const SpoolFolder::CleanedUp done = folder_->CleanUp(clock_->Now());
  bytes_.Set(static_cast<double>(done.bytes));
  if (done.removed_files == 0 && done.rewritten_files == 0) return;
  LogInfo("the spool was cleaned up", {{"removed_files", absl::StrCat(done.removed_files)},
                                       {"rewritten_files", absl::StrCat(done.rewritten_files)},
                                       {"deleted_records", absl::StrCat(done.removed_records)},
                                       {"bytes", absl::StrCat(done.bytes)}});
}

void Spool::DropQueued(const std::function<bool(const SpoolRecord&)>& fits) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(queue_, [&](const Queued& queued) {
    if (!fits(queued.record)) return false;
    queued_bytes_ -= queued.bytes;
    dropped_.With({"deleted"}).Increment();
    return true;
  });
}

absl::StatusOr<SpoolFolder::Deleted> Spool::DeleteTenant(const std::string& tenant) {
  absl::MutexLock lock(&files_mutex_);
  DropQueued([&](const SpoolRecord& record) { return record.tenant == tenant; });
  return folder_->DeleteTenant(tenant);
}

absl::Status Spool::DeleteRequest(const std::string& tenant, const std::string& request_id) {
  absl::MutexLock lock(&files_mutex_);
  DropQueued(
      [&](const SpoolRecord& record) { return record.tenant == tenant && record.request_id == request_id; });
  return folder_->DeleteRequest(tenant, request_id, clock_->Now());
}

void Spool::Flush() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](Spool* self)
           ABSL_SHARED_LOCKS_REQUIRED(self->mutex_) { return self->queue_.empty() && !self->writing_; },
      this));
}

}  // namespace tandem::router

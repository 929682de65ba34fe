#include "common/tracing/span_exporter.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"

namespace tandem {

SpanExporter::SpanExporter(const Options& options, std::unique_ptr<SpanTransport> transport,
                           Observer observer)
    : options_(options), transport_(std::move(transport)), observer_(std::move(observer)) {
  thread_ = std::thread([this] { Run(); });
}

void SpanExporter::Drop(absl::string_view reason, size_t count) const {
  if (count > 0 && observer_.on_dropped) observer_.on_dropped(reason, count);
}

void SpanExporter::Offer(SpanRecord span) {
  absl::string_view reason;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      reason = "shutdown";
    } else if (queue_.size() >= options_.max_queued) {
      reason = "queue_full";
    } else {
      queue_.push_back(std::move(span));
      return;
    }
  }
  Drop(reason, 1);
}

std::vector<SpanRecord> SpanExporter::NextBatch(absl::Time* deadline) {
  const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); };
  const auto enough = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || queue_.size() >= options_.max_batch;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&any));
  mutex_.AwaitWithTimeout(absl::Condition(&enough), options_.interval);
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(std::min(queue_.size(), options_.max_batch));
  std::vector<SpanRecord> batch(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  *deadline = std::min(absl::Now() + options_.send_timeout, flush_deadline_);
  return batch;
}

void SpanExporter::Run() {
  while (true) {
    absl::Time deadline;
    const std::vector<SpanRecord> batch = NextBatch(&deadline);
    if (batch.empty()) break;
    Send(batch, deadline);
  }
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void SpanExporter::Send(const std::vector<SpanRecord>& batch, absl::Time deadline) {
  if (absl::Now() >= deadline) return Drop("shutdown", batch.size());
  const absl::StatusOr<size_t> refused = transport_->Send(batch, deadline);
  if (!refused.ok()) {
    // Once for an outage, not for every batch.
    if (!std::exchange(failing_, true)) {
      LogWarning("spans cannot be exported and are dropped", {{"error", refused.status().ToString()}});
    }
    return Drop(absl::AsciiStrToLower(absl::StatusCodeToString(refused.status().code())), batch.size());
  }
  if (std::exchange(failing_, false)) LogInfo("spans are exported again");
  const size_t num_refused = std::min(*refused, batch.size());
  Drop("rejected", num_refused);
  if (num_refused < batch.size() && observer_.on_exported) observer_.on_exported(batch.size() - num_refused);
}

void SpanExporter::Shutdown() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    flush_deadline_ = absl::Now() + options_.flush_timeout;
    mutex_.AwaitWithTimeout(absl::Condition(&stopped_), options_.flush_timeout);
  }
  // Does nothing to one that is done; the deadline of a batch that was under way before may be later.
  transport_->Cancel();
  thread_.join();
}

}  // namespace tandem

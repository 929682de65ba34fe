#include "router/live/live_feed.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

size_t BytesOf(const LiveEvent& event) {
  return sizeof(event) + event.type.size() + event.json.size();
}

}  // namespace

void LiveFeed::Publish(absl::string_view type, std::string json) {
  auto event = std::make_shared<LiveEvent>();
  event->type = std::string(type.data(), type.size());
  event->json = std::move(json);
  const size_t bytes = BytesOf(*event);
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  event->id = ++last_id_;
  ++news_;
  bytes_ += bytes;
  events_.push_back(std::move(event));
  while (!events_.empty() && (events_.size() > options_.max_events || bytes_ > options_.max_bytes)) {
    bytes_ -= BytesOf(*events_.front());
    events_.pop_front();
  }
}

absl::StatusOr<std::unique_ptr<LiveFeed::Watcher>> LiveFeed::Watch(uint64_t seen) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return absl::UnavailableError("the router is shutting down");
  if (num_watchers() >= options_.max_watchers) {
    return absl::ResourceExhaustedError(absl::StrCat("too many browsers watch already (the limit is ",
                                                     options_.max_watchers,
                                                     "); close one, or raise the limit"));
  }
  num_watchers_.fetch_add(1, std::memory_order_relaxed);
  if (seen > last_id_) seen = 0;
  // The first time, it is unknown what was missed, so nothing counts as missed.
  const uint64_t first_kept = last_id_ + 1 - events_.size();
  return std::unique_ptr<Watcher>(new Watcher(*this, seen == 0 ? first_kept : seen + 1));
}

LiveFeed::Watcher::~Watcher() {
  absl::MutexLock lock(&feed_.mutex_);
  feed_.num_watchers_.fetch_sub(1, std::memory_order_relaxed);
}

LiveFeed::Watcher::Batch LiveFeed::Watcher::Next(absl::Duration timeout) {
  absl::MutexLock lock(&feed_.mutex_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(feed_.mutex_) {
    return feed_.closed_ || feed_.last_id_ >= next_;
  };
  feed_.mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout);
  Batch batch;
  const uint64_t first_kept = feed_.last_id_ + 1 - feed_.events_.size();
  if (next_ < first_kept) {
    batch.missed = first_kept - next_;
    next_ = first_kept;
  }
  const auto begin = static_cast<size_t>(next_ - first_kept);
  const size_t end = std::min(feed_.events_.size(), begin + kMaxBatch);
  for (size_t i = begin; i < end; ++i) batch.events.push_back(feed_.events_[i]);
  next_ += batch.events.size();
  batch.closed = feed_.closed_ && end == feed_.events_.size();
  return batch;
}

void LiveFeed::AwaitNoWatchers(absl::Duration timeout) {
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return num_watchers() == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
}

void LiveFeed::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  ++news_;
}

uint64_t LiveFeed::news() const {
  absl::MutexLock lock(&mutex_);
  return news_;
}

void LiveFeed::AwaitNews(uint64_t known, absl::Duration timeout) {
  const auto changed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return news_ != known; };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&changed), timeout);
}

void LiveFeed::Wake() {
  absl::MutexLock lock(&mutex_);
  ++news_;
}

}  // namespace tandem::router

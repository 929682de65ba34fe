#pragma once

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// The inbox of a thread that owns some state: any thread pushes, the owner takes everything at once, in the
// order of the pushes. It has no bound of its own; what feeds it is bounded (streams by their flow control,
// calls by admission).
template <class T>
class Mailbox {
 public:
  Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // After Close, the item is dropped.
  void Push(T item) {
    absl::MutexLock lock(&mutex_);
    if (!closed_) items_.push_back(std::move(item));
  }

  // Waits until there is something, the mailbox is closed, or `deadline` has passed, then appends everything
  // there is to `out`. False once the mailbox is closed and empty: the owner's loop ends.
  bool WaitUntil(absl::Time deadline, std::vector<T>* out) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &Mailbox::IsReady), deadline);
    const bool more = !closed_ || !items_.empty();
    Take(out);
    return more;
  }

  // Appends everything there is to `out`, without waiting.
  void Drain(std::vector<T>* out) {
    absl::MutexLock lock(&mutex_);
    Take(out);
  }

  // Wakes the owner for good. What was pushed before can still be taken. Idempotent.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

 private:
  bool IsReady() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return closed_ || !items_.empty(); }

  void Take(std::vector<T>* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (out->empty()) {
      out->swap(items_);
      return;
    }
    for (T& item : items_) out->push_back(std::move(item));
    items_.clear();
  }

  absl::Mutex mutex_;
  std::vector<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem

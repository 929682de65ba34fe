#pragma once

#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::plan {

// Adds up the progress of equal parts of a job. Thread-safe. Calls `tell` with the progress of the whole job,
// one call at a time. `tell` may be empty, and outlives this.
class Progress {
 public:
  Progress(size_t parts, const std::function<void(double)>& tell) : shares_(parts), tell_(tell) {}

  // The share of a part that is done, from 0 to 1.
  void Set(size_t part, double share) {
    if (!tell_) return;
    absl::MutexLock lock(&mutex_);
    shares_[part] = share;
    tell_(std::accumulate(shares_.begin(), shares_.end(), 0.0) / static_cast<double>(shares_.size()));
  }

 private:
  absl::Mutex mutex_;
  std::vector<double> shares_ ABSL_GUARDED_BY(mutex_);
  const std::function<void(double)>& tell_;
};

}  // namespace tandem::plan

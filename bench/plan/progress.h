#pragma once

#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::plan {

// Adds up what the parts of a work, which are equal, say of themselves, by any threads. `tell` is called one
// at a time; it may be empty, and outlives this.
class Progress {
 public:
  Progress(size_t parts, const std::function<void(double)>& tell) : shares_(parts), tell_(tell) {}

  // So much of a part is done, from 0 to 1.
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

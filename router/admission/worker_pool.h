#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/admission/fair_queue.h"

namespace tandem::router {

// Threads for the work that gRPC's threads must not do: tokenizing. They are shared among tenants by their
// weights, and within a tenant's share by priority and then first come, first served; so a tenant that sends
// many long prompts has its own wait, and nobody waits for more of them than the threads are at. The queue is
// unbounded here and bounded by admission, which every request passes first. Thread-safe.
class WorkerPool {
 public:
  // Whose a task is, and what it is to count for beside others'.
  struct Share {
    std::string tenant;
    uint32_t weight = 1;
    size_t bytes = 0;      // That it works through.
    int32_t priority = 0;  // FairQueue's.
  };

  explicit WorkerPool(int num_threads);
  // Runs what is queued, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Within each tenant's share by priority, then in the order of their posting.
  void Post(const Share& share, std::function<void()> task);
  // The router's own work, which has a share like a tenant's of weight 1.
  void Post(std::function<void()> task);

 private:
  void Run();

  absl::Mutex mutex_;
  FairQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<FairQueue::Id, std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  FairQueue::Id next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::router

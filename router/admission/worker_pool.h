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

// Threads for work that gRPC's threads must not do, such as tokenizing. Tenants share them by weight; within
// a tenant, tasks run by priority and then in order of arrival. So a tenant that sends many long prompts
// delays itself: others wait at most for the tasks that are running. The queue has no bound of its own,
// because admission bounds the requests first. Thread-safe.
class WorkerPool {
 public:
  // The tenant of a task, and how much the task counts against that tenant's share.
  struct Share {
    std::string tenant;
    uint32_t weight = 1;
    size_t bytes = 0;      // That it works through.
    int32_t priority = 0;  // FairQueue's.
  };

  explicit WorkerPool(int num_threads);
  // Runs all queued tasks, then joins the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Queues a task. Within a tenant, tasks run by priority, then in the order of posting.
  void Post(const Share& share, std::function<void()> task);
  // Queues a task of the router itself, which has the share of a tenant of weight 1.
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

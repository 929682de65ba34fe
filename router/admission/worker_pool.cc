#include "router/admission/worker_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tandem::router {
namespace {

// A task counts for one more than every so many bytes, since a short prompt costs as much in other ways.
constexpr size_t kBytesOfOneTask = size_t{64} << 10;
// More than a message has.
constexpr size_t kMostTaskBytes = size_t{64} << 20;

}  // namespace

WorkerPool::WorkerPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Post(const Share& share, std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  const FairQueue::Id id = next_id_++;
  tasks_.emplace(id, std::move(task));
  queue_.Push(id, share.tenant, share.weight,
              static_cast<uint32_t>(1 + std::min(share.bytes, kMostTaskBytes) / kBytesOfOneTask),
              share.priority);
}

void WorkerPool::Post(std::function<void()> task) {
  // No tenant has an empty name.
  Post(Share(), std::move(task));
}

void WorkerPool::Run() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); };
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      const std::optional<FairQueue::Id> next = queue_.Pop([](const std::string&) { return true; });
      if (!next.has_value()) return;
      task = std::move(tasks_.extract(*next).mapped());
    }
    task();
  }
}

}  // namespace tandem::router

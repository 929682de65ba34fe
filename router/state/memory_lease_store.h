#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "router/state/lease_store.h"
#include "router/state/watch_list.h"

namespace tandem::router {

// The leases of a router that shares its state with nobody. They are lost when the process ends; after a
// restart every server is back within its renewal interval. Thread-safe.
class MemoryLeaseStore final : public LeaseStore {
 public:
  // `clock` outlives this.
  explicit MemoryLeaseStore(const Clock* clock) : clock_(clock) {}

  absl::StatusOr<std::vector<LeasedEntry>> ListLeased(absl::string_view prefix) override;
  absl::StatusOr<LeasedEntry> PutLeased(const Put& put) override;
  absl::Status RenewLease(const LeasedEntry& entry) override;
  std::unique_ptr<RoutingStore::Watch> WatchPrefix(std::string prefix,
                                                   std::function<void()> on_change) override;
  absl::Status health() const override { return absl::OkStatus(); }

 private:
  struct Held {
    LeasedEntry entry;
    absl::Duration ttl;
    absl::Time end;
  };
  // Drops values whose lease has ended.
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  WatchList watches_;
  absl::Mutex mutex_;
  std::map<std::string, Held, std::less<>> held_ ABSL_GUARDED_BY(mutex_);
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::router

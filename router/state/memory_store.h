#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/state/routing_store.h"
#include "router/state/watch_list.h"

namespace tandem::router {

// A store that lasts as long as the process. Thread-safe.
class MemoryStore final : public RoutingStore {
 public:
  absl::StatusOr<Listing> List(absl::string_view prefix) override;
  absl::StatusOr<std::optional<StoredEntry>> Get(absl::string_view key) override;
  absl::StatusOr<uint64_t> Update(absl::Span<const StoreChange> changes) override;
  std::unique_ptr<Watch> WatchPrefix(std::string prefix, std::function<void()> on_change) override;

 private:
  WatchList watches_;
  absl::Mutex mutex_;
  std::map<std::string, StoredEntry, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The check that every store makes before a transaction: no key is empty, and each is changed once.
absl::Status CheckChanges(absl::Span<const StoreChange> changes);
// Aborted if `change` expects a version of its key other than `version` (0: the key does not exist).
absl::Status CheckExpectedVersion(const StoreChange& change, uint64_t version);

}  // namespace tandem::router

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/state/routing_store.h"

namespace tandem::router {

// A value that is deleted when its lease ends.
struct LeasedEntry {
  std::string key;
  std::string value;     // Any bytes.
  uint64_t version = 0;  // Of the store when the value was written; 0: never.
  int64_t lease = 0;     // 0: none.
};

// Stores values that are deleted unless somebody renews them, such as registrations of servers. EtcdStore is
// one; for stores on this machine, which have no leases, MemoryLeaseStore takes this part. Thread-safe.
class LeaseStore {
 public:
  virtual ~LeaseStore() = default;

  // Every entry whose key begins with `prefix` and whose lease has not ended, by key. Errors as in
  // RoutingStore.
  virtual absl::StatusOr<std::vector<LeasedEntry>> ListLeased(absl::string_view prefix) = 0;

  struct Put {
    std::string key;
    std::string value;
    absl::Duration ttl;             // Whole seconds; the store may give more.
    uint64_t expected_version = 0;  // That the key has now; 0: it must not exist.
    int64_t replaced_lease = 0;     // Of the value before, which nobody needs then; 0: none.
  };
  // Writes a value with a lease of its own. Aborted, naming the key, if the key has another version;
  // otherwise errors as in RoutingStore.
  virtual absl::StatusOr<LeasedEntry> PutLeased(const Put& put) = 0;

  // Renews the lease of `entry` for its ttl from now on. NotFound if the lease has ended; otherwise errors as
  // in RoutingStore.
  virtual absl::Status RenewLease(const LeasedEntry& entry) = 0;

  // As in RoutingStore. Only stores on other machines report the end of a lease.
  [[nodiscard]] virtual std::unique_ptr<RoutingStore::Watch> WatchPrefix(std::string prefix,
                                                                         std::function<void()> on_change) = 0;
  virtual absl::Status health() const = 0;
};

}  // namespace tandem::router

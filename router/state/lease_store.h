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

// A value that ends with its lease.
struct LeasedEntry {
  std::string key;
  std::string value;     // Any bytes.
  uint64_t version = 0;  // Of the store when the value was written; 0: never.
  int64_t lease = 0;     // 0: none.
};

// Values that are gone once nobody has renewed them for a while: what servers say of themselves. The stores
// on this machine keep none of them (MemoryLeaseStore takes their place), an etcd does (EtcdStore).
// Thread-safe.
class LeaseStore {
 public:
  virtual ~LeaseStore() = default;

  // Every entry whose key begins with `prefix` and whose lease lasts, by key. Errors as of RoutingStore.
  virtual absl::StatusOr<std::vector<LeasedEntry>> ListLeased(absl::string_view prefix) = 0;

  struct Put {
    std::string key;
    std::string value;
    absl::Duration ttl;             // Whole seconds; the store may give more.
    uint64_t expected_version = 0;  // That the key has now; 0: it must not exist.
    int64_t replaced_lease = 0;     // Of the value before, which nobody needs then; 0: none.
  };
  // Writes a value with a lease of its own. Aborted, naming the key, when its version is another one; errors
  // as of RoutingStore.
  virtual absl::StatusOr<LeasedEntry> PutLeased(const Put& put) = 0;

  // The lease of `entry` lasts its ttl from now on. NotFound when it has ended; errors as of RoutingStore.
  virtual absl::Status RenewLease(const LeasedEntry& entry) = 0;

  // As those of RoutingStore. That a lease has ended is told by stores elsewhere only.
  [[nodiscard]] virtual std::unique_ptr<RoutingStore::Watch> WatchPrefix(std::string prefix,
                                                                         std::function<void()> on_change) = 0;
  virtual absl::Status health() const = 0;
};

}  // namespace tandem::router

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::router {

class LeaseStore;

// A value of the store.
struct StoredEntry {
  std::string key;
  std::string value;     // Any bytes.
  uint64_t version = 0;  // Version of the store when the value was last written.
  int64_t lease = 0;     // That it ends with (LeaseStore); 0: none.
};

// One write of a transaction.
struct StoreChange {
  std::string key;
  std::optional<std::string> value;  // Absent: delete the key. Deleting what is not there is no error.
  // The key's version that this change was made from; 0: the key must not exist. Absent: whatever it is.
  std::optional<uint64_t> expected_version;
};

// What the router remembers: small values under keys such as "tenants/acme", each with a version, changed in
// transactions and watched. A version stands for a transaction: above 0, and above those of transactions
// before.
//
// Optimistic concurrency: read, decide, and write with the versions that were read; a transaction one of
// whose versions is out of date changes nothing and is to be tried again from the reading.
//
// Thread-safe. Implementations: MemoryStore, SqliteStore, and EtcdStore (router/state/etcd).
class RoutingStore {
 public:
  struct Listing {
    std::vector<StoredEntry> entries;  // By key.
    uint64_t version = 0;              // Of the store when the entries were read, all at once.
  };

  // While it lives, the callback may run. Destroyed before the store.
  class Watch {
   public:
    virtual ~Watch() = default;
  };

  virtual ~RoutingStore() = default;

  // Every entry whose key begins with `prefix`, as of one moment. Unavailable, Internal or DataLoss, naming
  // the store, when it cannot be read.
  virtual absl::StatusOr<Listing> List(absl::string_view prefix) = 0;

  // The entry of a key, if there is one. Errors as in List.
  virtual absl::StatusOr<std::optional<StoredEntry>> Get(absl::string_view key) = 0;

  // Makes all changes or none, and returns the store's version after them. Aborted, naming the key, when an
  // expected version does not fit; InvalidArgument for an empty key or one that is changed twice; errors of
  // the store as in List.
  virtual absl::StatusOr<uint64_t> Update(absl::Span<const StoreChange> changes) = 0;

  // Calls `on_change` after changes to keys that begin with `prefix`, by whomever, at least once after the
  // last of several; what has changed is to be read with List. A store that is on this machine tells changes
  // made through this object before Update returns; all others are told as soon as the store learns of them,
  // by a thread of its own. Calls of one watch never overlap. `on_change` may read the store, but not change
  // it, nor begin or end a watch. Destroying the result waits for a call that runs.
  [[nodiscard]] virtual std::unique_ptr<Watch> WatchPrefix(std::string prefix,
                                                           std::function<void()> on_change) = 0;

  // Whether the store answers, as far as it is known without asking.
  virtual absl::Status health() const { return absl::OkStatus(); }

  // Where several routers keep values that end by themselves; null for a store of one router.
  virtual LeaseStore* leases() { return nullptr; }
};

}  // namespace tandem::router

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
  // The version of the key on which this change is based; 0: the key must not exist. Absent: any version.
  std::optional<uint64_t> expected_version;
};

// The router's persistent state: small values under keys such as "tenants/acme". Each value has a version,
// changes are transactions, and keys can be watched. A version stands for a transaction: it is above 0, and
// above the versions of earlier transactions.
//
// Concurrency is optimistic: read, decide, and write with the versions that you read. If one of them is out
// of date, the transaction changes nothing; retry, beginning with the read.
//
// Thread-safe. Implementations: MemoryStore, SqliteStore, and EtcdStore (router/state/etcd).
class RoutingStore {
 public:
  struct Listing {
    std::vector<StoredEntry> entries;  // By key.
    uint64_t version = 0;              // Of the store when the entries were read, all at once.
  };

  // The callback may run while this exists. Destroy it before the store.
  class Watch {
   public:
    virtual ~Watch() = default;
  };

  virtual ~RoutingStore() = default;

  // Every entry whose key begins with `prefix`, at one version of the store. Unavailable, Internal or
  // DataLoss, naming the store, if it cannot be read.
  virtual absl::StatusOr<Listing> List(absl::string_view prefix) = 0;

  // The entry of a key, if there is one. Errors as in List.
  virtual absl::StatusOr<std::optional<StoredEntry>> Get(absl::string_view key) = 0;

  // Makes all changes or none, and returns the store's version after them. Aborted, naming the key, if an
  // expected version does not match; InvalidArgument for an empty key or one that is changed twice; errors of
  // the store as in List.
  virtual absl::StatusOr<uint64_t> Update(absl::Span<const StoreChange> changes) = 0;

  // Calls `on_change` after changes to keys that begin with `prefix`, whoever made them, at least once after
  // the last of several. Use List to read what has changed. A store on this machine reports changes made
  // through this object before Update returns; other changes are reported by a thread of the store, as soon
  // as it learns of them. Calls of one watch never overlap. `on_change` may read the store, but must not
  // change it, and must not start or end a watch. Destroying the result waits for a running call.
  [[nodiscard]] virtual std::unique_ptr<Watch> WatchPrefix(std::string prefix,
                                                           std::function<void()> on_change) = 0;

  // Whether the store answers, as far as is known without asking it.
  virtual absl::Status health() const { return absl::OkStatus(); }

  // The lease store that several routers share; null for a store of one router.
  virtual LeaseStore* leases() { return nullptr; }
};

}  // namespace tandem::router

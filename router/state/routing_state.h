#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "router/state/routing_snapshot.h"
#include "router/state/routing_store.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {

// The keys of the store.
inline constexpr absl::string_view kRoutingPrefix = "routing/";
inline constexpr absl::string_view kTenantPrefix = "routing/tenants/";
inline constexpr absl::string_view kDrafterPrefix = "routing/drafters/";
inline constexpr absl::string_view kVerifierPrefix = "routing/verifiers/";
inline constexpr absl::string_view kAppliedPrefix = "routing/applied/";

// The key of a verifier that was added or removed at run time. Neither name contains a blank.
std::string VerifierKey(const v1::VerifierConfig& verifier);

// The routing in force. Target models and limits come from the configuration file, tenants and drafters from
// the store. The verifiers of a model are those of the file, plus those added and minus those removed at run
// time, which the store records. Routers that share a store may have different files.
//
// Follows the store: every change there, by this process or another, becomes a new snapshot at once. If the
// content does not resolve (ResolveConfig), that is logged and the previous snapshot stays in force. If a
// record cannot be read, that is logged and its last readable version is used, so that other records can
// still change and the record can be written again. At the start, an unreadable record is an error.
//
// Open and ApplyFile merge the file into the store. The file as it was last time is the common ancestor of
// this three-way merge:
//
//   file as last time     the store's values stay
//   changed in the file   fields that differ from last time get the file's values, other fields stay; a
//                         tenant's drafter, drafter_policy and canary count as one field
//   new in the file       created; if the store has one of that name, the file's fields replace its fields
//   gone from the file    deleted
//   never in the file     kept
//
// Thread-safe.
class RoutingState {
 public:
  // Merges the file and takes the first snapshot. InvalidArgument, as from ResolveConfig, if the outcome does
  // not resolve; otherwise errors of the store. On an error the store is unchanged.
  static absl::StatusOr<std::unique_ptr<RoutingState>> Open(const v1::RouterConfig& file,
                                                            std::unique_ptr<RoutingStore> store);
  // The same, on a store that lasts as long as the object.
  static absl::StatusOr<std::unique_ptr<RoutingState>> InMemory(const v1::RouterConfig& file);

  ~RoutingState();

  // The latest snapshot; never null.
  std::shared_ptr<const RoutingSnapshot> snapshot() const;

  // Changes tenants, drafters and verifiers. `decide` gets every key below kRoutingPrefix and returns the
  // changes to make, which may be none. It is called again if another change came in between. Changes are
  // serialized across all processes, and made only if the outcome resolves. They are in force when this
  // returns; if the store can be written but not read just then, as soon as it can be read. Errors:
  // InvalidArgument as from ResolveConfig, but with the names of tenants and drafters; those of `decide` and
  // of the store.
  using Decide = std::function<absl::StatusOr<std::vector<StoreChange>>(const RoutingStore::Listing&)>;
  absl::Status Edit(const Decide& decide);

  // Merges `file` into the store, as Open does. Models and limits stay those of Open. InvalidArgument as from
  // ResolveConfig, and errors of the store; on an error nothing has changed.
  absl::Status ApplyFile(const v1::RouterConfig& file);

  // The store's content under kRoutingPrefix, with the last readable version of damaged records. Errors of
  // the store.
  absl::StatusOr<RoutingStore::Listing> List();

  // Sets the function that gets every routing table whose verifiers may differ from the previous one,
  // starting with the table in force. It is called from any thread, one call at a time, and must not call
  // this object. Null removes it; no call is running when this returns.
  void TellVerifiers(std::function<void(const RoutingTable&)> tell);

  // Replaces the registered drafters; the new ones are in force when this returns. They are not in the store:
  // they last as long as their registrations.
  void SetRegistered(std::vector<Drafter> drafters);
  // Whether a drafter of this name is configured, not just registered.
  bool IsConfigured(const std::string& drafter) const;

  // For metrics: whether the routing in force differs from the store, because the store's content does not
  // resolve, and how many records cannot be read.
  struct Condition {
    bool stale = false;
    size_t damaged_records = 0;
  };
  Condition condition() const;

  RoutingStore& store() { return *store_; }
  // The part of the file that is neither tenants nor drafters.
  const v1::RouterConfig& base() const { return base_; }

 private:
  RoutingState(v1::RouterConfig base, std::unique_ptr<RoutingStore> store);

  // Reads the store and publishes a snapshot of it.
  absl::Status Reload();
  // The same, but logs content that cannot be used.
  void Follow();
  absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_);
  absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> Resolve(const v1::RouterConfig& config,
                                                                 uint64_t version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_);
  // Replaces damaged records by their last readable version, or removes them if there is none. Returns their
  // versions, by key.
  std::map<std::string, uint64_t> WithoutDamage(RoutingStore::Listing* listing) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Remembers readable records for WithoutDamage. Logs new damage.
  void Remember(const RoutingStore::Listing& listing, std::map<std::string, uint64_t> damaged)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::RouterConfig base_;
  const std::unique_ptr<RoutingStore> store_;
  mutable absl::Mutex reload_mutex_;  // One at a time, so that an older reading never follows a newer one.
  std::vector<Drafter> registered_ ABSL_GUARDED_BY(reload_mutex_);
  std::function<void(const RoutingTable&)> tell_verifiers_ ABSL_GUARDED_BY(reload_mutex_);
  v1::RouterConfig resolved_ ABSL_GUARDED_BY(reload_mutex_);  // What the snapshot was made of.
  mutable absl::Mutex mutex_;
  std::shared_ptr<const RoutingSnapshot> snapshot_ ABSL_GUARDED_BY(mutex_);
  Condition condition_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> readable_ ABSL_GUARDED_BY(mutex_);  // Records as last read, by key.
  std::map<std::string, uint64_t> damaged_ ABSL_GUARDED_BY(mutex_);      // Versions that were logged, by key.
  std::unique_ptr<RoutingStore::Watch> watch_;
};

// The configuration made of `base` and of the tenants, drafters and changes of verifiers in `listing`, a
// listing of kRoutingPrefix. Records about models that `base` does not have are ignored. DataLoss for a
// record that cannot be read.
absl::StatusOr<v1::RouterConfig> ConfigOf(const v1::RouterConfig& base, const RoutingStore::Listing& listing);

// `message`, which ResolveConfig wrote about `config`, with names of models, tenants and drafters in place of
// indices.
std::string WithNames(const v1::RouterConfig& config, absl::string_view message);

}  // namespace tandem::router

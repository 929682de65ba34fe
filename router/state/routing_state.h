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

// Where the store keeps what.
inline constexpr absl::string_view kRoutingPrefix = "routing/";
inline constexpr absl::string_view kTenantPrefix = "routing/tenants/";
inline constexpr absl::string_view kDrafterPrefix = "routing/drafters/";
inline constexpr absl::string_view kVerifierPrefix = "routing/verifiers/";
inline constexpr absl::string_view kAppliedPrefix = "routing/applied/";

// The key of what was said at run time of a model's verifier. Neither name holds a blank.
std::string VerifierKey(const v1::VerifierConfig& verifier);

// The routing in force: target models and limits from the configuration file, tenants and drafters from the
// store. Models' verifiers are those of the file, without those that were taken away at run time, and those
// that were added, both of which the store knows; routers that share a store may have different files.
// Follows the store: whatever is changed there, by this process or another, becomes a new snapshot at once.
// What does not resolve (ResolveConfig) is logged and leaves the snapshot before in force. A record that
// cannot be read is logged and taken as it was when it last could be, so that others can still change, and it
// can be written anew; at the start it is an error.
//
// The file and the store are reconciled by Open and ApplyFile, with what the file said last time as the
// common ancestor:
//
//   file as last time                the store rules
//   changed in the file              fields that differ from last time get the file's values, others are
//   kept; a
//                                    tenant's drafter, drafter_policy and canary count as one field
//   new in the file                  created; where the store has one of that name, the file's fields rule
//   gone from the file               deleted
//   never in the file                kept
//
// Thread-safe.
class RoutingState {
 public:
  // Reconciles and takes the first snapshot. InvalidArgument as ResolveConfig when the outcome does not
  // resolve, and errors of the store; the store is then as it was.
  static absl::StatusOr<std::unique_ptr<RoutingState>> Open(const v1::RouterConfig& file,
                                                            std::unique_ptr<RoutingStore> store);
  // The same on a store that lasts as long as the object.
  static absl::StatusOr<std::unique_ptr<RoutingState>> InMemory(const v1::RouterConfig& file);

  ~RoutingState();

  // The latest snapshot; never null.
  std::shared_ptr<const RoutingSnapshot> snapshot() const;

  // Changes tenants, drafters and verifiers: `decide` is given what is there (every key below kRoutingPrefix)
  // and returns what is to be done, perhaps nothing. It is called again when another change came between.
  // Changes are made one after the other, by however many processes, and only when the outcome resolves. They
  // are in force when this returns; if the store can be written but not read again just then, as soon as it
  // can be. InvalidArgument as ResolveConfig, but naming tenants and drafters by their names; the errors of
  // `decide` and of the store.
  using Decide = std::function<absl::StatusOr<std::vector<StoreChange>>(const RoutingStore::Listing&)>;
  absl::Status Edit(const Decide& decide);

  // Reconciles the store with the file as it is now, as Open does; models and limits are those that it was
  // opened with. InvalidArgument as ResolveConfig, and errors of the store; nothing has changed then.
  absl::Status ApplyFile(const v1::RouterConfig& file);

  // What the store holds under kRoutingPrefix, damaged records as they were when they could be read. Errors
  // of the store.
  absl::StatusOr<RoutingStore::Listing> List();

  // Told of every routing table that may have other verifiers than the one before, beginning with that in
  // force; from any thread, one call after the other. Not to call back. Null: nobody any more; no call is
  // under way when this returns.
  void TellVerifiers(std::function<void(const RoutingTable&)> tell);

  // Drafters that registered, in place of those before, in force when this returns. They are not in the
  // store: they last as long as they are heard of.
  void SetRegistered(std::vector<Drafter> drafters);
  // Whether a drafter of the name is configured, and has not registered only.
  bool IsConfigured(const std::string& drafter) const;

  // For metrics: whether what is in force is not what the store says, because that does not resolve, and how
  // many of its records cannot be read.
  struct Condition {
    bool stale = false;
    size_t damaged_records = 0;
  };
  Condition condition() const;

  RoutingStore& store() { return *store_; }
  // What came from the file and is no tenant or drafter.
  const v1::RouterConfig& base() const { return base_; }

 private:
  RoutingState(v1::RouterConfig base, std::unique_ptr<RoutingStore> store);

  // Reads the store and publishes what it says.
  absl::Status Reload();
  // The same; what cannot be used is logged.
  void Follow();
  absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_);
  absl::StatusOr<std::shared_ptr<const RoutingSnapshot>> Resolve(const v1::RouterConfig& config,
                                                                 uint64_t version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_);
  // Replaces damaged records by what they were, or removes them when they never could be read; returns their
  // versions, by key.
  std::map<std::string, uint64_t> WithoutDamage(RoutingStore::Listing* listing) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For the next time. Logs damage that is new.
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

// The configuration that `listing`, of kRoutingPrefix, amounts to, with `base` for everything but tenants,
// drafters and what was said of verifiers; of models that `base` has not, nothing counts. DataLoss for a
// record that cannot be read.
absl::StatusOr<v1::RouterConfig> ConfigOf(const v1::RouterConfig& base, const RoutingStore::Listing& listing);

// `message`, of ResolveConfig about `config`, with the names of models, tenants and drafters in place of
// where they stand in it.
std::string WithNames(const v1::RouterConfig& config, absl::string_view message);

}  // namespace tandem::router

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/rpc/peer_backoff.h"
#include "router/config/config.h"
#include "router/registry/registered_endpoint.h"
#include "router/registry/server_list.h"
#include "router/state/lease_store.h"
#include "tandem/v1/registry.pb.h"

namespace tandem::router {

// Takes registrations of servers to a store of leases, and tells the router which servers there are, by
// whichever router's store they came there.
//
// A server that was heard of is not given up because a lease could not be kept: not while the store is out of
// reach nor for a ttl after that, and not for a ttl after this router itself has stood still or its clock was
// set. One that is dead is gone at the end of its lease otherwise.
//
// Has no thread: whoever owns it calls Tick a few times a second, from one thread. Thread-safe otherwise.
class Registrar {
 public:
  struct Options {
    ServerList::Options servers;
    LeaseStore* leases = nullptr;  // Outlives this. Null: leases of this router alone.
    const Clock* clock = nullptr;  // Outlives this.
    // Whether the configuration has a drafter of the name.
    std::function<bool(const std::string&)> is_configured;
    // Told when they change, by whichever thread brings the change; not to call back.
    std::function<void(size_t model, const std::vector<RegisteredEndpoint>&)> set_verifiers;
    std::function<void(const std::vector<Drafter>&)> set_drafters;
    std::function<void(size_t verifiers, size_t drafters)> set_counts;
  };
  explicit Registrar(Options options);
  ~Registrar();
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

  // The errors that v1::Registry documents. Blocks for as long as the store takes.
  // `from`: where the caller is, if that bounds what it may take; it may register `max_per_address` servers
  // here.
  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request,
                                                std::optional<PeerAddress> from = std::nullopt);
  absl::Status Deregister(const v1::DeregisterRequest& request);

  // What is in use now.
  std::vector<v1::ServerRegistration> Servers() const;

  // Reads the store if it has changed, and ends what has ended.
  void Tick();
  // Returns when the store has changed or `timeout` has passed.
  void AwaitChange(absl::Duration timeout);

 private:
  // ResourceExhausted when as many servers as may have registered from the address.
  absl::Status CheckShare(PeerAddress from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::RegisterResponse> RegisterLocked(const v1::ServerRegistration& server,
                                                      std::optional<PeerAddress> from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One try: Aborted and NotFound when the store is not as it was thought to be.
  absl::Status Write(const v1::ServerRegistration& server, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Put(const v1::ServerRegistration& server, bool left, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Before anything that may find a lease ended: notices when nobody could have been heard of.
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Others at the server's address have ended, whether it is taken or not.
  void EndOutdated(const v1::ServerRegistration& server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Reread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ServerList::Signs Signs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogGone(const std::vector<v1::ServerRegistration>& gone) const;
  // Tells what has changed.
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::RegisterResponse Answer() const;
  bool TakeChange();

  const Options options_;
  const std::unique_ptr<LeaseStore> own_leases_;
  LeaseStore* const leases_;
  // Held while the store is asked: one registration at a time.
  mutable absl::Mutex mutex_;
  ServerList list_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, PeerAddress> registered_from_ ABSL_GUARDED_BY(mutex_);  // By key.
  bool away_ ABSL_GUARDED_BY(mutex_) = false;    // The store was out of reach at the last look.
  bool to_read_ ABSL_GUARDED_BY(mutex_) = true;  // The store has changed since it was read.
  absl::Time last_look_ ABSL_GUARDED_BY(mutex_);
  absl::Time doubt_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::set<std::string> damaged_ ABSL_GUARDED_BY(mutex_);  // Keys that were logged.
  std::string read_error_ ABSL_GUARDED_BY(mutex_);         // Likewise.
  std::vector<std::vector<RegisteredEndpoint>> told_verifiers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> told_drafters_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex change_mutex_;
  bool changed_ ABSL_GUARDED_BY(change_mutex_) = false;
  std::unique_ptr<RoutingStore::Watch> watch_;
};

}  // namespace tandem::router

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
#include "common/rpc/peer_address.h"
#include "router/config/config.h"
#include "router/registry/registered_endpoint.h"
#include "router/registry/server_list.h"
#include "router/state/lease_store.h"
#include "tandem/v1/registry.pb.h"

namespace tandem::router {

// Stores registrations of servers with leases, and tells the router which servers are registered, whichever
// router they called.
//
// A server that dies is removed when its lease ends. There are exceptions, so that healthy servers are not
// removed for a fault of others. If leases could not be renewed because the store was out of reach, servers
// stay until a ttl after it is back. If this router itself was stopped or its clock was set, they stay for
// another ttl.
//
// Has no thread: the owner calls Tick a few times a second, from one thread. Thread-safe otherwise.
class Registrar {
 public:
  struct Options {
    ServerList::Options servers;
    LeaseStore* leases = nullptr;  // Outlives this. Null: leases of this router alone.
    const Clock* clock = nullptr;  // Outlives this.
    // Whether the configuration has a drafter of this name.
    std::function<bool(const std::string&)> is_configured;
    // Called when the servers change, on the thread that brings the change. Must not call the registrar.
    std::function<void(size_t model, const std::vector<RegisteredEndpoint>&)> set_verifiers;
    std::function<void(const std::vector<Drafter>&)> set_drafters;
    std::function<void(size_t verifiers, size_t drafters)> set_counts;
  };
  explicit Registrar(Options options);
  ~Registrar();
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

  // Registers a server, with the errors that v1::Registry documents. Blocks on the store. `from`: the
  // caller's address, if the number of servers per address is limited; it may register `max_per_address` of
  // them here.
  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request,
                                                std::optional<PeerAddress> from = std::nullopt);
  absl::Status Deregister(const v1::DeregisterRequest& request);

  // The servers in use now.
  std::vector<v1::ServerRegistration> Servers() const;

  // Reads the store if it has changed, and removes servers whose leases have ended.
  void Tick();
  // Returns when the store has changed or `timeout` has passed.
  void AwaitChange(absl::Duration timeout);

 private:
  // ResourceExhausted if `max_per_address` servers have registered from the address.
  absl::Status CheckShare(PeerAddress from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::RegisterResponse> RegisterLocked(const v1::ServerRegistration& server,
                                                      std::optional<PeerAddress> from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One attempt. Aborted or NotFound if the store has changed since it was read.
  absl::Status Write(const v1::ServerRegistration& server, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Put(const v1::ServerRegistration& server, bool left, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Detects periods in which no server could be heard. Call it before anything that may find a lease ended.
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes older processes at the server's address, whether or not the server is accepted.
  void EndOutdated(const v1::ServerRegistration& server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Reread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ServerList::Signs Signs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogGone(const std::vector<v1::ServerRegistration>& gone) const;
  // Reports changes to the callbacks.
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::RegisterResponse Answer() const;
  bool TakeChange();

  const Options options_;
  const std::unique_ptr<LeaseStore> own_leases_;
  LeaseStore* const leases_;
  // Held during calls to the store, so registrations run one at a time.
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

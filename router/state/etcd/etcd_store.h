#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/mailbox.h"
#include "router/state/etcd/etcd_client.h"
#include "router/state/lease_store.h"
#include "router/state/routing_store.h"
#include "router/state/watch_list.h"

namespace tandem::router {

// A store in an etcd (3.4 or later), which any number of routers share. Versions are etcd's revisions. All
// keys begin with a prefix, under which there must be no other keys.
//
// Reads are linearizable, and writes are transactions that compare revisions, so routers cannot overwrite one
// another's changes. Changes of others arrive through an etcd watch. A thread, the following thread,
// maintains the watch and pings the member every `ping_interval`:
//
//             answers, watch begun: every watch is called
//   AWAY ---------------------------------------------------> HERE --- change ---> the key's watches called
//    ^  next member, after `retry_interval`                     |
//    '----- no answer within `ping_timeout`, watch ended -------'
//
// While the etcd is AWAY, reads and writes wait until it has been so for `patience`; after that they fail at
// once, as Unavailable. When it is HERE again, every watch is called, so that no change is missed, even if
// etcd has compacted it away. The same happens after a failed read. If the answer to a write is lost, the
// write is retried on another member; the values of its keys show whether it was already done, so it is never
// done twice.
//
// Only a second thread, the telling thread, calls the store's watches, one call at a time; changes that
// arrive during a call cause one more. So callbacks, which read the store, block neither writers nor the
// following thread, which has to bring the store back to HERE. Thread-safe.
//
// Leases are etcd's own. Each leased value has its own lease, which anybody who knows the value may renew.
// etcd extends leases by the time in which it had no leader and could not have been told.
class EtcdStore final : public RoutingStore, public LeaseStore {
 public:
  struct Options {
    EtcdClient::Options client;
    std::string prefix;  // "/tandem/v1/".
    absl::Duration open_timeout = absl::Seconds(10);
    absl::Duration request_timeout = absl::Seconds(8);  // Of reads and writes, all members tried.
    absl::Duration attempt_timeout = absl::Seconds(2);  // Of one member's answer.
    // How long reads and writes wait for an etcd that is AWAY: longer than an election takes.
    absl::Duration patience = absl::Seconds(6);
    absl::Duration ping_interval = absl::Seconds(1);
    absl::Duration ping_timeout = absl::Milliseconds(1500);
    absl::Duration retry_interval = absl::Milliseconds(200);
    int64_t page = 256;  // Entries that are asked for at once.
  };

  // Unavailable, with each member's error, if none answers within the open timeout; PermissionDenied or
  // Unauthenticated if etcd refuses the credentials.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(Options options);
  ~EtcdStore() override;

  absl::StatusOr<Listing> List(absl::string_view prefix) override;
  absl::StatusOr<std::optional<StoredEntry>> Get(absl::string_view key) override;
  absl::StatusOr<uint64_t> Update(absl::Span<const StoreChange> changes) override;
  std::unique_ptr<Watch> WatchPrefix(std::string prefix, std::function<void()> on_change) override;
  absl::Status health() const override;
  LeaseStore* leases() override { return this; }

  absl::StatusOr<std::vector<LeasedEntry>> ListLeased(absl::string_view prefix) override;
  absl::StatusOr<LeasedEntry> PutLeased(const Put& put) override;
  absl::Status RenewLease(const LeasedEntry& entry) override;

 private:
  struct Ended {
    absl::Status status;
  };
  struct Wake {};
  using Event = std::variant<etcdserverpb::WatchResponse, Ended, Wake>;
  using Inbox = Mailbox<Event>;

  explicit EtcdStore(Options options);
  // Waits until the following thread has started a watch.
  absl::Status AwaitFirst(absl::Time deadline) const;

  // The following thread: maintains the watch until `stopping_`.
  void Run();
  // Follows one watch on one member until it ends. Returns why it ended.
  absl::Status Follow();
  absl::Status Begin(const std::shared_ptr<Inbox>& inbox, std::shared_ptr<EtcdClient::WatchStream>* stream);
  // Handles events of the watch. An error if the watch is over.
  absl::Status Take(const std::vector<Event>& events);
  // Whether the member answers and has a majority behind it.
  absl::Status Ping();
  // Returns whether the store has been HERE before.
  bool SetHere();
  void SetAway(const absl::Status& reason);
  bool Stopping() const;

  // The telling thread: calls watches until `stopping_`.
  void RunTelling();
  // Lets the telling thread call the watches of these keys, or all watches.
  void Tell(const std::vector<std::string>& keys);
  void TellAll();

  // Waits until the store is HERE on a connection other than `failed`, and returns that connection. Otherwise
  // Unavailable.
  absl::StatusOr<uint64_t> AwaitHere(uint64_t failed, absl::Time deadline) const;
  // A read or write has failed on this connection. `urgent`: ping the member at once.
  void Suspect(uint64_t connection, bool urgent);
  // Runs `call(deadline)` until it is answered, on several members if needed. Sets `*retried` if an earlier
  // attempt may have taken effect.
  template <class Response, class Call>
  absl::StatusOr<Response> Perform(bool* retried, const Call& call);

  // Ends the lease at once. If etcd does not answer, the lease ends by itself.
  void RevokeLease(int64_t lease);
  absl::StatusOr<Listing> ListOnce(absl::string_view prefix, absl::Time deadline);
  absl::StatusOr<StoredEntry> ReadEntry(mvccpb::KeyValue& kv) const;
  etcdserverpb::TxnRequest MakeTransaction(absl::Span<const StoreChange> changes) const;
  // The result of a transaction whose conditions did not hold: the version of an earlier attempt that took
  // effect, or Aborted.
  absl::StatusOr<uint64_t> Conflict(absl::Span<const StoreChange> changes,
                                    const etcdserverpb::TxnResponse& response, bool retried) const;

  const Options options_;
  EtcdClient client_;
  WatchList watches_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t connection_ ABSL_GUARDED_BY(mutex_) = 0;  // Counts those that there were; 0: none yet.
  bool here_ ABSL_GUARDED_BY(mutex_) = false;
  bool suspect_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time away_since_ ABSL_GUARDED_BY(mutex_);
  absl::Status away_reason_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Inbox> inbox_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> untold_keys_ ABSL_GUARDED_BY(mutex_);  // Changed, and not told yet.
  bool untold_all_ ABSL_GUARDED_BY(mutex_) = false;            // So may be any other key.
  std::thread following_;
  std::thread telling_;
};

// Opens the store that "etcd://..." names. InvalidArgument if the address or the files of `access` cannot be
// used; otherwise the errors of EtcdStore::Open.
absl::StatusOr<std::unique_ptr<RoutingStore>> OpenEtcdStore(absl::string_view uri, const EtcdAccess& access);
// Checks everything that can be checked without a connection. The same errors.
absl::Status CheckEtcdStore(absl::string_view uri, const EtcdAccess& access);

}  // namespace tandem::router

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

// A store in an etcd (3.4 or later), which any number of routers share. Versions are etcd's revisions. Keys
// begin with a prefix, under which nothing else may be.
//
// Reads ask for what a majority of the members has agreed on, and writes are transactions that compare
// revisions, so routers cannot overwrite one another's changes. What others change comes by a watch of
// etcd's. The following thread keeps it, and asks the member every `ping_interval` whether it still answers:
//
//             answers, watch begun: every watch is called
//   AWAY ---------------------------------------------------> HERE --- change ---> watches of the key are
//   called
//    ^  next member, after `retry_interval`                     |
//    '----- no answer within `ping_timeout`, watch ended -------'
//
// While it is AWAY, reads and writes are Unavailable, at once when it has been so for `patience`. Whenever it
// is HERE again every watch is called, so nothing that was changed meanwhile is missed, compacted away or
// not; so they are after a read that failed. A write whose answer was lost is made again on another member;
// whether it had been done is seen by what its keys hold, so it is never done twice.
//
// Watches of the store are called by the telling thread alone, one call after the other: changes that come
// while one runs make one more. So watches, which read the store, hold up neither who writes nor the
// following thread, without which nobody would be HERE again. Thread-safe.
//
// Leases are etcd's own: each value with one has it for itself, and whoever knows the value may renew it.
// etcd makes up for the time in which it had no leader, and so could not have been told.
class EtcdStore final : public RoutingStore, public LeaseStore {
 public:
  struct Options {
    EtcdClient::Options client;
    std::string prefix;  // "/tandem/v1/".
    absl::Duration open_timeout = absl::Seconds(10);
    absl::Duration request_timeout = absl::Seconds(8);  // Of reads and writes, all members tried.
    absl::Duration attempt_timeout = absl::Seconds(2);  // Of one member's answer.
    // How long reads and writes wait for an etcd that has gone away: longer than an election takes.
    absl::Duration patience = absl::Seconds(6);
    absl::Duration ping_interval = absl::Seconds(1);
    absl::Duration ping_timeout = absl::Milliseconds(1500);
    absl::Duration retry_interval = absl::Milliseconds(200);
    int64_t page = 256;  // Entries that are asked for at once.
  };

  // Unavailable, saying what each member said, when none answers within the open timeout; PermissionDenied or
  // Unauthenticated, when they do not let us.
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
  // Waits until the thread has begun a watch.
  absl::Status AwaitFirst(absl::Time deadline) const;

  // The following thread: keeps the watch until `stopping_`.
  void Run();
  // One watch on one member, until it ends; says why.
  absl::Status Follow();
  absl::Status Begin(const std::shared_ptr<Inbox>& inbox, std::shared_ptr<EtcdClient::WatchStream>* stream);
  // Takes what came. Not OK when the watch is over.
  absl::Status Take(const std::vector<Event>& events);
  // Whether the member, with a majority of the others, answers.
  absl::Status Ping();
  // Returns whether it has been here before.
  bool SetHere();
  void SetAway(const absl::Status& reason);
  bool Stopping() const;

  // The telling thread: calls watches until `stopping_`.
  void RunTelling();
  // Has the watches of these keys, or all, called.
  void Tell(const std::vector<std::string>& keys);
  void TellAll();

  // Waits until it is HERE, on another connection than the `failed` one; returns which. Unavailable
  // otherwise.
  absl::StatusOr<uint64_t> AwaitHere(uint64_t failed, absl::Time deadline) const;
  // A read or write has failed on this connection. `urgent`: the member is asked at once whether it is there.
  void Suspect(uint64_t connection, bool urgent);
  // Runs `call(deadline)` until it is answered, perhaps by several members; `*retried` says whether an
  // earlier try may have been done.
  template <class Response, class Call>
  absl::StatusOr<Response> Perform(bool* retried, const Call& call);

  // The lease ends at once, if etcd answers; otherwise by itself.
  void RevokeLease(int64_t lease);
  absl::StatusOr<Listing> ListOnce(absl::string_view prefix, absl::Time deadline);
  absl::StatusOr<StoredEntry> ReadEntry(mvccpb::KeyValue& kv) const;
  etcdserverpb::TxnRequest MakeTransaction(absl::Span<const StoreChange> changes) const;
  // What a transaction whose conditions did not hold comes to: the version of an earlier try that was done,
  // or Aborted.
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

// The store that "etcd://..." names. InvalidArgument when the address or what `access` names cannot be used,
// otherwise the errors of EtcdStore::Open.
absl::StatusOr<std::unique_ptr<RoutingStore>> OpenEtcdStore(absl::string_view uri, const EtcdAccess& access);
// Everything that can be checked without asking anybody. The same errors.
absl::Status CheckEtcdStore(absl::string_view uri, const EtcdAccess& access);

}  // namespace tandem::router

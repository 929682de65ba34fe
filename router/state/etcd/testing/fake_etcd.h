#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "etcd/rpc.grpc.pb.h"
#include "grpcpp/server.h"

namespace tandem::router::testing {

// An etcd of one member in this process, which does what a real one does on request only rarely: fails after
// the work is done, ends watches, compacts at the worst moment, answers nonsense. Thread-safe.
class FakeEtcd {
 public:
  // Listens on `port`, or on a free one.
  explicit FakeEtcd(int port = 0);
  ~FakeEtcd();

  std::string endpoint() const;
  int port() const { return port_; }

  // What another client does.
  void Put(const std::string& key, const std::string& value);
  std::string Value(const std::string& key) const;  // Empty: none.
  size_t num_transactions() const;                  // That were done.
  size_t num_watches() const;                       // That began.
  size_t num_ranges() const;                        // That were asked for, pings left out.

  // The next `count` reads, or transactions, fail with this. `done`: though the transaction was made.
  void FailRanges(int count, grpc::Status status);
  void FailTransactions(int count, grpc::Status status, bool done);
  // Reads as of a revision find it compacted, so many times.
  void CompactPages(int count);
  // Ends every watch as one whose revision was compacted away.
  void CompactWatches();
  // The next `count` watches are refused by the answer that begins them, as one is that the user may not
  // have; or the call ends right behind that answer.
  void RefuseWatches(int count);
  void EndWatches(int count);
  // Changes the answers to reads, pings left out; null: no more.
  void Spoil(std::function<void(etcdserverpb::RangeResponse*)> change);
  // Nothing is answered while `hang`.
  void Hang(bool hang);
  // Calls need the token that Authenticate gives for this user; called again, earlier tokens are worth
  // nothing.
  void RequireUser(const std::string& name, const std::string& password);
  // The token given last is worth nothing from now on, and calls that show it are told this.
  void EndToken(grpc::Status refusal);
  size_t num_tokens() const;  // That were given.
  // Leases that last, and renewals of any.
  size_t num_leases() const;
  size_t num_renewals() const;
  // Every lease ends, as at the end of its time, and with it its keys.
  void EndLeases();

 private:
  class KvService;
  class WatchService;
  class LeaseService;
  class AuthService;

  // Shared by the services.
  struct State {
    mutable absl::Mutex mutex;
    std::map<std::string, mvccpb::KeyValue> entries ABSL_GUARDED_BY(mutex);
    int64_t revision ABSL_GUARDED_BY(mutex) = 1;
    std::map<int64_t, etcdserverpb::WatchResponse> history ABSL_GUARDED_BY(mutex);  // By revision.
    size_t transactions ABSL_GUARDED_BY(mutex) = 0;
    size_t watches ABSL_GUARDED_BY(mutex) = 0;
    size_t ranges ABSL_GUARDED_BY(mutex) = 0;
    int failing_ranges ABSL_GUARDED_BY(mutex) = 0;
    grpc::Status range_failure ABSL_GUARDED_BY(mutex);
    int failing_transactions ABSL_GUARDED_BY(mutex) = 0;
    bool fail_when_done ABSL_GUARDED_BY(mutex) = false;
    grpc::Status transaction_failure ABSL_GUARDED_BY(mutex);
    int compact_pages ABSL_GUARDED_BY(mutex) = 0;
    int compactions ABSL_GUARDED_BY(mutex) = 0;
    int refused_watches ABSL_GUARDED_BY(mutex) = 0;
    int ended_watches ABSL_GUARDED_BY(mutex) = 0;
    std::function<void(etcdserverpb::RangeResponse*)> spoil ABSL_GUARDED_BY(mutex);
    std::map<int64_t, int64_t> leases ABSL_GUARDED_BY(mutex);  // Seconds, by id.
    int64_t last_lease ABSL_GUARDED_BY(mutex) = 0;
    size_t renewals ABSL_GUARDED_BY(mutex) = 0;
    bool hang ABSL_GUARDED_BY(mutex) = false;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    std::string user ABSL_GUARDED_BY(mutex);
    std::string password ABSL_GUARDED_BY(mutex);
    size_t tokens ABSL_GUARDED_BY(mutex) = 0;
    std::string token ABSL_GUARDED_BY(mutex);
    grpc::Status token_refusal ABSL_GUARDED_BY(mutex){grpc::StatusCode::UNAUTHENTICATED,
                                                      "etcdserver: invalid auth token"};

    // The status that a call ends with before anything is done for it.
    grpc::Status Admit(const grpc::ServerContext& context);
    void Write(const std::string& key, const std::string* value, int64_t lease = 0)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
    void EndLease(int64_t lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
    void Read(const etcdserverpb::RangeRequest& request, etcdserverpb::RangeResponse* response)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  };

  State state_;
  std::unique_ptr<KvService> kv_;
  std::unique_ptr<WatchService> watch_;
  std::unique_ptr<LeaseService> lease_;
  std::unique_ptr<AuthService> auth_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace tandem::router::testing

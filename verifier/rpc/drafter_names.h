#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/rpc/dns_name.h"
#include "verifier/scheduler/drafter_pools.h"

namespace tandem {

// Keeps up who is behind the names that stand for several drafters: "dns:///host:port", every address of
// which is a drafter, asked for again and again in a thread of its own, and "ipv4:1.2.3.4:7003,1.2.3.5:7003",
// a list that stays.
class DrafterNames {
 public:
  struct Options {
    // Between two looks at a name, and the shortest time when a look is called for.
    absl::Duration interval = absl::Seconds(5);
    absl::Duration least_interval = absl::Seconds(1);
    Resolve resolve = ResolveBySystem;
  };
  struct Callbacks {
    // The pool's members, when they are first known and with every look after that; from Acquire or the
    // thread. `server_name`: what a member's certificate names; empty: its address.
    std::function<void(PoolId, std::vector<std::string> addresses, const std::string& server_name)>
        on_members;
    // The name has given its place to another one.
    std::function<void(PoolId)> on_gone;
  };
  static constexpr size_t kMostNames = 256;

  DrafterNames(const Options& options, Callbacks callbacks, const Clock* clock);
  ~DrafterNames();
  DrafterNames(const DrafterNames&) = delete;
  DrafterNames& operator=(const DrafterNames&) = delete;

  // The pool that `endpoint` stands for; 0: it is one drafter. InvalidArgument: it begins as a name and is
  // none.
  absl::StatusOr<PoolId> Acquire(const std::string& endpoint);
  // A drafter was lost: look soon.
  void Hurry();

 private:
  struct Name {
    std::string endpoint;
    DnsName dns;                         // Of a name that is asked for.
    std::vector<std::string> addresses;  // Of a list, which has no `dns`.
    absl::Time last_used;
    absl::Time last_look = absl::InfinitePast();
  };

  void Run();
  // The pool that is to be looked at next; nothing: none.
  absl::Time NextLook(PoolId* pool) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Callbacks callbacks_;
  const Clock* const clock_;
  absl::Mutex mutex_;
  absl::flat_hash_map<PoolId, Name> names_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, PoolId> ids_ ABSL_GUARDED_BY(mutex_);
  PoolId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Time hurry_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem

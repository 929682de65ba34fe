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

// Tracks the members of names that stand for several drafters. Every address of "dns:///host:port" is a
// drafter; a thread of this class resolves the name repeatedly. "ipv4:1.2.3.4:7003,1.2.3.5:7003" is a fixed
// list.
class DrafterNames {
 public:
  struct Options {
    // Time between two lookups of a name, and the least time if a lookup is requested.
    absl::Duration interval = absl::Seconds(5);
    absl::Duration least_interval = absl::Seconds(1);
    Resolve resolve = ResolveBySystem;
  };
  struct Callbacks {
    // The pool's members, when they are first known and after every lookup; called from Acquire or the
    // thread. `server_name`: the name in a member's certificate; empty: its address.
    std::function<void(PoolId, std::vector<std::string> addresses, const std::string& server_name)>
        on_members;
    // The name was replaced by another one.
    std::function<void(PoolId)> on_gone;
  };
  static constexpr size_t kMostNames = 256;

  DrafterNames(const Options& options, Callbacks callbacks, const Clock* clock);
  ~DrafterNames();
  DrafterNames(const DrafterNames&) = delete;
  DrafterNames& operator=(const DrafterNames&) = delete;

  // The pool of `endpoint`; 0 if it is a single drafter. InvalidArgument if it begins like a name but is
  // none.
  absl::StatusOr<PoolId> Acquire(const std::string& endpoint);
  // A drafter was lost: requests a lookup soon.
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
  // The time of the next lookup, and its pool.
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

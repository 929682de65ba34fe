#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/admission/admission.h"
#include "router/config/config.h"
#include "router/state/lease_store.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {

// Applies tenants' limits to all routers that share a store with leases, not to each of them: every second a
// router writes what its tenants have used (v1::QuotaUsage, "quotas/ROUTER") and reads what the others wrote.
//
// Between two exchanges, a router does not know what the others admit. So a tenant that floods R routers can,
// once, exceed its limit by what R - 1 of them admit within a second. It then owes these tokens, and its
// requests in flight come down to the limit as they end. A router that starts takes the remaining tokens from
// the others.
//
// If the store has been out of reach for the ttl of its leases, every router admits its part: limit and quota
// divided by the last known number of routers. If only one router is cut off, it admits its part while the
// others share the whole limit. Requests never wait for the store.
//
// Thread-safe.
class SharedQuotas {
 public:
  struct Options {
    // A name of this process that no other router has or will have.
    std::string router;
    // The limits in force.
    std::function<std::shared_ptr<const RoutingTable>()> table;
    const Clock* clock = nullptr;
    absl::Duration interval = absl::Seconds(1);
    // After this time, a router that is gone is forgotten, and an unreachable store counts as lost.
    absl::Duration ttl = absl::Seconds(10);
  };

  // All arguments outlive the object. The constructor makes the first exchange; a thread of the object makes
  // the others, unless `options.interval` is infinite.
  SharedQuotas(Options options, Admission* admission, LeaseStore* store);
  ~SharedQuotas();
  SharedQuotas(const SharedQuotas&) = delete;
  SharedQuotas& operator=(const SharedQuotas&) = delete;

  // Makes one exchange. Errors of the store; the limits are then as described above.
  absl::Status Exchange() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Tokens that tenants have used on one other router, by tenant name.
  using Used = std::map<std::string, double>;

  void Run();
  absl::Status Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeRecord(const v1::QuotaUsage& record, const Used* before, Used& now,
                  Admission::Elsewhere& elsewhere) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Admission& admission_;
  LeaseStore& store_;
  absl::Mutex mutex_;
  std::string key_ ABSL_GUARDED_BY(mutex_);
  uint32_t num_times_alone_ ABSL_GUARDED_BY(mutex_) = 0;
  Used base_ ABSL_GUARDED_BY(mutex_);  // By tenant: used here before what is written begins.
  LeasedEntry written_ ABSL_GUARDED_BY(mutex_);
  absl::Time renewed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // By the keys of the other routers.
  std::map<std::string, Used> seen_ ABSL_GUARDED_BY(mutex_);
  // True until the first exchange after a start or an outage: what others have used meanwhile is unknown, so
  // their figure of what is left counts.
  bool begins_ ABSL_GUARDED_BY(mutex_) = true;
  bool alone_ ABSL_GUARDED_BY(mutex_) = false;  // The store is out of reach.
  absl::Time last_exchange_ ABSL_GUARDED_BY(mutex_);
  size_t num_routers_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::router

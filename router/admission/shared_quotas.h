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

// Makes tenants' limits those of all routers that share a store with leases, not of each: every second a
// router writes what its tenants have used (v1::QuotaUsage, "quotas/ROUTER") and reads what the others wrote.
//
// Between two exchanges a router does not know what others admit. So a tenant that floods R routers gets too
// much by what R - 1 of them admit within a second, once: tokens are then owed, and requests in flight come
// down to the limit as they end. A router that starts takes over what the others know to be left.
//
// When the store has been out of reach for as long as its leases last, every router admits its part: limit
// and quota divided by the number of routers that there were. One that is cut off alone does so beside the
// others, who share the whole. Requests never wait for the store.
//
// Thread-safe.
class SharedQuotas {
 public:
  struct Options {
    // Names this process among all routers, now and later.
    std::string router;
    // The limits in force.
    std::function<std::shared_ptr<const RoutingTable>()> table;
    const Clock* clock = nullptr;
    absl::Duration interval = absl::Seconds(1);
    // After which a router that is gone is forgotten, and a store out of reach not waited for.
    absl::Duration ttl = absl::Seconds(10);
  };

  // All outlive the object. The first exchange is made here, and later ones on a thread of the object's own,
  // unless `options.interval` is infinite.
  SharedQuotas(Options options, Admission* admission, LeaseStore* store);
  ~SharedQuotas();
  SharedQuotas(const SharedQuotas&) = delete;
  SharedQuotas& operator=(const SharedQuotas&) = delete;

  // Errors of the store, after which the limits are as said above.
  absl::Status Exchange() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Tokens that a tenant has used, by its name, on one other router.
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
  // What others used until now is not known: they say what is left.
  bool begins_ ABSL_GUARDED_BY(mutex_) = true;
  bool alone_ ABSL_GUARDED_BY(mutex_) = false;  // The store is out of reach.
  absl::Time last_exchange_ ABSL_GUARDED_BY(mutex_);
  size_t num_routers_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::router

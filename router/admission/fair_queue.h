#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace tandem::router {

// Orders the waiting requests of many tenants by start-time fair queueing (Goyal, Vin and Cheng, 1996).
// Tenants that always have waiting requests get places in proportion to their weights, whatever the others
// do, and every request gets its turn.
//
// A request gets the start tag max(virtual time, finish tag of its tenant's last request) and the finish tag
// start + size / weight. The request with the lowest start tag is served next, and its tag becomes the
// virtual time. Ties go to the tenant whose name sorts first. A tenant that was idle starts at the virtual
// time: idle time neither earns nor costs anything.
//
// Plain logic. Not thread-safe.
class FairQueue {
 public:
  using Id = uint64_t;

  // Enqueues a request of a tenant; `id` must not be in the queue. A weight of 0 counts as 1. `size`: how
  // many ordinary requests it counts for, below 2^16. Among a tenant's own requests, the lowest `priority`
  // comes first, then the oldest. Priorities have no effect between tenants.
  void Push(Id id, const std::string& tenant, uint32_t weight, uint32_t size = 1, int32_t priority = 0);

  // Removes and returns the next request of a tenant for which `eligible` is true; nullopt if there is none.
  std::optional<Id> Pop(const std::function<bool(const std::string& tenant)>& eligible);

  // Removes a request that no longer waits. False if it is not in the queue.
  bool Remove(Id id);

  size_t size() const { return tenant_of_.size(); }
  size_t size(const std::string& tenant) const;

 private:
  using Order = std::pair<int32_t, uint64_t>;  // Priority, and order of arrival.
  struct Waiting {
    Id id = 0;
    uint32_t size = 1;
  };
  struct Tenant {
    std::map<Order, Waiting> waiting;
    uint64_t start = 0;  // Tag of the first one.
    uint64_t last_finish = 0;
    uint32_t weight = 1;
  };
  struct Place {
    std::string tenant;
    Order order;
  };

  // Gives the tenant's first request its tag, or deletes the tenant's state if it equals that of a new
  // tenant.
  void Advance(std::map<std::string, Tenant>::iterator tenant);

  std::map<std::string, Tenant> tenants_;
  std::unordered_map<Id, Place> tenant_of_;
  uint64_t next_arrival_ = 0;
  uint64_t virtual_time_ = 0;
};

}  // namespace tandem::router

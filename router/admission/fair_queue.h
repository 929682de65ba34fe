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

// Who is next among waiting requests of many tenants: start-time fair queueing (Goyal, Vin and Cheng, 1996),
// in which tenants that wait all the time get places in proportion to their weights, whatever the others ask
// for, and nobody waits for ever.
//
// A request gets the start tag max(virtual time, finish tag of its tenant's last request) and the finish tag
// start + size / weight; the lowest start tag is served next, and becomes the virtual time. Among equal tags
// the tenant that came first in the alphabet is. A tenant that was idle begins at the virtual time: it
// neither saves up nor owes.
//
// Plain logic, not thread-safe.
class FairQueue {
 public:
  using Id = uint64_t;

  // Enqueues a request of a tenant; `id` is not in the queue. A weight of 0 counts as 1. `size` says for how
  // many ordinary requests it counts, below 2^16. Of a tenant's own requests that with the lowest `priority`
  // is the first, and of equal ones the oldest; between tenants priorities count for nothing.
  void Push(Id id, const std::string& tenant, uint32_t weight, uint32_t size = 1, int32_t priority = 0);

  // Takes out the next request of a tenant that `eligible` lets pass; nothing when there is none.
  std::optional<Id> Pop(const std::function<bool(const std::string& tenant)>& eligible);

  // Takes out a request that no longer waits. False when it is not in the queue.
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

  // Gives the tenant's first request its tag, or forgets the tenant when nothing tells it from a new one.
  void Advance(std::map<std::string, Tenant>::iterator tenant);

  std::map<std::string, Tenant> tenants_;
  std::unordered_map<Id, Place> tenant_of_;
  uint64_t next_arrival_ = 0;
  uint64_t virtual_time_ = 0;
};

}  // namespace tandem::router

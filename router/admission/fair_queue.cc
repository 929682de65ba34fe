#include "router/admission/fair_queue.h"

#include <algorithm>
#include <iterator>

namespace tandem::router {
namespace {

// Virtual time that a request of size 1 takes at weight 1. Divides evenly enough by every weight, and leaves
// room for 2^40 of them.
constexpr uint64_t kRequestCost = uint64_t{1} << 24;

}  // namespace

void FairQueue::Push(Id id, const std::string& tenant, uint32_t weight, uint32_t size, int32_t priority) {
  const auto found = tenants_.try_emplace(tenant).first;
  Tenant& queue = found->second;
  queue.weight = std::max<uint32_t>(weight, 1);
  const bool first = queue.waiting.empty();
  const Order order = {priority, next_arrival_++};
  queue.waiting.emplace(order, Waiting{.id = id, .size = size});
  tenant_of_.emplace(id, Place{.tenant = tenant, .order = order});
  if (first) queue.start = std::max(virtual_time_, queue.last_finish);
}

std::optional<FairQueue::Id> FairQueue::Pop(const std::function<bool(const std::string& tenant)>& eligible) {
  auto best = tenants_.end();
  for (auto tenant = tenants_.begin(); tenant != tenants_.end(); ++tenant) {
    if (tenant->second.waiting.empty()) continue;
    if (best != tenants_.end() && tenant->second.start >= best->second.start) continue;
    if (eligible(tenant->first)) best = tenant;
  }
  if (best == tenants_.end()) return std::nullopt;
  Tenant& queue = best->second;
  const auto [id, size] = queue.waiting.begin()->second;
  queue.waiting.erase(queue.waiting.begin());
  tenant_of_.erase(id);
  // A tenant that had reached a limit of its own may come with an old tag; time does not run back.
  virtual_time_ = std::max(virtual_time_, queue.start);
  queue.last_finish = queue.start + size * (kRequestCost / queue.weight);
  Advance(best);
  return id;
}

bool FairQueue::Remove(Id id) {
  const auto found = tenant_of_.find(id);
  if (found == tenant_of_.end()) return false;
  const auto tenant = tenants_.find(found->second.tenant);
  // The request behind it takes over the tag: leaving does not cost the tenant its turn.
  tenant->second.waiting.erase(found->second.order);
  tenant_of_.erase(found);
  if (tenant->second.waiting.empty()) Advance(tenant);
  return true;
}

size_t FairQueue::size(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second.waiting.size();
}

void FairQueue::Advance(std::map<std::string, Tenant>::iterator tenant) {
  Tenant& queue = tenant->second;
  if (!queue.waiting.empty()) {
    queue.start = std::max(virtual_time_, queue.last_finish);
  }
  // Tenants whose finish tag the virtual time has reached are as new. Those ahead of it are few: they are
  // forgotten when they next come and go, or here.
  for (auto other = tenants_.begin(); other != tenants_.end();) {
    const bool as_new = other->second.waiting.empty() && other->second.last_finish <= virtual_time_;
    other = as_new ? tenants_.erase(other) : std::next(other);
  }
}

}  // namespace tandem::router

#include "router/state/memory_lease_store.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/state/memory_store.h"

namespace tandem::router {

void MemoryLeaseStore::Sweep() {
  const absl::Time now = clock_->Now();
  for (auto held = held_.begin(); held != held_.end();) {
    held = held->second.end <= now ? held_.erase(held) : std::next(held);
  }
}

absl::StatusOr<std::vector<LeasedEntry>> MemoryLeaseStore::ListLeased(absl::string_view prefix) {
  absl::MutexLock lock(&mutex_);
  Sweep();
  std::vector<LeasedEntry> entries;
  for (auto held = held_.lower_bound(prefix); held != held_.end() && absl::StartsWith(held->first, prefix);
       ++held) {
    entries.push_back(held->second.entry);
  }
  return entries;
}

absl::StatusOr<LeasedEntry> MemoryLeaseStore::PutLeased(const Put& put) {
  LeasedEntry entry{.key = put.key, .value = put.value};
  {
    absl::MutexLock lock(&mutex_);
    Sweep();
    const auto found = held_.find(put.key);
    TANDEM_RETURN_IF_ERROR(CheckExpectedVersion({.key = put.key, .expected_version = put.expected_version},
                                                found == held_.end() ? 0 : found->second.entry.version));
    entry.version = ++version_;
    entry.lease = static_cast<int64_t>(entry.version);
    held_[put.key] = {.entry = entry, .ttl = put.ttl, .end = clock_->Now() + put.ttl};
  }
  watches_.Notify({put.key});
  return entry;
}

absl::Status MemoryLeaseStore::RenewLease(const LeasedEntry& entry) {
  absl::MutexLock lock(&mutex_);
  Sweep();
  const auto found = held_.find(entry.key);
  if (found == held_.end() || found->second.entry.lease != entry.lease) {
    return absl::NotFoundError(absl::StrCat("the lease of \"", entry.key, "\" has ended"));
  }
  found->second.end = clock_->Now() + found->second.ttl;
  return absl::OkStatus();
}

std::unique_ptr<RoutingStore::Watch> MemoryLeaseStore::WatchPrefix(std::string prefix,
                                                                   std::function<void()> on_change) {
  return watches_.Add(std::move(prefix), std::move(on_change));
}

}  // namespace tandem::router

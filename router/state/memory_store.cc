#include "router/state/memory_store.h"

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::router {

absl::Status CheckChanges(absl::Span<const StoreChange> changes) {
  std::set<absl::string_view> keys;
  for (const StoreChange& change : changes) {
    if (change.key.empty()) return absl::InvalidArgumentError("a change of the store has an empty key");
    if (!keys.insert(change.key).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("key \"", change.key, "\" is changed twice in one transaction"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExpectedVersion(const StoreChange& change, uint64_t version) {
  if (!change.expected_version.has_value() || *change.expected_version == version) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("\"", change.key, "\" has changed in the meantime: its version is ",
                                         version, ", expected ", *change.expected_version));
}

absl::StatusOr<RoutingStore::Listing> MemoryStore::List(absl::string_view prefix) {
  absl::MutexLock lock(&mutex_);
  Listing listing{.version = version_};
  for (auto entry = entries_.lower_bound(prefix);
       entry != entries_.end() && absl::StartsWith(entry->first, prefix); ++entry) {
    listing.entries.push_back(entry->second);
  }
  return listing;
}

absl::StatusOr<std::optional<StoredEntry>> MemoryStore::Get(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return std::nullopt;
  return entry->second;
}

absl::StatusOr<uint64_t> MemoryStore::Update(absl::Span<const StoreChange> changes) {
  TANDEM_RETURN_IF_ERROR(CheckChanges(changes));
  std::vector<std::string> keys;
  uint64_t version = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (const StoreChange& change : changes) {
      const auto entry = entries_.find(change.key);
      TANDEM_RETURN_IF_ERROR(
          CheckExpectedVersion(change, entry == entries_.end() ? 0 : entry->second.version));
    }
    version = ++version_;
    for (const StoreChange& change : changes) {
      keys.push_back(change.key);
      if (!change.value.has_value()) {
        entries_.erase(change.key);
        continue;
      }
      StoredEntry& entry = entries_[change.key];
      entry = {.key = change.key, .value = *change.value, .version = version};
    }
  }
  watches_.Notify(keys);
  return version;
}

std::unique_ptr<RoutingStore::Watch> MemoryStore::WatchPrefix(std::string prefix,
                                                              std::function<void()> on_change) {
  return watches_.Add(std::move(prefix), std::move(on_change));
}

}  // namespace tandem::router

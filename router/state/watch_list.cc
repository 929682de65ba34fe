#include "router/state/watch_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace tandem::router {

class WatchList::Entry final : public RoutingStore::Watch {
 public:
  explicit Entry(WatchList* list) : list_(list) {}
  ~Entry() override {
    absl::MutexLock lock(&list_->mutex_);
    list_->watchers_.erase(this);
  }

 private:
  WatchList* const list_;
};

std::unique_ptr<RoutingStore::Watch> WatchList::Add(std::string prefix, std::function<void()> on_change) {
  auto entry = std::make_unique<Entry>(this);
  absl::MutexLock lock(&mutex_);
  watchers_.emplace(entry.get(), Watcher{std::move(prefix), std::move(on_change)});
  return entry;
}

void WatchList::Notify(const std::vector<std::string>& keys) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [entry, watcher] : watchers_) {
    const auto concerns = [&prefix = watcher.prefix](const std::string& key) {
      return absl::StartsWith(key, prefix);
    };
    if (std::any_of(keys.begin(), keys.end(), concerns)) watcher.on_change();
  }
}

void WatchList::NotifyAll() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [entry, watcher] : watchers_) watcher.on_change();
}

}  // namespace tandem::router

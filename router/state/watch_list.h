#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/state/routing_store.h"

namespace tandem::router {

// Who watches which keys of a store. Thread-safe; outlives its watches.
class WatchList {
 public:
  std::unique_ptr<RoutingStore::Watch> Add(std::string prefix, std::function<void()> on_change);

  // Calls every watch that one of the keys concerns, once.
  void Notify(const std::vector<std::string>& keys);
  // Calls every watch: something has changed, it is not known what.
  void NotifyAll();

 private:
  class Entry;
  struct Watcher {
    std::string prefix;
    std::function<void()> on_change;
  };

  // Held while callbacks run, so that ending a watch waits for them.
  absl::Mutex mutex_;
  std::map<const Entry*, Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router

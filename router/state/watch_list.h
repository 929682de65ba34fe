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

// The watches of a store, with the keys that they watch. Thread-safe. Outlives its watches.
class WatchList {
 public:
  std::unique_ptr<RoutingStore::Watch> Add(std::string prefix, std::function<void()> on_change);

  // Calls, once, every watch that watches one of the keys.
  void Notify(const std::vector<std::string>& keys);
  // Calls every watch, because something unknown has changed.
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

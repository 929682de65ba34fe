#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::router {

// An event for browsers (docs/operate/live.md).
struct LiveEvent {
  uint64_t id = 0;   // From 1, without gaps.
  std::string type;  // "start", "started", "round", "note" or "end".
  std::string json;  // One line.
};

// Carries events of shown requests to the browsers that watch.
//
//   calls --Publish--> the last events, bounded in number and bytes --Next--> watchers, each at its own pace
//
// Events are stored once for all watchers; a watcher is a position in them. A watcher that reads more slowly
// than events arrive loses the oldest, and learns how many. A watcher that connects or reconnects starts with
// the stored events. A request is shown if somebody watched when it began; if nobody watches, a request costs
// one read of a counter.
//
// Thread-safe; publishing never waits for a watcher. Outlives its watchers and publishers.
class LiveFeed {
 public:
  struct Options {
    bool all_requests = false;  // Not only those that ask for it.
    bool prompts = false;
    size_t max_watchers = 16;
    size_t max_events = 4096;
    size_t max_bytes = size_t{8} << 20;
  };

  // `instance`: letters and digits that distinguish this feed from others, for example from that of an
  // earlier process of this router.
  LiveFeed(const Options& options, std::string instance)
      : options_(options), instance_(std::move(instance)) {}

  const Options& options() const { return options_; }
  const std::string& instance() const { return instance_; }

  // Whether to show a request that begins now. `asked`: the request allows it.
  bool Wanted(bool asked) const {
    return num_watchers_.load(std::memory_order_relaxed) > 0 && (asked || options_.all_requests);
  }
  // A number for a generation, unique in this feed.
  uint64_t NextGeneration() { return next_generation_.fetch_add(1, std::memory_order_relaxed); }

  // Drops an event that is larger than the bound on all stored events.
  void Publish(absl::string_view type, std::string json);

  class Watcher {
   public:
    // The events that one call of Next returns.
    struct Batch {
      uint64_t missed = 0;  // Events that were dropped before these.
      std::vector<std::shared_ptr<const LiveEvent>> events;
      bool closed = false;  // There will be no more after these.
    };
    static constexpr size_t kMaxBatch = 64;

    ~Watcher();
    Watcher(const Watcher&) = delete;
    Watcher& operator=(const Watcher&) = delete;

    // The next events, at most kMaxBatch. None if none arrive before `timeout` or Close.
    Batch Next(absl::Duration timeout);

   private:
    friend class LiveFeed;
    Watcher(LiveFeed& feed, uint64_t next) : feed_(feed), next_(next) {}

    LiveFeed& feed_;
    uint64_t next_;  // Id of the next event.
  };

  // Starts watching after the event `seen`. 0, or an id that never existed: from the first stored event.
  // ResourceExhausted if the maximum number of watchers is reached, Unavailable after Close.
  absl::StatusOr<std::unique_ptr<Watcher>> Watch(uint64_t seen = 0);

  // Ends all watching for good.
  void Close();

  // Changes with every event, with Close and with Wake.
  uint64_t news() const;
  // Waits until news() is not `known` any more, at most for `timeout`.
  void AwaitNews(uint64_t known, absl::Duration timeout);
  // Ends AwaitNews.
  void Wake();
  // Waits until nobody watches any more, at most for `timeout`.
  void AwaitNoWatchers(absl::Duration timeout);

  size_t num_watchers() const { return num_watchers_.load(std::memory_order_relaxed); }

 private:
  const Options options_;
  const std::string instance_;
  std::atomic<size_t> num_watchers_{0};  // Changed with the mutex held.
  std::atomic<uint64_t> next_generation_{1};
  mutable absl::Mutex mutex_;
  std::deque<std::shared_ptr<const LiveEvent>> events_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // Of events_.
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;  // Of all that ever were.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t news_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::router

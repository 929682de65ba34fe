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

// Something that happened, as browsers are told of it (docs/operate/live.md).
struct LiveEvent {
  uint64_t id = 0;   // From 1, without gaps.
  std::string type;  // "start", "started", "round", "note" or "end".
  std::string json;  // One line.
};

// What the requests that are shown do, on its way to the browsers that watch.
//
//   calls --Publish--> the last events, bounded in number and bytes --Next--> watchers, each at its own pace
//
// Events are kept once, whoever watches: a watcher is a place in them. One that reads more slowly than events
// come loses the oldest, and is told how many. One that comes, or comes back, begins with what is kept.
// Requests are shown if somebody watched when they began; with nobody watching, a request costs one look at a
// counter.
//
// Thread-safe; publishing never waits for a watcher. Outlives its watchers and those who publish.
class LiveFeed {
 public:
  struct Options {
    bool all_requests = false;  // Not only those that ask for it.
    bool prompts = false;
    size_t max_watchers = 16;
    size_t max_events = 4096;
    size_t max_bytes = size_t{8} << 20;
  };

  // `instance` tells this feed from others, such as those of a router that was here before; letters and
  // digits.
  LiveFeed(const Options& options, std::string instance)
      : options_(options), instance_(std::move(instance)) {}

  const Options& options() const { return options_; }
  const std::string& instance() const { return instance_; }

  // Whether a request that begins now is to be shown; `asked`: it says that it may be.
  bool Wanted(bool asked) const {
    return num_watchers_.load(std::memory_order_relaxed) > 0 && (asked || options_.all_requests);
  }
  // Names a generation among all of this feed.
  uint64_t NextGeneration() { return next_generation_.fetch_add(1, std::memory_order_relaxed); }

  // Drops an event larger than all that may be kept.
  void Publish(absl::string_view type, std::string json);

  class Watcher {
   public:
    // One call's share of what happened.
    struct Batch {
      uint64_t missed = 0;  // Events that were dropped before these.
      std::vector<std::shared_ptr<const LiveEvent>> events;
      bool closed = false;  // There will be no more after these.
    };
    static constexpr size_t kMaxBatch = 64;

    ~Watcher();
    Watcher(const Watcher&) = delete;
    Watcher& operator=(const Watcher&) = delete;

    // What comes next: at most kMaxBatch events, none when there are none until `timeout` or the end.
    Batch Next(absl::Duration timeout);

   private:
    friend class LiveFeed;
    Watcher(LiveFeed& feed, uint64_t next) : feed_(feed), next_(next) {}

    LiveFeed& feed_;
    uint64_t next_;  // Id of the event to be told next.
  };

  // Begins after the event `seen`, 0 for the first that is kept; one that never was is taken for 0.
  // ResourceExhausted when as many watch as may, Unavailable after Close.
  absl::StatusOr<std::unique_ptr<Watcher>> Watch(uint64_t seen = 0);

  // Ends all watching, for good.
  void Close();
  // Returns when nobody watches any more, or after `timeout`.
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
};

}  // namespace tandem::router

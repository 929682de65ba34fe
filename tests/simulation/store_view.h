#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "router/state/lease_store.h"
#include "router/state/memory_lease_store.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/random.h"

namespace tandem::simulation {

// One router's connection to the store of leases that all routers share. Calls take time, may be lost, or may
// be carried out without an answer. Watches report late, or only after they are set again.
class StoreView final : public router::LeaseStore {
 public:
  // `clock` is the router's. All outlive the view.
  StoreView(EventQueue* queue, router::MemoryLeaseStore* store, Random random)
      : queue_(*queue), store_(*store), random_(random) {}

  void SetClock(MachineClock* clock) { clock_ = clock; }
  void LoseFor(absl::Duration duration) { Extend(&away_until_, duration); }
  void LoseAnswersFor(absl::Duration duration) { Extend(&no_answers_until_, duration); }
  void LoseWatchFor(absl::Duration duration) {
    Extend(&no_watch_until_, duration);
    queue_.After(duration, [this] { Tell(); });
  }

  absl::StatusOr<std::vector<router::LeasedEntry>> ListLeased(absl::string_view prefix) override {
    return Ask([&] { return store_.ListLeased(prefix); });
  }
  absl::StatusOr<router::LeasedEntry> PutLeased(const Put& put) override {
    return Ask([&] { return store_.PutLeased(put); });
  }
  absl::Status RenewLease(const router::LeasedEntry& entry) override {
    return Ask([&] { return store_.RenewLease(entry); });
  }
  std::unique_ptr<router::RoutingStore::Watch> WatchPrefix(std::string prefix,
                                                           std::function<void()> on_change) override {
    on_change_ = std::make_shared<std::function<void()>>(std::move(on_change));
    return store_.WatchPrefix(std::move(prefix), [this] {
      queue_.After(random_.Between(absl::ZeroDuration(), absl::Milliseconds(20)), [this] { Tell(); });
    });
  }
  absl::Status health() const override { return is_away() || answers_are_lost() ? Lost() : absl::OkStatus(); }

  // As a store does for leases that end.
  void Tell() {
    if (queue_.now() < no_watch_until_) {
      ++num_untold_;
      return;
    }
    if (on_change_ != nullptr && !closed_ && !is_away()) (*on_change_)();
  }
  // The router that it belongs to has ended.
  void Close() { closed_ = true; }

  uint64_t num_failed() const { return num_failed_; }          // Calls that did not come through,
  uint64_t num_unanswered() const { return num_unanswered_; }  // or were carried out without an answer,
  uint64_t num_untold() const { return num_untold_; }          // and changes that were not told at once.

 private:
  void Extend(absl::Time* until, absl::Duration duration) {
    *until = std::max(*until, queue_.now() + duration);
  }
  bool is_away() const { return queue_.now() < away_until_; }
  bool answers_are_lost() const { return queue_.now() < no_answers_until_; }
  static absl::Status Lost() { return absl::UnavailableError("the store does not answer"); }

  template <typename Do>
  auto Ask(const Do& perform) -> decltype(perform()) {
    clock_->Spend(random_.Between(absl::Microseconds(100), absl::Milliseconds(2)));
    if (is_away()) {
      ++num_failed_;
      return Lost();
    }
    auto result = perform();
    if (!answers_are_lost()) return result;
    ++num_unanswered_;
    return Lost();
  }

  EventQueue& queue_;
  router::MemoryLeaseStore& store_;
  MachineClock* clock_ = nullptr;
  Random random_;
  std::shared_ptr<std::function<void()>> on_change_;
  bool closed_ = false;
  absl::Time away_until_ = absl::InfinitePast();
  absl::Time no_answers_until_ = absl::InfinitePast();
  absl::Time no_watch_until_ = absl::InfinitePast();
  uint64_t num_failed_ = 0;
  uint64_t num_unanswered_ = 0;
  uint64_t num_untold_ = 0;
};

}  // namespace tandem::simulation

#include "tests/simulation/event_queue.h"

#include <algorithm>
#include <utility>

namespace tandem::simulation {

void EventQueue::At(absl::Time when, std::function<void()> what) {
  events_.push({.when = std::max(when, now_), .number = ++last_number_, .what = std::move(what)});
}

bool EventQueue::RunNext() {
  if (events_.empty()) return false;
  const Event event = events_.top();
  events_.pop();
  now_ = event.when;
  event.what();
  return true;
}

void Machine::Post(std::function<void()> event) {
  inbox_.push_back(std::move(event));
  WakeAt(clock_.Now());
}

void Machine::WakeAt(absl::Time when) {
  when = std::max(when, clock_.Now());
  if (when >= wake_at_ || when == absl::InfiniteFuture()) return;
  wake_at_ = when;
  queue_->At(when, [this, number = ++wake_number_] {
    if (number == wake_number_) Run();
  });
}

void Machine::Run() {
  wake_at_ = absl::InfiniteFuture();
  if (clock_.Now() > queue_->now()) return WakeAt(clock_.Now());
  const std::vector<std::function<void()>> events = std::exchange(inbox_, {});
  for (const std::function<void()>& event : events) event();
  Work(events.empty());
  WakeAt(inbox_.empty() ? NextWork() : absl::InfinitePast());
}

}  // namespace tandem::simulation

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

absl::Time MachineClock::ReachedAt(absl::Time machine_time) const {
  absl::Time reached = WithoutDrift(machine_time);
  for (const Jumped& jump : jumps_) {
    // Before this jump the clock got there by itself.
    if (reached <= jump.when) return reached;
    reached = std::max(jump.when, WithoutDrift(machine_time - jump.ahead));
  }
  return reached;
}

void Machine::Kill() {
  killed_ = true;
  inbox_.clear();
}

void Machine::Post(std::function<void()> event) {
  if (killed_) return;
  inbox_.push_back(std::move(event));
  WakeAt(clock_.queue_now());
}

void Machine::WakeAt(absl::Time when) {
  when = std::max(when, clock_.queue_now());
  if (when >= wake_at_ || when == absl::InfiniteFuture()) return;
  wake_at_ = when;
  queue_->At(when, [this, number = ++wake_number_] {
    if (number == wake_number_) Run();
  });
}

void Machine::Run() {
  wake_at_ = absl::InfiniteFuture();
  if (killed_) return;
  if (clock_.queue_now() > queue_->now()) return WakeAt(clock_.queue_now());
  const std::vector<std::function<void()>> events = std::exchange(inbox_, {});
  for (const std::function<void()>& event : events) {
    if (!killed_) event();
  }
  if (killed_) return;
  Work(events.empty());
  WakeAt(inbox_.empty() ? clock_.ToQueue(NextWork()) : absl::InfinitePast());
}

}  // namespace tandem::simulation

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/engine/engine.h"

namespace tandem::simulation {

// Simulated time: events, ordered by their time, and at the same moment by when they were scheduled.
class EventQueue {
 public:
  absl::Time now() const { return now_; }
  // Moments that have passed count as now.
  void At(absl::Time when, std::function<void()> what);
  void After(absl::Duration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  // Runs the next event; false when there is none.
  bool RunNext();

 private:
  struct Event {
    absl::Time when;
    uint64_t number = 0;
    std::function<void()> what;
    bool operator>(const Event& other) const {
      return when != other.when ? when > other.when : number > other.number;
    }
  };
  absl::Time now_ = absl::UnixEpoch();
  uint64_t last_number_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
};

// One machine's clock. While the machine computes, it runs ahead of the queue, which stands still. Each
// machine has its own time of day, so no two machines agree. A clock can jump ahead, like that of a suspended
// machine, and run fast or slow. It never goes back.
class MachineClock final : public Clock {
 public:
  explicit MachineClock(const EventQueue* queue) : queue_(queue) {}
  absl::Time Now() const override { return FromQueue(queue_now()); }
  // The same moment as the queue counts.
  absl::Time queue_now() const { return std::max(queue_->now(), busy_until_); }
  absl::Time ToQueue(absl::Time machine_time) const { return WithoutDrift(machine_time - ahead()); }
  absl::Time FromQueue(absl::Time queue_time) const {
    return queue_time + ahead() + drift_ * (queue_time - absl::UnixEpoch());
  }

  void Spend(absl::Duration duration) { busy_until_ = queue_now() + duration; }
  // Gains (or loses) such a share of the time from the queue's beginning on; to be set there.
  void SetDrift(double drift) { drift_ = drift; }
  void Jump(absl::Duration duration) { jumps_.push_back({queue_now(), ahead() + duration}); }
  // When, as the queue counts, this clock reaches `machine_time`, as far as it has jumped until now.
  absl::Time ReachedAt(absl::Time machine_time) const;

 private:
  struct Jumped {
    absl::Time when;  // As the queue counts.
    absl::Duration ahead;
  };
  // When the queue is there, of a clock that has not jumped.
  absl::Time WithoutDrift(absl::Time machine_time) const {
    if (drift_ == 0.0) return machine_time;
    // Rounded up: a clock is not to be behind what it was to reach.
    return absl::UnixEpoch() + (machine_time - absl::UnixEpoch()) / (1.0 + drift_) + absl::Nanoseconds(1);
  }
  absl::Duration ahead() const { return jumps_.empty() ? absl::ZeroDuration() : jumps_.back().ahead; }

  const EventQueue* queue_;
  double drift_ = 0.0;
  absl::Time busy_until_ = absl::InfinitePast();
  std::vector<Jumped> jumps_;
};

// An engine that takes simulated time from Start on. It computes at the end.
class TimedEngine final : public Engine {
 public:
  TimedEngine(Engine* engine, MachineClock* clock, absl::Duration per_step, absl::Duration per_row)
      : engine_(engine), clock_(clock), per_step_(per_step), per_row_(per_row) {}

  const ModelConfig& config() const override { return engine_->config(); }
  uint32_t num_blocks() const override { return engine_->num_blocks(); }
  uint32_t max_rows() const override { return engine_->max_rows(); }
  bool chooses() const override { return engine_->chooses(); }
  bool has_features() const override { return engine_->has_features(); }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    Spend(rows);
    return engine_->Step(rows);
  }
  absl::Status Start(absl::Span<const StepRow> rows) override {
    Spend(rows);
    return engine_->Start(rows);
  }
  absl::Status Finish() override { return engine_->Finish(); }
  bool overlaps() const override { return true; }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_->CopyKv(copies); }

 private:
  void Spend(absl::Span<const StepRow> rows) {
    clock_->Spend(per_step_ + per_row_ * static_cast<double>(rows.size()));
  }

  Engine* const engine_;
  MachineClock* const clock_;
  const absl::Duration per_step_;
  const absl::Duration per_row_;
};

// A machine with one thread: when it is free, it takes what has arrived, works, and sleeps until it is due
// again.
class Machine {
 public:
  explicit Machine(EventQueue* queue) : queue_(queue), clock_(queue) {}
  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // `event` runs on the machine's thread, unless the process ends before.
  void Post(std::function<void()> event);
  // The process ends as by SIGKILL: it does nothing any more.
  void Kill();
  bool killed() const { return killed_; }
  // Computes nothing for so long, as by SIGSTOP.
  void Stop(absl::Duration duration) {
    Post([this, duration] { clock_.Spend(duration); });
  }
  void JumpClock(absl::Duration duration) {
    Post([this, duration] { clock_.Jump(duration); });
  }
  MachineClock& clock() { return clock_; }

 protected:
  // Called after events were taken or the machine was due. `was_due`: no event was the reason.
  virtual void Work(bool was_due) = 0;
  // When Work is due if no event comes first, by this machine's clock.
  virtual absl::Time NextWork() const = 0;

 private:
  void WakeAt(absl::Time when);  // As the queue counts.
  void Run();

  EventQueue* const queue_;
  MachineClock clock_;
  std::vector<std::function<void()>> inbox_;
  bool killed_ = false;
  absl::Time wake_at_ = absl::InfiniteFuture();
  uint64_t wake_number_ = 0;  // Of the wake-up that counts; earlier ones have been overtaken.
};

}  // namespace tandem::simulation

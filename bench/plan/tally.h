#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "bench/plan/arrivals.h"
#include "bench/plan/machines.h"
#include "bench/plan/plan.h"
#include "bench/plan/result.h"

namespace tandem::plan {

// How long each machine has computed.
struct BusyTimes {
  BusyTimes() = default;
  BusyTimes(const std::vector<std::unique_ptr<VerifierMachine>>& of_verifiers,
            const std::vector<std::unique_ptr<DrafterMachine>>& of_drafters);

  std::vector<absl::Duration> verifiers;
  std::vector<absl::Duration> drafters;  // In the order of their links.
  uint64_t steps = 0;                    // Of all verifiers.
  uint64_t rows = 0;                     // In these steps.
  uint64_t preemptions = 0;

  void Add(const BusyTimes& other, int sign);
};

// A part of the simulated time, in seconds, that is simulated by itself.
struct Slice {
  double begin = 0.0;
  double end = 0.0;
  bool first = true;  // No other slice counts what comes before it.
};

// Collects the figures of one simulation, and merges those of several slices. Used by one thread.
class Tally {
 public:
  // `traffic` outlives this.
  Tally(const Traffic& traffic, const Slice& slice);

  void OnSent(const PlannedRequest& request, absl::Time sent);
  void OnChosen(const PlannedRequest& request, absl::string_view drafter, absl::Time sent);
  // Tokens of a request sent at `sent` were committed at `now`. The client sees them at `seen`. It saw the
  // tokens before them, or sent the request, at `since`.
  void OnTokens(uint32_t tokens, absl::Time now, absl::Time sent, absl::Time since, absl::Time seen,
                bool first);
  struct CallEnd {
    absl::Time sent, at_router, started, ended;
    uint32_t tokens = 0;
    absl::Status status;
    const SessionSummary* summary = nullptr;
  };
  void OnEnded(const PlannedRequest& request, const CallEnd& end);
  // Tells that nothing happens before `next`.
  void OnTime(absl::Time next, const std::function<BusyTimes()>& busy);

  // Adds the figures of another slice. Both simulations are over.
  void Merge(const Tally& other);

  // Internal if the figures do not add up: a request has not ended exactly once, or a completed request did
  // not get all its tokens.
  absl::StatusOr<Result> Sum(const Layout& layout) const;

 private:
  static constexpr size_t kTimelinePoints = 60;

  double SecondsOf(absl::Time time) const { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }
  bool IsMeasured(absl::Time time) const { return time >= begin_ && time < end_; }
  bool IsShown(absl::Time time) const { return time >= shown_from_ && time < end_; }
  size_t PointOf(absl::Time time) const;
  // Adds to each point of the timeline the part of the time from `from` to `to` that lies in it.
  void Spread(absl::Time from, absl::Time to, double TimelinePoint::*field);
  absl::Duration InWindow(absl::Time from, absl::Time to) const;
  void JudgeSaturation(Result* result) const;

  const Traffic& traffic_;
  const absl::Time begin_;  // Of the measured time.
  const absl::Time end_;
  const absl::Time shown_from_;  // On the timeline.
  const double point_seconds_;

  Result result_;
  DurationHistogram first_token_, token_gap_, latency_, queued_;
  uint64_t window_tokens_ = 0;
  uint64_t window_ended_ = 0;
  absl::Duration in_flight_time_, queued_time_;
  uint64_t in_flight_at_begin_ = 0, in_flight_at_end_ = 0;
  uint64_t short_outputs_ = 0;
  absl::Time last_end_ = absl::UnixEpoch();
  std::optional<BusyTimes> busy_at_begin_;
  std::optional<BusyTimes> busy_;  // Between begin and end.
};

}  // namespace tandem::plan

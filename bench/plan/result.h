#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace tandem::plan {

// A histogram of durations in bins that are 1 % wide. It gives quantiles of millions of durations in little
// memory.
class DurationHistogram {
 public:
  void Add(double seconds, uint64_t count = 1);
  void Merge(const DurationHistogram& other);
  uint64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_); }
  // The duration that a share of `quantile`, in [0, 1], does not exceed, within 1 %. 0 if there are none.
  double Quantile(double quantile) const;

 private:
  std::vector<uint64_t> bins_;
  uint64_t zeros_ = 0;  // Durations below the first bin.
  uint64_t count_ = 0;
  double sum_ = 0.0;
};

struct LatencyFigures {
  uint64_t count = 0;
  double mean_ms = 0.0, p50_ms = 0.0, p90_ms = 0.0, p95_ms = 0.0, p99_ms = 0.0;

  static LatencyFigures Of(const DurationHistogram& histogram);
};

// The figures of one part of the simulated time.
struct TimelinePoint {
  double at_seconds = 0.0;  // When it begins.
  double requests_per_second = 0.0;
  double tokens_per_second = 0.0;
  double in_flight = 0.0;  // Mean number of requests that have arrived and not ended.
  double queued = 0.0;     // Mean number of those that wait at the router or at a verifier.
};

// The result of a simulation. Unless stated otherwise, figures cover the time from the end of the warm-up to
// the last arrival, and the requests that arrive in it.
struct Result {
  double seconds = 0.0;  // The measured time.
  uint64_t arrived = 0;
  uint64_t completed = 0;
  uint64_t refused = 0;
  // Totals of the whole simulation, with the warm-up.
  uint64_t all_arrived = 0, all_completed = 0, all_refused = 0, all_asked_tokens = 0, all_tokens = 0;
  double makespan_seconds = 0.0;  // From the first request to the end of the last one.

  double requests_per_second = 0.0;  // Requests that ended.
  double tokens_per_second = 0.0;    // Tokens that were committed.
  LatencyFigures first_token, token_gap, latency, queued;
  double mean_in_flight = 0.0;
  double mean_queued = 0.0;

  double verifier_utilisation = 0.0;                    // Share of the time in steps, over all verifiers.
  std::map<std::string, double> drafter_utilisation;    // By name.
  std::map<std::string, uint64_t> requests_by_drafter;  // By the chosen drafter; "none": no drafter.
  double mean_step_rows = 0.0;

  uint64_t rounds = 0, drafted_rounds = 0, hits = 0, draft_tokens = 0, accepted_tokens = 0;
  uint64_t preemptions = 0;
  double tokens_per_round = 0.0;

  double price_per_hour = 0.0;
  double cost_per_million_tokens = 0.0;
  bool saturated = false;
  std::string saturation;  // Why it counts as saturated.

  std::vector<TimelinePoint> timeline;
  uint64_t digest = 0;  // Hash over the times of all requests, to compare two simulations.

  nlohmann::json ToJson() const;
};

}  // namespace tandem::plan
